"""Outlines: the part of a plan that does not depend on tensor sizes, shared by calls that differ in nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.iteration import result_strides
from tensorgraft.frontends.torch.core.nested import map_nested
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.core.promotion import elementwise_dtypes
from tensorgraft.frontends.torch.core.settings import settings
from tensorgraft.frontends.torch.core.tensors import numpy_dtype
from tensorgraft.frontends.torch.dispatch import halves
from tensorgraft.hub import dtypes
from tensorgraft.storage import Shape, contiguous_strides

Tensor = torch.Tensor


@dataclass(slots=True)
class Leaf:
    """A place in the arguments that a call fills in: its tensor or its number `index`."""

    index: int
    tensor: bool


@dataclass(slots=True)
class Outline:
    arguments: dict[str, Any]  # the arguments by name, with leaves
    targets: list[Leaf]  # written tensors
    common: np.dtype  # to which the arguments `promoted` are converted first, as PyTorch's CPU rounds them
    dtype: np.dtype  # to which they are widened, in which the kernel computes
    promoted: frozenset[str]
    positional: list[str]  # arguments of the kernel
    named: list[str]
    rounded: np.dtype | None = None  # in which PyTorch has the result before it is written, where that is narrower
    fetches: Any = None  # how the program makes the kernel's arguments (`program`)
    result_dtype: torch.dtype | None = (
        None  # for an elementwise operator, whose result has the sizes and strides of `pointwise`
    )


def outline_key(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], positions: bool
) -> tuple[frozenset[str], Any]:
    """Return (the names of numbers that are inputs, the key of the plan template). `positions`: numbers at the
    operator's positions are inputs of the program."""
    spec, sig = operator.spec, operator.signature
    names = spec.dynamic.union(spec.positions) if positions else spec.dynamic
    parts: list[Any] = [positions, settings()]
    parts += [_part(a, name in names) for name, a in zip(sig.positional, args, strict=False)]
    for name, a in kwargs.items():
        if name != "generator":
            parts += (name, _part(a, name in names))
    return names, tuple(parts)


def make_outline(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    on_device: Sequence[Tensor],
    names: frozenset[str],
) -> Outline:
    """`on_device`: the call's tensors on the device; `names`: of numbers that are inputs."""
    sig = operator.signature
    bound_arguments, inputs = held_arguments(operator, args, kwargs, names)
    hidden = operator.writes if operator.kind == "out" else ()
    (common, compute, result), promoted = _promoted(operator, on_device, bound_arguments, inputs)
    return Outline(
        bound_arguments,
        [leaf for name in operator.writes for leaf in leaves(bound_arguments.get(name))],
        common,
        compute,
        promoted,
        [n for n in sig.positional if n in bound_arguments and n not in hidden],
        [n for n in bound_arguments if n not in sig.positional and n not in hidden],
        None if result == compute else result,
    )


def pointwise(tensors: Sequence[Tensor]) -> tuple[Shape, Shape] | None:
    """Return (sizes, strides) of an elementwise operator's result, or None if PyTorch has to determine them."""
    first = tensors[0]
    shape = tuple(first.size())
    if all(t.size() == shape for t in tensors):
        strides = contiguous_strides(shape)
        # any strides will do in addition to a number, or without elements
        if 0 not in shape and all(t.stride() == strides for t in tensors):
            return shape, strides
    else:
        try:
            shape = np.broadcast_shapes(*[t.size() for t in tensors])
        except ValueError:
            return None
    if 0 in shape or 1 in shape:  # strides along such axes are anything
        return None
    laid_out = result_strides(shape, tensors)
    return None if laid_out is None else (shape, laid_out)


def _part(a: Any, number: bool) -> Any:
    """Return the properties of an argument that an outline depends on."""
    kind = a.__class__
    if kind is list or kind is tuple:
        return tuple([_part(x, number) for x in a])
    if isinstance(a, Tensor):
        # the rule of strides was verified for tensors with these properties
        return a.dtype, a.dim(), a.device.type == TYPE, a.is_contiguous() or _order(a)
    if number and isinstance(a, int | float | complex):
        return kind
    if isinstance(a, torch.Generator):
        return None
    return kind, repr(a) if isinstance(a, float | complex) else a


def _order(t: Tensor) -> tuple[bool, tuple[int, ...]]:
    """Return (the tensor is expanded; in which order its axes lie)."""
    strides = t.stride()
    return 0 in strides, tuple(sorted(range(t.dim()), key=lambda axis: (-strides[axis], axis)))


def held_arguments(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], numbers: frozenset[str]
) -> tuple[dict[str, Any], list[Any]]:
    """Return (the arguments by name, including defaults, with leaves for tensors and inputs, numbered as in the key;
    the inputs: CPU tensors, and arguments named in `numbers`)."""
    tensors, inputs = 0, []

    def hold(name: str, a: Any) -> Any:
        nonlocal tensors
        if isinstance(a, Tensor) and a.device.type == TYPE:
            tensors += 1
            return Leaf(tensors - 1, True)
        if isinstance(a, Tensor) or (isinstance(a, int | float | complex) and name in numbers):
            inputs.append(a)
            return Leaf(len(inputs) - 1, False)
        return a

    sig = operator.signature
    positional = [map_nested(partial(hold, name), a) for name, a in zip(sig.positional, args, strict=False)]
    named = {name: map_nested(partial(hold, name), a) for name, a in kwargs.items() if name != "generator"}
    return {n: v for n, v in sig.bind(tuple(positional), named).items() if n not in schema.PLACEMENT}, inputs


def leaves(argument: Any) -> list[Leaf]:
    if isinstance(argument, list):
        return [leaf for x in argument for leaf in leaves(x)]
    return [argument] if isinstance(argument, Leaf) else []


def _promoted(
    operator: Operator, tensors: Sequence[Tensor], bound_arguments: dict[str, Any], inputs: list[Any]
) -> tuple[tuple[np.dtype, np.dtype, np.dtype], frozenset[str]]:
    """PyTorch's dtypes for an elementwise kernel (`Promoted`), and the arguments that are converted."""
    spec = operator.spec
    if spec.promotion is None:
        return (dtypes.bool_, dtypes.bool_, dtypes.bool_), frozenset()  # no argument is converted
    types = operator.signature.types
    names = spec.promote or tuple(
        n
        for n in bound_arguments
        if ("Tensor" in types[n] or n == "other") and not (operator.kind == "out" and n in operator.writes)
    )
    operands = []
    for n in names:
        for a in bound_arguments[n] if isinstance(bound_arguments[n], list) else [bound_arguments[n]]:
            if isinstance(a, Leaf):
                operands.append(tensors[a.index] if a.tensor else inputs[a.index])
            elif a is not None:
                operands.append(a)
    kind = spec.promotion(bound_arguments) if callable(spec.promotion) else spec.promotion
    dtypes_of_call = elementwise_dtypes(operands, kind)
    common, compute, result = map(numpy_dtype, dtypes_of_call)
    if dtypes_of_call.common is torch.complex32 and schema.short_name(operator.base or operator.op) in halves.ON_CPU:
        common = dtypes.complex32
    return (common, compute, result), frozenset(names)
