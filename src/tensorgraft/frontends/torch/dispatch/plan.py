"""Plans: reads, kernel and writes of one operator call as one function that the backend compiles.

`outcome.abstract_call` says what comes out, and raises PyTorch's own errors before anything is computed: once per plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from tensorgraft import warned
from tensorgraft.anywhere import Form
from tensorgraft.frontends.torch.core.devices import TYPE, Slot, slot_at, slot_of
from tensorgraft.frontends.torch.core.nested import flatten, map_nested, tensors_in
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.core.tensors import (
    FROM_NUMPY,
    cell_of,
    geometry_of,
    maker,
    numpy_dtype,
)
from tensorgraft.frontends.torch.dispatch import checks
from tensorgraft.frontends.torch.dispatch.decomposed import Replayed
from tensorgraft.frontends.torch.dispatch.offsets import reaches_of
from tensorgraft.frontends.torch.dispatch.order import Step, write_step, write_steps
from tensorgraft.frontends.torch.dispatch.outcome import Result, Structure, abstract_call, describe
from tensorgraft.frontends.torch.dispatch.outline import Leaf, Outline, leaves, make_outline, outline_key, pointwise
from tensorgraft.frontends.torch.dispatch.overlap import check_overlap
from tensorgraft.frontends.torch.dispatch.refusals import check_dtypes, check_out_dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Geometry, Storage, is_dense, write

Array = Any
Tensor = torch.Tensor
Maker = Callable[[Array], Tensor]


@dataclass(slots=True)
class Plan:
    run: Callable[..., tuple[Array, ...]] | None  # None: the backend cannot; the CPU does it
    slot: Slot
    written: tuple[int, ...] = ()  # which of the call's tensors get the first arrays that `run` returns
    results: list[Result] | None = None  # the tensors made of the arrays that follow
    structure: Structure | None = None  # puts several results together
    prepare: Callable[..., None] | None = None  # before the run: resizes `out=` tensors
    program: Callable[..., tuple[Array, ...]] | None = None  # `run` before it was compiled
    concrete: bool = False  # results' shapes depend on values: there is no program
    judges: tuple[checks.Judge, ...] = ()  # of the values that `run` returns last
    xp: Backend | None = None  # where operands are quantised, the backend that knows of such
    makers: list[tuple[int, Maker | None]] | None = None  # of its results, once it has run and nothing else is to do
    make: Maker | None = None  # of its only result, where nothing else comes of it

    def settle(self) -> None:
        """It has run, and every later call does no more than compute, write, and make its results."""
        self.makers, at = [], 0
        for result in self.results or ():
            self.makers.append((at, None if result is None else maker(self.slot, *result)))
            at += result is not None
        if len(self.makers) == 1 and self.structure is None and not self.written:
            self.make = self.makers[0][1]


def sharing(cells: Sequence[Storage]) -> tuple[int, ...]:
    """Of each tensor, the number of the first one with the same storage."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(c), k) for k, c in enumerate(cells))


@warned.remembered()  # PyTorch imports half of itself for a meta function that is written in Python
def make_plan(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    forms: Sequence[Form | None],
    computing: Backend | None = None,
) -> Plan:
    """`forms`: of each tensor on the device, that of an offset that is an operand. `computing`: another backend than
    that of the tensors, on arrays of its own. Raises what PyTorch raises for these arguments."""
    everything = tensors_in(args, kwargs)
    slot = slot_of_call(operator, args, kwargs, everything)
    if operator.spec.check is not None and not operator.spec.has_inputs:
        operator.spec.check(*args, **kwargs)
    check_overlap(operator, args, kwargs)
    check_out_dtypes(operator, args, kwargs)
    check_dtypes(operator, args, kwargs, everything)
    if callable(operator.spec.concrete) and operator.spec.concrete(*args):
        return Plan(None, slot, concrete=True)
    moved = operator.spec.moved(args, kwargs)
    names, key = outline_key(operator, args, kwargs, positions=moved is not None)
    outline: Outline | None = operator.outlines.get(key)
    ours = [t for t in everything if t.device.type == TYPE]
    results, structure, prepare = _elementwise(outline, everything), None, None
    if results is None:
        outcome, prepare = abstract_call(operator, args, kwargs)
        _check_dim(operator, args, kwargs)
        if outcome is None and operator.kind == "out":  # only the results say how large the `out=` tensors must be
            return Plan(None, slot, concrete=True)
        if prepare is not None:
            prepare(args, kwargs)
        results = []
        if operator.signature.returns and not operator.signature.returns_written:
            results, structure = describe(outcome)
    if outline is None:
        outline = operator.outlines[key] = make_outline(operator, args, kwargs, ours, names)
        if operator.elementwise and results and results[0] is not None:
            outline.made = results[0][0]
            if _elementwise(outline, everything) != results:  # what it does with other sizes is not known
                outline.made = None
    plan = Plan(None, slot, tuple(leaf.index for leaf in outline.targets), results, structure, prepare)
    xp = computing or backend_of(ours, slot)
    if xp.compound:
        plan.xp = xp
    plan.program = _program(xp, plan, operator, ours, forms, outline, moved or {})
    if operator.spec.uncompiled:
        plan.run = _in_scope(xp, plan.program)
    else:
        plan.run = xp.compile(plan.program)
    return plan


