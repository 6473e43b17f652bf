"""Jaxprs as steps: each equation by the rule of its primitive, on a backend that records, or as a word.

It is `evaluate` with what is to be read kept: equations that come from calls of modules and of the user's compiled
functions stay in them (`scope`), and each step knows the line that it comes from.
"""

from __future__ import annotations

import contextlib
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from tensorgraft.codegen.recorders.frames import Called
from tensorgraft.codegen.recorders.recording import Scope, ScopedRecorder
from tensorgraft.codegen.trace import SourceLine
from tensorgraft.frontends.jax import (
    releases,
    rules,  # noqa: F401  (they register themselves)
)
from tensorgraft.frontends.jax.codegen import word_lowering
from tensorgraft.frontends.jax.codegen.call_recorder import CallWatch, is_users, scopes
from tensorgraft.frontends.jax.decomposition import without_references
from tensorgraft.frontends.jax.evaluate import called_jaxpr, folded, resolved, used
from tensorgraft.frontends.jax.jaxpr_interpreter import interpret
from tensorgraft.frontends.jax.keys import is_key_dtype
from tensorgraft.hub.recorded.block import Var

Value = Any


class JaxprRecorder(ScopedRecorder):
    """Records steps, and words; rules that take jaxprs find who evaluates them."""

    def __init__(self) -> None:
        super().__init__()
        self.jaxpr_evaluator: Callable[[core.ClosedJaxpr], Callable[..., list[Any]]] | None = None


class Recording:
    """A jaxpr that is run on a recorder.

    Arguments:
        watch: the calls recorded while it was traced; calls of compiled functions are added.
        variables: {id of a captured array: the Var that represents it}.
    """

    def __init__(self, watch: CallWatch, variables: dict[int, Var]) -> None:
        self.watch, self.held = watch, variables
        self.xp = JaxprRecorder()
        self.xp.jaxpr_evaluator = lambda closed: lambda *operands: self.run(closed, operands, self.xp.at_scope)
        self.values: list[tuple[core.Var, Value]] = []  # the values of variables of jaxprs, in the order of assignment

    def run(self, closed: core.ClosedJaxpr, operands: Sequence[Value], scope: Scope = ()) -> list[Value]:
        """Return the results of a jaxpr, recorded."""
        closed = without_references(closed)
        jaxpr = used(closed.jaxpr)
        constants = [self.constant(x) for x in closed.consts]
        self.values += zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *operands), strict=True)

        def compute(equation: Any, values: list[Value]) -> list[Value]:
            numbers, derived = scopes(equation.source_info.name_stack)
            inner_scope = scope if derived else (*scope, *numbers)
            with self._at(equation, inner_scope):
                results = self._equation(equation, values, inner_scope)
            self.values += zip(equation.outvars, results, strict=True)
            return results

        def literal(atom: Any) -> Value:
            return self.constant(np.asarray(atom.val, atom.aval.dtype))

        return interpret(jaxpr, constants, operands, compute, literal)

    @contextlib.contextmanager
    def _at(self, equation: Any, scope: Scope) -> Iterator[None]:
        before = self.xp.at_place, self.xp.at_scope
        self.xp.at_place, self.xp.at_scope = place_of(equation) or before[0], scope
        try:
            yield
        except NotImplementedError as error:
            if self.xp.at_place and not getattr(error, "__notes__", None):
                error.add_note(f"{self.xp.at_place}: here the program asks for it")
            raise
        finally:
            self.xp.at_place, self.xp.at_scope = before

    def constant(self, x: Any) -> Value:
        if id(x) in self.held:
            return self.held[id(x)]
        if is_key_dtype(getattr(x, "dtype", None) or np.asarray(x).dtype):
            return word_lowering.KeyData(self.xp, self.xp.asarray(np.array(jax.random.key_data(x))))
        return self.xp.asarray(np.array(x))

    def _equation(self, equation: Any, operands: list[Value], scope: Scope) -> list[Value]:
        name = equation.primitive.name
        word = word_lowering.PRIMITIVES.get(name)
        result = None if word is None else word(self.xp, equation, *operands)
        if result is None and name in ("jit", "pjit"):
            word = word_lowering.FUNCTIONS.get(equation.params["name"])
            if word is not None and not _is_of_user(equation):
                result = word(self.xp, equation, *operands)
        if result is not None:
            return (
                list(result) if equation.primitive.multiple_results and isinstance(result, list | tuple) else [result]
            )
        inner = called_jaxpr(equation)
        if inner is not None:
            if name in ("custom_jvp_call", "custom_vjp_call") and _is_of_user(equation):
                self._compare_derivatives(equation, inner)
            return self.run(inner, operands, self._into(equation, scope))
        known = tuple(x.value if type(x) is Var else None for x in operands)
        if _is_foldable(equation) and (values := folded(equation, known, numbers=True)) is not None:
            return [self.xp.asarray(np.array(v)) for v in values]
        results = resolved(equation, known)(self.xp, *operands)
        return [
            word_lowering.as_single_array(self.xp, x)
            for x in (results if equation.primitive.multiple_results else [results])
        ]

    def _compare_derivatives(self, equation: Any, inner: core.ClosedJaxpr) -> None:
        """Add a note if the user's own derivative is not that of the function's computation, because the target
        differentiates the written code."""
        differs = derivatives_differ(equation, inner)
        if differs is not False:
            name = (_function_of(equation) or ("a function", ""))[0]
            problem = (
                "differs from that of what it computes"
                if differs
                else "could not be compared with that of what it computes"
            )
            self.xp.note(f"the derivative that {name} has of its own {problem}; the file's is that of what is written")

    def _into(self, equation: Any, scope: Scope) -> Scope:
        """Return the scope of a function that an equation calls: its own where it is the user's and has a name."""
        function = _function_of(equation)
        if function is None:
            return scope
        name, location = function
        info = getattr(releases.called_jaxpr(equation).jaxpr, "debug_info", None)
        names = getattr(info, "arg_names", None) or ()  # constants come before them
        arguments = [
            (n, atom)
            for n, atom in zip(reversed(names), reversed(equation.invars), strict=False)
            if n and n.isidentifier() and not isinstance(atom, core.Literal)
        ][::-1]
        self.watch.program_calls.append(Called(name, place=location, arguments=arguments))
        return (*scope, len(self.watch.program_calls) - 1)


