"""`record`: the program of a function, recorded by running it on arrays that have a shape and a dtype and no values.

    program = record(lambda xp, x, w: [xp.matmul(x, w)], [ShapeDtype((2, 3), float32), ShapeDtype((3, 4), float32)])
    print(program)                       # def program(xp, constants, x0, x1): ...
    with xp.scope():
        (y,) = program(xp, x, w)         # on any backend: arrays, or what stands for them in a trace of that backend
    encoding.save(program, directory); encoding.load(directory)

Every method of the hub is recorded as it is called, composites included, so that a backend runs its own form of each.
Host arrays become constants of the program. Bodies of loops and branches are functions within the program.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import optree

from tensorgraft.hub import registry
from tensorgraft.hub.abstract import AbstractBackend, ShapeDtype
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.operations import operations
from tensorgraft.hub.recorded.block import Block, Call, Tree, Var, leaves, mapped
from tensorgraft.hub.recorded.program import Program
from tensorgraft.hub.tape import ByTape

CONTROL_FLOW = frozenset({"cond", "while_loop", "scan"})
_SMALL = 64  # elements: of equal constants no larger than that there is one


OPERATIONS = frozenset(operations()) - {"map"}  # operations that a program may call


def record(fn: Callable[..., Sequence[Array]], specs: Sequence[Any], with_host: bool = False) -> Program:
    """Return the program of `fn(xp, *arrays) -> arrays`, for arrays of these shapes and dtypes (anything that has
    both).

    `with_host`: it may call functions of the host, and is then of use in this process alone.

    Raises what `fn` raises, TracedValueError where it asks for values, TypeError for arguments that are no data.
    """
    xp = program_backend()
    parameters = tuple(Var(tuple(s.shape), np.dtype(s.dtype)) for s in specs)
    with xp.calling_host(with_host), xp.recording() as calls:
        result = tuple(xp.variable(x) for x in fn(xp, *parameters))
    return Program(Block(parameters, calls, result))


@functools.cache
def program_backend() -> ProgramBackend:
    """Return the one recording backend. Threads and programs can share it, since its arrays have nothing but a shape
    and dtype."""
    return ProgramBackend()


def _recorded(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.call(name, args, kwargs)

    method.__name__ = name
    return method


class _Recording(ByTape, Backend):
    for _name in OPERATIONS - CONTROL_FLOW - {"coded_matmul"}:  # saved files cannot represent encodings
        locals()[_name] = _recorded(_name)
    del _name


class ProgramBackend(_Recording):
    """Arrays are `Var`s. Shapes, dtypes and errors are those of the abstract backend."""

    name = "program"
    traces = True  # bodies of loops and branches are recorded, not run

    def __init__(self) -> None:
        super().__init__()
        self._rules = AbstractBackend()
        self._local = threading.local()

    # ---- recording -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """Calls go into this list, not into that of the program or body around it."""
        outer_calls = getattr(self._local, "calls", None)
        calls: list[Call] = []
        self._local.calls = calls
        if outer_calls is None:
            self._local.small = {}
        try:
            yield calls
        finally:
            self._local.calls = outer_calls

    @contextlib.contextmanager
    def calling_host(self, allowed: bool) -> Iterator[None]:
        """Record calls of functions of the host, or refuse them."""
        before, self._local.with_host = getattr(self._local, "with_host", False), allowed
        try:
            yield
        finally:
            self._local.with_host = before

    def host_call(self, fn: Callable[..., Any], operands: Sequence[Array], results: Sequence[Any], /) -> list[Array]:
        if not getattr(self._local, "with_host", False):
            return self.call("host_call", (fn, operands, results), {})
        specs = [ShapeDtype(tuple(x.shape), np.dtype(x.dtype)) for x in results]
        return self._append("host_call", (fn, [*map(self.variable, operands)], tuple(results)), {}, specs)

    def _append(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        calls = getattr(self._local, "calls", None)
        if calls is None:
            raise RuntimeError(f"{method}: nothing is being recorded (tensorgraft.hub.recorded.record)")
        result_vars = mapped(lambda x: Var(x.shape, x.dtype) if type(x) is ShapeDtype else x, result)
        calls.append(Call(method, args, kwargs, result_vars))
        return result_vars

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation."""
        args, kwargs = mapped(lambda x: self._argument(name, x), (args, kwargs))
        if getattr(self._local, "eager", False) and all(x.value is not None for x in leaves([args, kwargs]) if _is(x)):
            return self._evaluate(name, args, kwargs)
        plain_args, plain_kwargs = mapped(spec_of, (args, kwargs))
        result = getattr(self._rules, name)(*plain_args, **plain_kwargs)
        if not any(type(x) is ShapeDtype for x in leaves(result)):
            return result
        return self._append(name, args, kwargs, result)

    def _argument(self, name: str, x: Any) -> Any:
        if type(x) is Var or x is None or isinstance(x, bool | int | float | complex | str | np.dtype):
            return x.item() if isinstance(x, np.generic) else x
        if isinstance(x, np.generic):
            return x.item()
        if isinstance(x, np.ndarray):
            return self.asarray(x)
        raise TypeError(
            f"{name} is being recorded, but got a {type(x).__module__}.{type(x).__qualname__}: expected arrays of"
            " the program, numpy.ndarray as constants, numbers, strings, dtypes, and tuples, lists and"
            " dictionaries of them"
        )

    def variable(self, x: Any) -> Var:
        """Return a result, or an initial value of a loop, as an array: numbers and host arrays become constants."""
        if type(x) is Var:
            return x
        if isinstance(x, np.ndarray | np.generic | bool | int | float | complex):
            return self.asarray(np.asarray(x))
        raise TypeError(f"a recorded function must return arrays, got a {type(x).__module__}.{type(x).__qualname__}")

    # ---- control flow: bodies on flat tuples of arrays -------------------------------------------------------------

    def _flat(self, tree: Any) -> tuple[tuple[Var, ...], Any]:
        flat, structure = optree.tree_flatten(tree)
        return tuple(map(self.variable, flat)), structure

    def _body(self, fn: Callable[..., Any], *trees: tuple[tuple[Any, ...], Any]) -> tuple[Block, Any]:
        """Return (the block of `fn`, traced for trees of these kinds, its result as a tree)."""
        parameters = tuple(tuple(Var(v.shape, v.dtype) for v in flat) for flat, _ in trees)
        with self.recording() as calls:
            result = fn(*(optree.tree_unflatten(s, p) for p, (_, s) in zip(parameters, trees, strict=True)))
        return Block(parameters, calls, ()), result

    def cond(
        self, predicate: Array, true_fn: Callable[..., Any], false_fn: Callable[..., Any], /, *operands: Any
    ) -> Any:
        flat, structure = self._flat(operands)
        blocks, results = [], []
        for fn in (true_fn, false_fn):
            block, outputs = self._body(lambda xs, fn=fn: fn(*xs), (flat, structure))
            block.result, out = self._flat(outputs)
            block.parameters = block.parameters[0]
            blocks.append(block)
            results.append(_specs(block.result, out))
        predicate = self.variable(predicate)
        self._rules.cond(spec_of(predicate), lambda: results[0], lambda: results[1])
        outputs = self._append("cond", (predicate, *blocks, *flat), {}, tuple(map(spec_of, blocks[0].result)))
        return optree.tree_unflatten(out, outputs)

    def while_loop(self, condition: Callable[[Any], Array], body: Callable[[Any], Any], init: Any, /) -> Any:
        flat, structure = self._flat(init)
        test, holds = self._body(condition, (flat, structure))
        test.result = self.variable(holds)
        step, new_carry = self._body(body, (flat, structure))
        step.result, out = self._flat(new_carry)
        self._rules.while_loop(
            lambda _: spec_of(test.result), lambda _: _specs(step.result, out), _specs(flat, structure)
        )
        outputs = self._append("while_loop", (test, step, flat), {}, tuple(map(spec_of, flat)))
        return optree.tree_unflatten(structure, outputs)

    def scan(
        self, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, /, length: int, reverse: bool = False
    ) -> tuple[Any, Any]:
        length, reverse = int(length), bool(reverse)
        (carry, structure), (xs_, x_structure) = self._flat(init), self._flat(xs)
        self._rules.scan(lambda c, x: (c, ()), (), tuple(map(spec_of, xs_)), length)  # checks the extents
        rows = tuple(Var(x.shape[1:], x.dtype) for x in xs_)
        step, (new_carry, y) = self._body(body, (carry, structure), (rows, x_structure))
        (carry_out, out), (y_out, y_structure) = self._flat(new_carry), self._flat(y)
        step.result = (carry_out, y_out)
        self._rules.scan(
            lambda c, x: (_specs(carry_out, out), ()), _specs(carry, structure), (), length, reverse
        )  # specs of the carry
        stacked = tuple(ShapeDtype((length, *v.shape), v.dtype) for v in y_out)
        outputs = self._append(
            "scan", (step, carry, xs_), {"length": length, "reverse": reverse}, (tuple(map(spec_of, carry)), stacked)
        )
        return optree.tree_unflatten(structure, outputs[0]), optree.tree_unflatten(y_structure, outputs[1])

    # ---- what is known already -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def eagerly(self) -> Iterator[None]:
        before, self._local.eager = getattr(self._local, "eager", False), True
        try:
            yield
        finally:
            self._local.eager = before

    def _evaluate(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute an operation on constants with NumPy."""
        xp = registry.get("numpy")
        plain_args, plain_kwargs = mapped(lambda x: x.value if type(x) is Var else x, (args, kwargs))
        with xp.scope():
            result = getattr(xp, name)(*plain_args, **plain_kwargs)
        return mapped(lambda x: self.asarray(np.asarray(x)) if xp.is_array(x) else x, result)

    # ---- the backend itself ----------------------------------------------------------------------------------------

    def is_array(self, x: Any, /) -> bool:
        return type(x) is Var

    def is_traced(self, x: Array, /) -> bool:
        return x.value is None

    def shape(self, x: Array, /) -> tuple[int, ...]:
        return x.shape

    def asarray(self, x: np.ndarray, /) -> Var:
        value = np.array(x, order="C")  # the caller may write it later
        value.setflags(write=False)
        variable = Var(value.shape, value.dtype, value)
        small = getattr(self._local, "small", None)
        if small is None or value.size > _SMALL:
            return variable
        return small.setdefault((value.shape, value.dtype, value.tobytes()), variable)

    def to_numpy(self, x: Array, /) -> np.ndarray:
        return x.known()

    def from_dlpack(self, x: Any, /) -> Var:
        return self.asarray(np.from_dlpack(x))

    # identities are no operations: front ends ask for them all the time
    def astype(self, x: Array, dtype: np.dtype, /) -> Var:
        return x if x.dtype == dtype else self.call("astype", (x, dtype), {})

    def reshape(self, x: Array, shape: tuple[int, ...], /) -> Var:
        return x if x.shape == shape else self.call("reshape", (x, shape), {})

    def broadcast_to(self, x: Array, shape: tuple[int, ...], /) -> Var:
        return x if x.shape == shape else self.call("broadcast_to", (x, shape), {})

    def seed_words(self, key: Var, /) -> Var:
        return key

    def native_function(self, primal: Callable[..., Any], forward: Any, backward: Any, /) -> Callable[..., Any]:
        return primal  # recorded programs are computed, not differentiated

    def scope(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def compile(self, fn: Callable[..., Any], /, donate: Sequence[int] = ()) -> Callable[..., Any]:
        return fn

    def synchronize(self) -> None:
        return None

    def memory_stats(self) -> dict[str, int]:
        return {}

    def device_name(self) -> str:
        return "a recorded program"


def _is(x: Any) -> bool:
    return type(x) is Var


def spec_of(x: Any) -> Any:
    """Return the shape and dtype of a variable; anything else as it is."""
    return ShapeDtype(x.shape, x.dtype) if type(x) is Var else x


def _specs(flat: Sequence[Var], structure: Any) -> Tree:
    return optree.tree_unflatten(structure, [spec_of(v) for v in flat])