def _elementwise(outline: Outline | None, tensors: Sequence[Tensor]) -> list[Result] | None:
    """The result of an elementwise operator whose dtype is known. None: PyTorch has to be asked."""
    if outline is None or outline.made is None:
        return None
    found = pointwise(tensors)
    if found is None:
        return None
    size, stride = found
    return [(outline.made, size, stride, math.prod(size) * outline.made.itemsize)]


def backend_of(tensors: Sequence[Tensor], slot: Slot) -> Backend:
    """The backend that computes on tensors of a device: where some are quantised, that which knows of such."""
    return next((xp for t in tensors if (xp := cell_of(t).backend).compound), slot.backend)


def uncompiled(plan: Plan) -> Callable[..., tuple[Array, ...]]:
    """The plan's program, run as it is: for a decomposition that asks for values."""
    assert plan.program is not None
    plan.run = _in_scope(plan.xp or plan.slot.backend, plan.program)
    return plan.run


def _in_scope(xp: Backend, program: Callable[..., Any]) -> Callable[..., Any]:
    def run(*flat: Any) -> Any:
        with xp.scope():
            return program(*flat)

    return run


def device_error(op: str, tensors: Sequence[Tensor]) -> RuntimeError:
    names = list(dict.fromkeys(str(t.device) for t in tensors))
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices,"
        f" {names[0]} and {names[-1]}! (when calling aten::{op})"
    )


def slot_of_call(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], everything: Sequence[Tensor]
) -> Slot:
    """The device of a call, whose tensors are `everything`. Raises RuntimeError where these are on several, as PyTorch
    does; CPU tensors are allowed where they have no axes, and where the kernel says so (indices)."""
    devices = {t.device for t in everything}
    ours = [device for device in devices if device.type == TYPE]
    if not ours:
        return slot_of(kwargs.get("device"))
    if len(devices) == 1:
        return slot_at(ours[0].index)
    first = next(t.device for t in everything if t.device.type == TYPE)
    allowed: set[int] = set()
    for name, a in operator.signature.bind(args, kwargs).items():
        if name in operator.spec.host:
            allowed.update(id(t) for t in tensors_in((a,), {}))
    for t in everything:
        stray = t.device.type != "cpu" or (t.dim() > 0 and id(t) not in allowed)
        if t.device != first if t.device.type == TYPE else stray:
            raise device_error(operator.name, everything)
    return slot_at(first.index)


