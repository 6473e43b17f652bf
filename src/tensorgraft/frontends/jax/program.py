"""Functions of JAX as jaxprs, with their derivatives and batches, which JAX makes, as jaxprs too."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend import core

from tensorgraft.compiled.steps import CompiledPart
from tensorgraft.errors import DerivativeError
from tensorgraft.frontends.jax import rules  # noqa: F401  (they register themselves)
from tensorgraft.frontends.jax.evaluate import plan
from tensorgraft.frontends.jax.keys import Keys, is_key_dtype
from tensorgraft.frontends.jax.loops import is_replayable
from tensorgraft.frontends.jax.settings import JaxSettings, check, checks
from tensorgraft.frontends.jax.staging import make_jaxpr
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.precision import Region, with_region

Spec = jax.ShapeDtypeStruct


def traced(fn: Callable[..., Sequence[Any]], specs: Sequence[Spec]) -> core.ClosedJaxpr:
    """Return the jaxpr of a function of flat arrays. What does not depend on them is computed while it is traced, so
    that `jnp.minimum` of two Python numbers is a number."""
    if any(export.is_symbolic_dim(n) for s in specs for n in s.shape):  # shapes that are not known
        return jax.make_jaxpr(fn)(*specs)
    return make_jaxpr(fn, *specs)


class NumbersNeeded(Exception):
    """A function has no derivative while the numbers among its arguments are not known (a loop that runs to one)."""


class JaxprProgram:
    """A function of flat arrays (`hub.interchange.Differentiable`): a jaxpr, of which JAX makes the derivatives when
    they are first needed. Raises DerivativeError where it cannot.

    Arguments:
        closed: the jaxpr.
        compiled: whether each part is one compiled program of the backend.
        has_numbers: Python numbers are among the arguments, without which there may be a derivative: NumbersNeeded is
            raised instead.
        region: of autocast, whose casts it computes with, in its derivatives too.
    """

    def __init__(
        self, closed: core.ClosedJaxpr, compiled: bool, has_numbers: bool = False, region: Region | None = None
    ) -> None:
        self.closed, self.is_compiled, self.has_numbers, self.region = closed, compiled, has_numbers, region
        self.fn: Callable[..., Sequence[Any]] = core.jaxpr_as_fun(closed)
        self.specs = [_spec(a) for a in closed.in_avals]
        self._derived: dict[Any, Any] = {}
        self._settings = JaxSettings()

    def _cached(self, key: Any, make: Callable[[], Any]) -> Any:
        result = self._derived.get(key)
        if result is None:
            try:
                with self._settings.restored():
                    result = make()
            except Exception as error:
                result = error
            self._derived[key] = result
        if isinstance(result, Exception):
            raise result
        return result

    @property
    def main(self) -> JaxprPart:
        return self._cached("main", lambda: self._part(self.closed))

    def primal(self, xp: Backend, arrays: Sequence[Array]) -> Sequence[Array]:
        return self.main(xp, arrays)

    # ---- derivatives -----------------------------------------------------------------------------------------------

    def forward(
        self, xp: Backend, arrays: Sequence[Array], argnums: tuple[int, ...]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        try:
            part, count = self._parts(argnums)[:2]
        except DerivativeError as error:
            if self.has_numbers:
                raise NumbersNeeded from error
            raise
        outputs = part(xp, arrays)
        return outputs[:count], outputs[count:]

    def backward(
        self, xp: Backend, residuals: Sequence[Array], cotangents: Sequence[Array], argnums: tuple[int, ...]
    ) -> Sequence[Array]:
        return self._parts(argnums)[2](xp, [*residuals, *cotangents])

    def has_derivative(self) -> bool:
        """Return whether there is a derivative by all of its inexact arguments."""
        try:
            self._parts(tuple(i for i, s in enumerate(self.specs) if _is_inexact(s.dtype)))
        except DerivativeError:
            return False
        return True

    def _parts(self, argnums: tuple[int, ...]) -> tuple[JaxprPart, int, JaxprPart]:
        """Return (the part from arguments to results and residuals, the number of results, the part from residuals and
        cotangents to cotangents)."""
        with derivative_of_jax("backward"):
            return self._cached(("parts", argnums), lambda: self._make_parts(argnums))

    def _make_parts(self, argnums: tuple[int, ...]) -> tuple[JaxprPart, int, JaxprPart]:
        shown_objects: dict[str, Any] = {}

        def forward(*arrays: Any) -> list[Any]:
            results, pullback = self._linearised(argnums, arrays)
            residuals, shown_objects["pullback"] = jax.tree.flatten(pullback)
            shown_objects["count"] = len(results)
            return [*results, *residuals]

        def backward(*operands: Any) -> list[Any]:
            n = len(operands) - len(smooth)
            return list(jax.tree.unflatten(shown_objects["pullback"], operands[:n])(list(operands[n:])))

        first = traced(forward, self.specs)
        count = shown_objects["count"]
        smooth = [a for a in first.out_avals[:count] if _is_inexact(a.dtype)]
        second = traced(backward, [Spec(a.shape, a.dtype) for a in (*first.out_avals[count:], *smooth)])
        return self._part(first), count, self._part(second)

    def _part(self, closed: core.ClosedJaxpr) -> JaxprPart:
        return JaxprPart(closed, self.is_compiled, self.region)

    def _linearised(self, argnums: tuple[int, ...], arrays: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return (results, a function of the cotangents of the inexact ones), as a function of the wanted arguments."""

        def smooth(*smooth_arrays: Any) -> tuple[list[Any], list[Any]]:
            results = self.fn(*_put(arrays, argnums, smooth_arrays))
            return [r for r in results if _is_inexact(r.dtype)], list(results)

        _, pullback, results = jax.vjp(smooth, *[arrays[i] for i in argnums], has_aux=True)
        return results, pullback

    def pullback(self, argnums: tuple[int, ...]) -> JaxprProgram:
        def pulled_back(*operands: Any) -> list[Any]:
            n = len(self.specs)
            return list(self._linearised(argnums, operands[:n])[1](list(operands[n:])))

        with derivative_of_jax("backward"):
            return self._derive(("pullback", argnums), pulled_back, [*self.specs, *map(_spec, self._smooth_results())])

    def pushforward(self, argnums: tuple[int, ...]) -> JaxprProgram:
        def pushed(*operands: Any) -> list[Any]:
            arrays = operands[: len(self.specs)]

            def smooth(*smooth_arrays: Any) -> list[Any]:
                return [r for r in self.fn(*_put(arrays, argnums, smooth_arrays)) if _is_inexact(r.dtype)]

            return list(jax.jvp(smooth, tuple(arrays[i] for i in argnums), operands[len(self.specs) :])[1])

        with derivative_of_jax("forward"):
            return self._derive(("pushforward", argnums), pushed, [*self.specs, *(self.specs[i] for i in argnums)])

    def batched(self, axes: tuple[int | None, ...], size: int) -> JaxprProgram:
        specs = [
            s if axis is None else Spec((*s.shape[:axis], size, *s.shape[axis:]), s.dtype)
            for s, axis in zip(self.specs, axes, strict=True)
        ]
        return self._derive(("batched", axes, size), jax.vmap(self.fn, in_axes=axes, axis_size=size), specs)

    def _derive(self, key: Any, fn: Callable[..., Sequence[Any]], specs: Sequence[Spec]) -> JaxprProgram:
        return self._cached(key, lambda: JaxprProgram(traced(fn, specs), self.is_compiled, region=self.region))

    def _smooth_results(self) -> list[Any]:
        return [a for a in self.closed.out_avals if _is_inexact(a.dtype)]


