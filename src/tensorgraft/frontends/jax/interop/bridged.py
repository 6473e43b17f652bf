"""A JAX function among tensors on the device of JAX, where JAX itself computes it, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend import core

from tensorgraft.errors import DerivativeError
from tensorgraft.frontends.jax.calls import JaxCall, JaxTrace, Traces
from tensorgraft.frontends.jax.keys import is_key_dtype
from tensorgraft.frontends.jax.objects import Objects
from tensorgraft.frontends.jax.program import JaxprProgram, derivative_of_jax
from tensorgraft.frontends.jax.settings import JaxSettings
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, Slot, slot_at
from tensorgraft.frontends.torch.core.tensors import cell_of, cpu_to_numpy, foreign_dtype, from_array, to_array
from tensorgraft.hub import registry
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.precision import current

Tensor = torch.Tensor


class Bridged:
    """A function of tensors, and of pytrees of them, on the CPU or on a device of JAX."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self._traces = Traces(fn)

    def run(
        self, args: Any, kwargs: Any, objects: Objects | None = None, values: Sequence[Any] = ()
    ) -> tuple[Any, Mapping[int, Tensor]]:
        """Return (the results, the new values of held objects). Raises TypeError for static arguments that are not
        hashable, RuntimeError for tensors on several devices."""
        call = JaxCall(args, kwargs, _operand, objects, values)
        family = self._traces.family(call, self.name, "a tensor")
        trace, program = family.get(call, lambda trace: (trace, BridgedProgram(_program(trace))))
        slot = _slot_of([x for x in call.slots if isinstance(x, Tensor)], self.name)
        tensors = []
        for i in trace.inputs:
            x, operand = call.slots[i], call.operands[i]
            if operand is None:
                x = jnp.asarray(x, call.numbers[i])
            elif not isinstance(x, Tensor):
                x = jnp.asarray(operand[0])
            tensors.append(x if isinstance(x, Tensor) else _out_of_jax(x, slot))
        return trace.finish(call, list(program(tensors, slot)), Tensor.detach, _held_by_jax)

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)


def _operand(x: Any) -> tuple[Any, tuple[Any, ...]] | None:
    if isinstance(x, Tensor):
        return x, (tuple(x.shape), jax.dtypes.canonicalize_dtype(foreign_dtype(x.dtype)))
    if not isinstance(x, jax.Array | np.ndarray | np.generic):
        return None
    if isinstance(x, jax.Array) and is_key_dtype(x.dtype):
        return jax.random.key_data(x), (x.shape, x.dtype)
    return x, (x.shape, jax.dtypes.canonicalize_dtype(x.dtype))


def _program(trace: JaxTrace) -> Callable[..., Sequence[Array]]:
    region = current()
    if region is None:
        return _of_words(trace)
    return registry.get("jax").differentiable(JaxprProgram(trace.closed, compiled=False, region=region))


def _of_words(trace: JaxTrace) -> Callable[..., list[Array]]:
    """Return the jaxpr as a function, of the words of keys in their place."""
    run = core.jaxpr_as_fun(trace.closed)
    keyed = {k: a.dtype._impl.name for k, a in enumerate(trace.closed.in_avals) if is_key_dtype(a.dtype)}

    def flat(*arrays: Array) -> list[Array]:
        operands = [jax.random.wrap_key_data(x, impl=keyed[k]) if k in keyed else x for k, x in enumerate(arrays)]
        return [jax.random.key_data(y) if is_key_dtype(y.dtype) else y for y in run(*operands)]

    return flat


def _held_by_jax(t: Tensor, dtype: Any) -> Array:
    x = _into_jax(t)
    return jax.random.wrap_key_data(x, impl=dtype._impl.name) if is_key_dtype(dtype) else x


