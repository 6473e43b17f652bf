"""A JAX function among tensors on the device of JAX, where JAX itself computes it, and its derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tensorgraft.frontends.torch import state
from tensorgraft.frontends.torch.devices import TYPE, Slot, slot_at
from tensorgraft.frontends.torch.tensors import cell_of, cpu_to_numpy, from_array, to_array

Array = Any
Tensor = torch.Tensor


class Bridged:
    """A function of tensors, and of pytrees of them, on the CPU or on a device of JAX. Python values are static."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self._programs: dict[Any, Program] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises TypeError for static arguments that are not hashable, RuntimeError for tensors on several devices."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        dynamic = tuple(i for i, x in enumerate(leaves) if isinstance(x, Tensor | jax.Array | np.ndarray))
        fixed = tuple(x for i, x in enumerate(leaves) if i not in dynamic)
        key = (structure, dynamic, tuple(map(type, fixed)), fixed)
        try:
            program = self._programs.get(key)
        except TypeError:
            odd = next(x for x in fixed if getattr(type(x), "__hash__", None) is None)
            raise TypeError(
                f"{self._name} was given a {type(odd).__qualname__}, which is neither a tensor nor hashable: pass"
                " tensors, numbers, strings, or containers of them"
            ) from None
        if program is None:
            program = self._programs[key] = Program(_flat(self.fn, structure, dynamic, fixed))
        given = [leaves[i] for i in dynamic]
        place = _place([x for x in given if isinstance(x, Tensor)], self._name)
        tensors = [x if isinstance(x, Tensor) else _out_of_jax(jnp.asarray(x), place) for x in given]
        return program(tensors, place)

    @property
    def _name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)


def _flat(fn: Any, structure: Any, dynamic: tuple[int, ...], fixed: tuple[Any, ...]) -> Callable[..., Any]:
    def flat(*arrays: Array) -> Any:
        given, rest = iter(arrays), iter(fixed)
        leaves = [next(given) if i in dynamic else next(rest) for i in range(structure.num_leaves)]
        args, kwargs = jax.tree.unflatten(structure, leaves)
        return fn(*args, **kwargs)

    return flat


class Program:
    """A function of arrays, compiled, with its derivatives."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.structure: Any = None  # of the results
        self._fn = fn
        self._derivatives: dict[tuple[int, ...], Program] = {}
        self._run = jax.jit(self._results)
        self._forward = jax.jit(self._with_pullback, static_argnums=0)
        self._backward = jax.jit(lambda pullback, cotangents: pullback(cotangents))

    def __call__(self, tensors: list[Tensor], place: Slot | None) -> Any:
        made = _Call.apply(self, place, *tensors)
        return jax.tree.unflatten(self.structure, made)

    def _results(self, *arrays: Array) -> tuple[Array, ...]:
        leaves, self.structure = jax.tree.flatten(self._fn(*arrays))
        return tuple(map(jnp.asarray, leaves))

    def _with_pullback(self, wanted: tuple[int, ...], *arrays: Array) -> tuple[tuple[Array, ...], Any]:
        """(results, a function of the cotangents of those that have one) for the arguments `wanted`."""

        def smooth(*some: Array) -> tuple[list[Array], tuple[Array, ...]]:
            given = list(arrays)
            for i, x in zip(wanted, some, strict=True):
                given[i] = x
            results = self._results(*given)
            return [r for r in results if jnp.issubdtype(r.dtype, jnp.inexact)], results

        _, pullback, results = jax.vjp(smooth, *[arrays[i] for i in wanted], has_aux=True)
        return results, pullback

    def results(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        return self._run(*arrays)

    def forward(self, wanted: tuple[int, ...], arrays: Sequence[Array]) -> tuple[tuple[Array, ...], Any]:
        return self._forward(wanted, *arrays)

    def backward(self, pullback: Any, cotangents: Sequence[Array]) -> tuple[Array, ...]:
        return self._backward(pullback, list(cotangents))

    def derivative(self, wanted: tuple[int, ...], count: int) -> Program:
        """(the `count` arguments, then cotangents) -> cotangents of the arguments `wanted`."""
        known = self._derivatives.get(wanted)
        if known is not None:
            return known

        def pulled_back(*given: Array) -> tuple[Array, ...]:
            _, pullback = self._with_pullback(wanted, *given[:count])
            return pullback(list(given[count:]))

        self._derivatives[wanted] = Program(pulled_back)
        return self._derivatives[wanted]


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, program: Program, place: Slot | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        arrays = [_into_jax(t) for t in tensors]
        wanted = tuple(i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed)
        ctx.program, ctx.place, ctx.wanted, ctx.pullback = program, place, wanted, None
        ctx.save_for_backward(*tensors)
        if wanted and state.now.capture is None:
            made, ctx.pullback = program.forward(wanted, arrays)
        else:
            made = program.results(arrays)
        results = tuple(_out_of_jax(a, place) for a in made)
        ctx.smooth = [t.dtype.is_floating_point or t.dtype.is_complex for t in results]
        ctx.mark_non_differentiable(*(t for t, smooth in zip(results, ctx.smooth, strict=True) if not smooth))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        tensors = ctx.saved_tensors
        given = [g for g, smooth in zip(gradients, ctx.smooth, strict=True) if smooth]
        if ctx.pullback is None or torch.is_grad_enabled():  # in a trace, or to be differentiated again
            found = ctx.program.derivative(ctx.wanted, len(tensors))([*tensors, *given], ctx.place)
        else:
            made = ctx.program.backward(ctx.pullback, [_into_jax(g) for g in given])
            found = [_out_of_jax(a, ctx.place) for a in made]
        out: list[Tensor | None] = [None] * len(tensors)
        for i, g in zip(ctx.wanted, found, strict=True):
            out[i] = g.to(tensors[i].dtype)  # JAX may compute in 32 bits what PyTorch has in 64
        return None, None, *out


def _place(tensors: Sequence[Tensor], name: str) -> Slot | None:
    """The device of JAX that the tensors are on; None: the CPU."""
    devices = {t.device for t in tensors}
    if len(devices) > 1:
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, but found {', '.join(sorted(map(str, devices)))}"
        )
    device = devices.pop() if devices else torch.device("cpu")
    if device.type == "cpu":
        return None
    slot = slot_at(device.index) if device.type == TYPE else None
    if slot is None or slot.name.partition(":")[0] != "jax":
        where = slot.name if slot is not None else str(device)
        raise RuntimeError(
            f"{name} is computed by JAX, and takes tensors on the CPU or on tg.device('jax'), not on {where}"
        )
    return slot


def _into_jax(t: Tensor) -> Array:
    """In the user's configuration of JAX, which by default has no 64-bit types."""
    t = t.detach()
    if t.device.type == TYPE:
        cell = cell_of(t)
        state.touch(cell)
        array = cell.backend.settled(to_array(t))
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


def _out_of_jax(array: Array, place: Slot | None) -> Tensor:
    return torch.from_dlpack(array) if place is None else from_array(array, place)