@contextlib.contextmanager
def derivative_of_jax(mode: str) -> Iterator[None]:
    """Context that raises JAX's errors about derivatives that it lacks as a DerivativeError."""
    try:
        yield
    except (DerivativeError, FloatingPointError):  # the latter of `jax_debug_nans`
        raise
    except Exception as error:
        message = str(error).strip().partition("\n")[0]
        raise DerivativeError(f"the {mode} derivative of a JAX function does not exist: {message}") from error


class JaxprPart(CompiledPart):
    """A jaxpr, run on a backend step by step, or as one compiled program. Keys are the arrays of their words."""

    def __init__(self, closed: core.ClosedJaxpr, compiled: bool, region: Region | None = None) -> None:
        self.closed, self.region = closed, region
        self._plan = plan(closed)
        self._settings = JaxSettings()
        self._keyed = [i for i, a in enumerate(closed.in_avals) if is_key_dtype(a.dtype)]
        super().__init__(self._on_words, compiled, region is None and is_replayable(closed))

    def __call__(self, xp: Backend, arrays: Sequence[Array]) -> list[Array]:
        results = super().__call__(xp, arrays)
        if checks():
            check(xp, results)
        return results

    def _on_words(self, xp: Backend, arrays: Sequence[Array]) -> list[Array]:
        xp = with_region(xp, self.region)
        operands: list[Array | Keys] = list(arrays)
        for i in self._keyed:
            operands[i] = Keys.of(xp, arrays[i])
        with self._settings.restored(but="enable_x64"):  # the backend's, which may be JAX
            return [x.data(xp) if isinstance(x, Keys) else x for x in self._plan(xp, *operands)]


def _put(arrays: Sequence[Any], where: Sequence[int], values: Sequence[Any]) -> list[Any]:
    out = list(arrays)
    for i, value in zip(where, values, strict=True):
        out[i] = value
    return out


def _spec(aval: Any) -> Spec:
    return Spec(aval.shape, aval.dtype)


@functools.cache
def _is_inexact(dtype: Any) -> bool:
    return not is_key_dtype(dtype) and jax.numpy.issubdtype(np.dtype(dtype), np.inexact)