class BridgedProgram:
    """A function of arrays, compiled, with its derivatives."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._derivatives: dict[tuple[int, ...], BridgedProgram] = {}
        self._settings = JaxSettings()
        self._run = jax.jit(self._results)
        self._forward = jax.jit(self._with_pullback, static_argnums=0)
        self._backward = jax.jit(lambda pullback, cotangents: pullback(cotangents))

    def __call__(self, tensors: list[Tensor], slot: Slot | None) -> Any:
        return _Call.apply(self, slot, *tensors)

    def _results(self, *arrays: Array) -> tuple[Array, ...]:
        return tuple(map(jnp.asarray, self._fn(*arrays)))

    def _with_pullback(self, argnums: tuple[int, ...], *arrays: Array) -> tuple[tuple[Array, ...], Any]:
        """Return (results, a function of the cotangents of those that have one) for the arguments `argnums`."""

        def smooth(*smooth_arrays: Array) -> tuple[list[Array], tuple[Array, ...]]:
            replaced = list(arrays)
            for i, x in zip(argnums, smooth_arrays, strict=True):
                replaced[i] = x
            results = self._results(*replaced)
            return [r for r in results if jnp.issubdtype(r.dtype, jnp.inexact)], results

        _, pullback, results = jax.vjp(smooth, *[arrays[i] for i in argnums], has_aux=True)
        return results, pullback

    def results(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        with self._settings.restored():
            return self._run(*arrays)

    def forward(self, argnums: tuple[int, ...], arrays: Sequence[Array]) -> tuple[tuple[Array, ...], Any]:
        with derivative_of_jax("backward"), self._settings.restored():
            return self._forward(argnums, *arrays)

    def backward(self, pullback: Any, cotangents: Sequence[Array]) -> tuple[Array, ...]:
        with derivative_of_jax("backward"), self._settings.restored():
            return self._backward(pullback, list(cotangents))

    def derivative(self, argnums: tuple[int, ...], count: int) -> BridgedProgram:
        """Return the cotangents of the arguments `argnums`, from the `count` arguments followed by cotangents."""
        known = self._derivatives.get(argnums)
        if known is not None:
            return known

        def pulled_back(*operands: Array) -> tuple[Array, ...]:
            with derivative_of_jax("backward"):
                _, pullback = self._with_pullback(argnums, *operands[:count])
                return pullback(list(operands[count:]))

        with self._settings.restored():
            self._derivatives[argnums] = BridgedProgram(pulled_back)
        return self._derivatives[argnums]


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, program: BridgedProgram, slot: Slot | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        arrays = [_into_jax(t) for t in tensors]
        argnums = tuple(i for i, needs_gradient in enumerate(ctx.needs_input_grad[2:]) if needs_gradient)
        ctx.program, ctx.place, ctx.wanted, ctx.pullback = program, slot, argnums, None
        ctx.save_for_backward(*tensors)
        if argnums and state.now.capture is None:
            try:
                outputs, ctx.pullback = program.forward(argnums, arrays)
            except DerivativeError:  # a missing derivative is an error only if it is requested
                outputs = program.results(arrays)
        else:
            outputs = program.results(arrays)
        results = tuple(_out_of_jax(a, slot) for a in outputs)
        ctx.smooth = [t.dtype.is_floating_point or t.dtype.is_complex for t in results]
        ctx.mark_non_differentiable(*(t for t, smooth in zip(results, ctx.smooth, strict=True) if not smooth))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        tensors = ctx.saved_tensors
        cotangents = [g for g, smooth in zip(gradients, ctx.smooth, strict=True) if smooth]
        if ctx.pullback is None or torch.is_grad_enabled():  # in a trace, or to be differentiated again
            derivatives = ctx.program.derivative(ctx.wanted, len(tensors))([*tensors, *cotangents], ctx.place)
        else:
            argument_cotangents = ctx.program.backward(ctx.pullback, [_into_jax(g) for g in cotangents])
            derivatives = [_out_of_jax(a, ctx.place) for a in argument_cotangents]
        out: list[Tensor | None] = [None] * len(tensors)
        for i, g in zip(ctx.wanted, derivatives, strict=True):
            out[i] = g.to(tensors[i].dtype)  # JAX may compute in 32 bits what PyTorch has in 64
        return None, None, *out


def _slot_of(tensors: Sequence[Tensor], name: str) -> Slot | None:
    """Return the device of JAX that the tensors are on; None: the CPU."""
    devices = {t.device for t in tensors}
    if len(devices) > 1:
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, but found {', '.join(sorted(map(str, devices)))}"
        )
    device = devices.pop() if devices else torch.device("cpu")
    if device.type == "cpu":
        return None
    slot = slot_at(device.index) if device.type == TYPE else None
    if slot is None or registry.lookup(registry.parse(slot.name)[0]).requires != "jax":
        where = slot.name if slot is not None else str(device)
        raise RuntimeError(
            f"{name} is computed by JAX, and takes tensors on the CPU or on tg.device('jax'), not on {where}"
        )
    return slot


def _into_jax(t: Tensor) -> Array:
    """Return a tensor as an array in the user's configuration of JAX, which by default has no 64-bit types."""
    t = t.detach()
    if t.device.type == TYPE:
        cell = cell_of(t)
        state.touch(cell)
        array: Array = cell.backend.materialize(to_array(t))
    else:
        t = t.resolve_conj().resolve_neg()
        if t.is_contiguous() and t.numel():
            try:
                array = jax.dlpack.from_dlpack(t)
            except (BufferError, jax.errors.JaxRuntimeError, TypeError):  # not aligned; a dtype that DLPack lacks
                array = jnp.asarray(cpu_to_numpy(t))
        else:
            array = jnp.asarray(cpu_to_numpy(t))
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype != dtype:
        with jax.enable_x64(True):
            array = jax.lax.convert_element_type(array, dtype)
    return array


def _out_of_jax(array: Array, slot: Slot | None) -> Tensor:
    return torch.from_dlpack(array) if slot is None else from_array(slot.backend.ensure_owned(array), slot)