def _function_of(equation: Any) -> tuple[str, str] | None:
    """Return (name, place) of the user's function that an equation calls."""
    if equation.primitive.name not in ("jit", "pjit", "custom_jvp_call", "custom_vjp_call"):
        return None
    info = getattr(releases.called_jaxpr(equation).jaxpr, "debug_info", None)
    name, _, location = (getattr(info, "func_src_info", None) or "").partition(" at ")
    file, _, line = location.rpartition(":")
    if not file or not name.isidentifier() or not is_users(file) or "/site-packages/" in file:
        return None
    return name, f"{file.rpartition('/')[2]}:{line}"


def _is_of_user(equation: Any) -> bool:
    return _function_of(equation) is not None


def derivatives_differ(equation: Any, inner: core.ClosedJaxpr) -> bool | None:
    """Return whether a custom derivative differs, at a point, from that of the function itself; None where that is not
    known."""
    smooth = [i for i, a in enumerate(equation.invars) if jax.numpy.issubdtype(a.aval.dtype, np.floating)]
    rng = np.random.default_rng(0)
    point = [
        jax.numpy.asarray(rng.uniform(0.3, 0.7, a.aval.shape), a.aval.dtype)
        if i in smooth
        else jax.numpy.zeros(a.aval.shape, a.aval.dtype)
        for i, a in enumerate(equation.invars)
    ]

    def pull(fn: Callable[..., Any]) -> list[np.ndarray]:
        def of_smooth(*smooth_arrays: Any) -> list[Any]:
            operands = list(point)
            for i, x in zip(smooth, smooth_arrays, strict=True):
                operands[i] = x
            return [r for r in fn(*operands) if jax.numpy.issubdtype(r.dtype, np.floating)]

        results, pullback = jax.vjp(of_smooth, *[point[i] for i in smooth])
        return [np.asarray(x, np.float64) for x in pullback([jax.numpy.ones_like(r) for r in results])]

    if any(is_key_dtype(a.aval.dtype) for a in equation.invars):
        return None
    try:
        custom = pull(lambda *xs: equation.primitive.bind(*xs, **equation.primitive.get_bind_params(equation.params)))
        plain = pull(core.jaxpr_as_fun(inner))
    except Exception:  # whatever a rule of the user's raises out of its program
        return None
    return not all(np.allclose(a, b, 1e-3, 1e-4, equal_nan=True) for a, b in zip(custom, plain, strict=True))


def _is_foldable(equation: Any) -> bool:
    """Return whether an equation of constants is folded into a constant: not if it makes an array of a given size."""
    return bool(equation.invars) and (
        equation.primitive.name not in ("broadcast_in_dim", "iota") or not equation.outvars[0].aval.shape
    )


_LIBRARIES = (os.path.dirname(jax.__file__) + os.sep, sysconfig.get_path("stdlib"))


def place_of(equation: Any) -> str:
    """Return the line of the user's program that an equation comes from, with its callers."""
    traceback = equation.source_info.traceback
    if traceback is None:
        return ""
    frames = [(f.file_name, f.line_num) for f in traceback.frames]
    of_user = [(file, line) for file, line in frames if "/site-packages/" not in file and is_users(file)]
    outside = [(file, line) for file, line in frames if not file.startswith(_LIBRARIES)][:1]
    return SourceLine.of([f"{file.rpartition('/')[2]}:{line}" for file, line in of_user or outside])