def _check_dim(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`dim` is an axis of the first tensor: some of PyTorch's meta functions leave that to the kernel."""
    sig = operator.signature
    if sig.types.get("dim") != "int" or sig.types.get(sig.names[0]) != "Tensor" or "stack" in operator.name:
        return
    bound = sig.bind(args, kwargs)
    n, dim = max(bound[sig.names[0]].dim(), 1), bound["dim"]
    if not -n <= dim < n:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")


# ---- the program -------------------------------------------------------------------------------------------------


def _program(
    xp: Backend,
    plan: Plan,
    operator: Operator,
    tensors: list[Tensor],
    forms: Sequence[Form | None],
    outline: Outline,
    moved: dict[str, Any],
) -> Callable[..., tuple[Array, ...]]:
    """(the storages' arrays, the offsets that are operands, the inputs) -> (the written storages' new arrays, then the
    results)."""
    spec = operator.spec
    whole = xp.compiles or xp.compound or spec.uncompiled or not spec.decomposed
    kernel = spec.fn if whole else Replayed(spec.fn)
    held, targets, dtype, promoted = outline.held, outline.targets, outline.dtype, outline.promoted
    positional, named = outline.positional, outline.named
    geometries = [geometry_of(t) for t in tensors]
    first = sharing([cell_of(t) for t in tensors])
    contiguous = spec.contiguous and tensors[0].is_contiguous()
    reaches, ahead = reaches_of(geometries, forms)
    orders = _orders(operator, geometries, first, held, targets, dtype)
    rounds = max((len(order) for order in orders if order is not None), default=1)

    def program(*flat: Any) -> tuple[Array, ...]:
        arrays, inputs = list(flat[:ahead]), flat[ahead:]
        made: tuple[Array, ...] = ()
        for turn in range(rounds):
            made = once(arrays, inputs, turn)
        return (*(arrays[first[leaf.index]] for leaf in targets), *made)

    def once(arrays: list[Array], inputs: tuple[Any, ...], turn: int) -> tuple[Array, ...]:

        def one(name: str, a: Any) -> Any:
            if isinstance(a, Leaf):
                v = reaches[a.index].read(xp, arrays[a.index], arrays) if a.tensor else inputs[a.index]
                if name in promoted:
                    return as_dtype(xp, v, dtype)
                return xp.asarray(v) if isinstance(v, np.ndarray) else v
            if name in promoted and isinstance(a, int | float | complex):
                return as_dtype(xp, a, dtype)
            return numpy_dtype(a) if isinstance(a, torch.dtype) else a

        def fill(name: str, a: Any) -> Any:  # lists of ATen do not nest
            return [one(name, x) for x in a] if isinstance(a, list) else one(name, a)

        options = {n: fill(n, held[n]) for n in named} | moved
        if spec.contiguous:
            options["contiguous"] = contiguous
        if operator.dtype_of_out:
            options["dtype"] = geometries[targets[0].index].dtype
        if spec.random:
            options["key"] = _key(xp, inputs[-1])
        with checks.collected() as pending:
            made = kernel(xp, *[fill(n, held[n]) for n in positional], **options)
        plan.judges = tuple(judge for _, judge in pending)
        if plan.results is None:  # PyTorch has no meta function: the kernel's own arrays say it
            plan.results, plan.structure = _describe_arrays(xp, made, len(targets))
        flat_made = list(flatten(made))
        for leaf, order, value in zip(targets, orders, flat_made, strict=False):
            if value is not None and turn < (1 if order is None else len(order)):
                geometry = geometries[leaf.index]
                value = xp.broadcast_to(xp.astype(value, geometry.dtype), geometry.shape)
                at = first[leaf.index]
                if order is None:
                    arrays[at] = reaches[leaf.index].write(xp, arrays[at], value, arrays)
                else:
                    arrays[at] = write_step(xp, arrays[at], geometry, value, order[turn])
        new = flat_made[len(targets) :]
        return (
            *(lay_out(xp, o, r) for o, r in zip(new, plan.results, strict=True) if r is not None),
            *(seen for seen, _ in pending),
        )

    return program


def _orders(
    operator: Operator,
    geometries: list[Geometry],
    first: tuple[int, ...],
    held: dict[str, Any],
    targets: list[Leaf],
    dtype: np.dtype,
) -> list[list[Step] | None]:
    """Of each written tensor, in which steps; None: at once."""
    if not targets:
        return []
    hidden = operator.writes if operator.kind == "out" else ()
    seen = {first[leaf.index] for name, a in held.items() if name not in hidden for leaf in leaves(a) if leaf.tensor}
    orders = []
    for leaf in targets:
        target = geometries[leaf.index]
        others = [g for k, g in enumerate(geometries) if k != leaf.index]
        # where PyTorch computes in another dtype it reads everything first
        apart = operator.spec.promotion is not None and dtype != target.dtype
        orders.append(write_steps(operator, target, others, first[leaf.index] in seen and not apart))
    return orders


def as_dtype(xp: Backend, v: Any, dtype: np.dtype) -> Array:
    """A number, a host array or an array of the backend as an array of a dtype; integers wrap as in C. A number is a
    constant that a compiler sees (an exponent of 3 is two products), where a host array is an input."""
    if isinstance(v, int | float | complex):
        return xp.full((), np.asarray(v).astype(dtype).item(), dtype)
    if isinstance(v, np.ndarray):
        return xp.asarray(v.astype(dtype))
    return xp.astype(v, dtype)


def _key(xp: Backend, words: Any) -> Array:
    """The Threefry key of a draw: its seed, with its number folded in."""
    words = xp.asarray(words) if isinstance(words, np.ndarray) else words
    high, low = (xp.reshape(xp.slice(words, (i,), (i + 1,), (1,)), ()) for i in (2, 3))
    return xp.fold_in(xp.slice(words, (0,), (2,), (1,)), high, low)


def meta_of(xp: Backend, a: Any) -> Any:
    return torch.empty(xp.shape(a), dtype=FROM_NUMPY[xp.dtype_of(a)], device="meta") if xp.is_array(a) else a


def _describe_arrays(xp: Backend, made: Any, written: int) -> tuple[list[Result], Structure | None]:
    parts = list(made) if isinstance(made, list | tuple) else [made]
    meta = partial(map_nested, partial(meta_of, xp))
    if not isinstance(made, list | tuple):
        results, structure = describe(meta(made))
    else:
        kind = tuple if isinstance(made, tuple) else list
        results, structure = describe(kind(meta(x) for x in parts[written:]))
    return results or [], structure


def lay_out(xp: Backend, array: Array, result: Result) -> Array:
    """A result as its new storage keeps it: of the right dtype, its axes ordered by falling stride, zeros in gaps."""
    assert result is not None
    dtype, size, stride, nbytes = result
    array = xp.astype(array, numpy_dtype(dtype))
    if xp.shape(array) != size:
        array = xp.broadcast_to(array, size)
    if not is_dense(size, stride):
        room = xp.zeros((nbytes // dtype.itemsize,), numpy_dtype(dtype))
        return write(xp, room, Geometry(size, stride, 0, numpy_dtype(dtype)), array)
    order = tuple(sorted(range(len(size)), key=lambda d: (-stride[d], d)))
    if order != tuple(range(len(size))) and math.prod(size) > 1:
        array = xp.permute_dims(array, order)
    return xp.own(array) if xp.mutable else array
