"""The program of a plan: what an operator call reads, computes and writes, as one function of arrays.

What it does at each argument is settled when it is made, so that a backend that does not compile has little left to do
at a call. It closes over geometries and numbers, never over tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from tensorgraft.dynamic_offset import Form
from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.nested import flatten, map_nested
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.core.spec import OWN
from tensorgraft.frontends.torch.core.tensors import FROM_NUMPY, cell_of, geometry_of, numpy_dtype
from tensorgraft.frontends.torch.dispatch import checks, halves
from tensorgraft.frontends.torch.dispatch.decomposed import Replayed, ReplayedFormula
from tensorgraft.frontends.torch.dispatch.offsets import StorageReference, reaches_of
from tensorgraft.frontends.torch.dispatch.overlapping_elements import Step, write_step, write_steps
from tensorgraft.frontends.torch.dispatch.plan import Plan
from tensorgraft.frontends.torch.dispatch.plan_template import Leaf, Outline, leaves
from tensorgraft.frontends.torch.dispatch.results import Conjugate, Result, Structure, describe
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import is_formula
from tensorgraft.interrupts import all_or_none
from tensorgraft.storage import (
    Geometry,
    Shape,
    Storage,
    contiguous_strides,
    in_halves,
    is_dense,
    to_halves,
    write,
)

Tensor = torch.Tensor
# an argument of the kernel, of (the backend, the reaches of the tensors, arrays and offsets, inputs)
Fetch = Callable[[Backend, Sequence[StorageReference], Sequence[Any], Sequence[Any]], Any]
Computation = Callable[[Sequence[Any], Sequence[Any]], Any]  # (arrays, inputs) -> (results, what waits for a check)


def sharing(cells: Sequence[Storage]) -> tuple[int, ...]:
    """Return, for each tensor, the number of the first one with the same storage."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(c), k) for k, c in enumerate(cells))


def make_program(
    xp: Backend,
    plan: Plan,
    operator: Operator,
    tensors: list[Tensor],
    forms: Sequence[Form | None],
    outline: Outline,
    moved: dict[str, Any],
) -> Callable[..., tuple[Array, ...]]:
    """Make the function from (the storages' arrays, the offsets that are operands, the inputs) to (the new arrays of
    written storages, then the results)."""
    geometries = [geometry_of(t) for t in tensors]
    references, array_count = reaches_of(geometries, forms)
    fixed = dict(moved)
    if operator.spec.contiguous:
        fixed["contiguous"] = tensors[0].is_contiguous()
    if operator.spec.narrow:
        element_dtypes = {geometry.dtype for geometry in geometries}
        if dtypes.complex32 in element_dtypes and dtypes.complex64 not in element_dtypes:
            fixed["narrow"] = True
    computed = _computation(xp, plan, operator, outline, geometries, references, fixed)
    laid = _layout(xp, plan)
    if outline.targets:
        writes = _writes(operator, outline, geometries, sharing([cell_of(t) for t in tensors]))
        return _writing(xp, plan, computed, laid, writes, references, array_count, outline.rounded)

    def pure(*flat: Any) -> tuple[Array, ...]:
        out, values = computed(flat[:array_count], flat[array_count:])
        return (*laid(list(flatten(out)) if isinstance(out, (list, tuple)) else [out]), *values)

    return pure


def _computation(
    xp: Backend,
    plan: Plan,
    operator: Operator,
    outline: Outline,
    geometries: Sequence[Geometry],
    references: Sequence[StorageReference],
    fixed: dict[str, Any],
) -> Computation:
    """Return the kernel as a function of arrays and inputs. `fixed`: arguments that are no operands."""
    random = operator.spec.random
    fn, targets = _kernel(xp, operator), outline.targets
    if outline.common is dtypes.complex32:
        fn = halves.rounding(schema.short_name(operator.base or operator.op), fn)
    if outline.fetches is None:
        outline.fetches = _fetches(outline, geometries, operator.spec.scalar_operand)
    positional, named = outline.fetches
    if operator.dtype_of_out:
        fixed["dtype"] = dtypes.of_values(geometries[targets[0].index].dtype)
    into = dtypes.of_values(geometries[targets[0].index].dtype) if operator.computes_in_out else None
    narrow = has_halves([geometry.dtype for geometry in geometries])

    def computed(arrays: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """Return the kernel's results, and the arrays that wait for a check."""
        options = {n: part(xp, references, arrays, inputs) for n, part in named} | fixed if named or fixed else {}
        if random:
            options["key"] = random_key(xp, inputs[-1])
        if into is not None and options.get("dtype") is None:
            options["dtype"] = into
        with checks.collected() as pending:
            out = fn(xp, *[part(xp, references, arrays, inputs) for part in positional], **options)
        plan.verifiers = tuple([verify for _, verify in pending]) if pending else ()
        if plan.results is None:  # PyTorch has no meta function: the kernel's own arrays say it
            plan.results, plan.structure = _describe_arrays(xp, out, len(targets), narrow)
        return out, [values for values, _ in pending]

    return computed


def _kernel(xp: Backend, operator: Operator) -> Callable[..., Any]:
    """Return the function that computes an operator on a backend: its kernel, unchanged or recorded, or a method of the
    backend."""
    spec, backend_kernels = operator.spec, OWN.get(xp)
    if backend_kernels is not None:
        return backend_kernels.get(schema.short_name(operator.base or operator.op), spec.fn)
    if xp.compiles or xp.compound or spec.uncompiled:
        return spec.fn
    if spec.decomposed:
        return Replayed(spec.fn)
    return ReplayedFormula(spec.fn, spec.has_inputs) if is_formula(spec.fn) else spec.fn


def _layout(xp: Backend, plan: Plan) -> Callable[[list[Any]], list[Array]]:
    """Return a function that lays new results out as their storages keep them."""
    # functions that change the layout of each result; None: it is undefined
    layers: list[Callable[[Array], Array] | None] = []

    def laid(new: list[Any]) -> list[Array]:
        assert plan.results is not None
        if len(layers) != len(plan.results):
            layers[:] = [None if r is None else _layer(xp, r) for r in plan.results]
        return [layer(o) for o, layer in zip(new, layers, strict=True) if layer is not None]

    return laid


class _Write(NamedTuple):
    """A tensor that an operator writes."""

    tensor: int  # the number of the tensor among those of the call
    array: int  # the first one of them with the same storage, whose array is written
    geometry: Geometry
    steps: list[Step] | None  # steps that are written one after another; None: all at once


def _writing(
    xp: Backend,
    plan: Plan,
    computed: Computation,
    laid: Callable[[list[Any]], list[Array]],
    writes: Sequence[_Write],
    references: Sequence[StorageReference],
    array_count: int,
    rounded: np.dtype | None,
) -> Callable[..., tuple[Array, ...]]:
    """Return the program of an operator that writes some of its tensors, in several rounds where they overlap."""
    rounds = max((len(w.steps) for w in writes if w.steps is not None), default=1)
    has_several = len(writes) > 1

    def writing(*flat: Any) -> tuple[Array, ...]:
        arrays, inputs = list(flat[:array_count]), flat[array_count:]
        mutable = xp.mutable
        if rounds > 1 and mutable:  # seen when all rounds are done
            for w in writes:
                arrays[w.array] = xp.copy(arrays[w.array])
        out, checked_values, new = None, [], []
        for turn in range(rounds):
            out, checked_values = computed(arrays, inputs)
            values = []
            for w, value in zip(writes, flatten(out), strict=False):
                if value is not None and turn < (1 if w.steps is None else len(w.steps)):
                    if rounded is not None and w.geometry.dtype != rounded:
                        value = xp.astype(value, rounded)
                    value = convert(xp, value, dtypes.of_values(w.geometry.dtype))
                    if xp.shape(value) != w.geometry.shape:
                        value = xp.broadcast_to(value, w.geometry.shape)
                    if has_several and mutable:  # a write may be repeated
                        value = xp.ensure_owned(value)
                    values.append((w, None if w.steps is None else w.steps[turn], value))
            if turn == rounds - 1:  # operations that may fail come before the first write
                new = laid(list(flatten(out))[len(writes) :])
            plan.writing = mutable
            if has_several and mutable:
                all_or_none(partial(_put, xp, references, arrays), values)
            else:
                for value in values:
                    _put(xp, references, arrays, value)
        if rounds > 1 and mutable:
            all_or_none(lambda w: xp.assign(flat[w.array], arrays[w.array]), writes)
            arrays[:array_count] = flat[:array_count]
        return (*[arrays[w.array] for w in writes], *new, *checked_values)

    return writing


def _put(
    xp: Backend, refs: Sequence[StorageReference], arrays: list[Array], value: tuple[_Write, Step | None, Array]
) -> None:
    (tensor, at, geometry, _), step, array = value
    if step is None:
        arrays[at] = refs[tensor].write(xp, arrays[at], array, arrays)
    else:
        arrays[at] = write_step(xp, arrays[at], geometry, array, step)


class Conversion(NamedTuple):
    """The dtypes to which an operand is converted, one after the other; in one step where it is read as a scalar."""

    common: np.dtype
    compute: np.dtype
    as_scalar: bool

    def __call__(self, xp: Backend, v: Any) -> Array:
        is_rounded = self.common != self.compute
        if is_rounded and self.as_scalar and self.common is not dtypes.complex32:
            is_rounded = xp.is_array(v) and math.prod(xp.shape(v)) != 1
        return promoted(xp, v, self.common if is_rounded else self.compute, self.compute)


def _fetches(
    outline: Outline, geometries: Sequence[Geometry], scalar: str
) -> tuple[list[Fetch], list[tuple[str, Fetch]]]:
    """Return functions for the kernel's arguments, by position and by name. The sizes of `geometries` do not matter.
    `scalar`: the operand that may be read as one (`Spec.scalar_operand`)."""
    operand_dtypes = [geometry.dtype for geometry in geometries]

    def fetch(name: str) -> Fetch:
        is_rounded = outline.common != outline.dtype and name == "alpha"
        is_converted = name in outline.promoted or is_rounded
        to = Conversion(outline.common, outline.dtype, name == scalar) if is_converted else None
        a = outline.arguments[name]
        if not isinstance(a, list):  # lists of ATen do not nest
            return _fetch(a, operand_dtypes, to)
        parts = [_fetch(x, operand_dtypes, to) for x in a]
        return lambda *operands: [part(*operands) for part in parts]

    return [fetch(n) for n in outline.positional], [(n, fetch(n)) for n in outline.named]


def _fetch(a: Any, element_dtypes: Sequence[np.dtype], to: Conversion | None) -> Fetch:
    """`element_dtypes`: of the call's tensors; `to`: how this argument is converted."""
    if isinstance(a, Leaf):
        at = a.index
        if not a.tensor:
            return lambda xp, refs, arrays, inputs: _operand(xp, inputs[at], to)
        if to is None:
            return lambda xp, refs, arrays, inputs: refs[at].read(xp, arrays[at], arrays)
        conversion = to
        dtype = element_dtypes[at]
        is_converted = dtype != to.common or dtypes.of_values(dtype) != to.compute

        def read(xp: Backend, refs: Sequence[StorageReference], arrays: Sequence[Any], inputs: Sequence[Any]) -> Array:
            array = refs[at].read(xp, arrays[at], arrays)
            return conversion(xp, array) if is_converted or xp.compound else array

        return read
    if isinstance(a, torch.dtype):
        a = numpy_dtype(a)
    if to is not None and isinstance(a, int | float | complex):
        return lambda xp, refs, arrays, inputs: _operand(xp, a, to)
    return lambda xp, refs, arrays, inputs: a


def _operand(xp: Backend, v: Any, to: Conversion | None) -> Any:
    if to is not None:
        return to(xp, v)
    return xp.asarray(v) if isinstance(v, np.ndarray) else v


def promoted(xp: Backend, v: Any, common: np.dtype, compute: np.dtype) -> Array:
    """Return a number or an array in the dtype `compute`, rounded to `common` before."""
    if common == compute:
        return as_dtype(xp, v, compute)
    if common is dtypes.complex32:
        return halves.rounded(xp, as_dtype(xp, v, compute))
    if isinstance(v, int | float | complex | np.ndarray):
        rounded = np.asarray(v).astype(common)
        return as_dtype(xp, rounded if isinstance(v, np.ndarray) else rounded.astype(compute).item(), compute)
    return convert(xp, v if xp.dtype_of(v) == common else convert(xp, v, common), compute)


def _writes(
    operator: Operator, outline: Outline, geometries: Sequence[Geometry], first: tuple[int, ...]
) -> list[_Write]:
    """Return the writes of an operator. `first`: for each tensor of the call, the first one with the same storage."""
    hidden = operator.writes if operator.kind == "out" else ()
    read = [leaf for name, a in outline.arguments.items() if name not in hidden for leaf in leaves(a) if leaf.tensor]
    read_storages = {first[leaf.index] for leaf in read}
    writes = []
    for leaf in outline.targets:
        target, at = geometries[leaf.index], first[leaf.index]
        other_geometries = [g for k, g in enumerate(geometries) if k != leaf.index]
        # if PyTorch computes in another dtype, it reads all elements first
        converts = operator.spec.promotion is not None and outline.dtype != dtypes.of_values(target.dtype)
        steps = write_steps(operator, target, other_geometries, at in read_storages and not converts)
        writes.append(_Write(leaf.index, at, target, steps))
    return writes


_MOST = float(dtypes.finfo(dtypes.float32).max)
_EXACT = frozenset({dtypes.float32, dtypes.float64})  # dtypes for which a Python number is rounded once, as in NumPy


def as_dtype(xp: Backend, v: Any, dtype: np.dtype) -> Array:
    """Return a number, a host array or an array of the backend as an array of a dtype; integers wrap as in C. A number
    is a constant that a compiler sees (an exponent of 3 is two products), where a host array is an input."""
    if v.__class__ is float and dtype in _EXACT and not _MOST < abs(v) < math.inf:
        return xp.full((), v, dtype)
    if isinstance(v, int | float | complex | np.ndarray):
        host = np.asarray(v)
        if dtype == dtypes.float8_e4m3fn:
            host = np.clip(host.real.astype(np.float32), -_MOST_OF_E4M3, _MOST_OF_E4M3)
        host = host.astype(dtype)
        return xp.asarray(host) if isinstance(v, np.ndarray) else xp.full((), host.item(), dtype)
    return convert(xp, v, dtype)


_MOST_OF_E4M3 = float(dtypes.finfo(dtypes.float8_e4m3fn).max)


def convert(xp: Backend, x: Array, dtype: np.dtype) -> Array:
    """Return `x` converted as PyTorch converts: of all dtypes float8_e4m3fn alone saturates, at 448, infinity included,
    where the hub, JAX and TensorFlow give NaN beyond 464. NaN stays NaN."""
    source = xp.dtype_of(x)
    if dtype != dtypes.float8_e4m3fn or source in (dtype, dtypes.bool_):
        return xp.astype(x, dtype)
    real = xp.real(x) if dtypes.is_complex(source) else x
    wide = real if xp.dtype_of(real) == dtypes.float64 else xp.astype(real, dtypes.float32)
    return xp.astype(xp.clip(wide, -_MOST_OF_E4M3, _MOST_OF_E4M3), dtype)


def random_key(xp: Backend, words: Any) -> Array:
    """Return the Threefry key of a draw: its seed, with its number folded in."""
    if isinstance(words, np.ndarray):
        if xp.is_array(words):
            return words if words.shape == (2,) else xp.fold_in(words[:2], words[2], words[3])
        words = xp.asarray(words)
    if xp.shape(words) == (2,):  # it is one
        return words
    high, low = (xp.reshape(xp.slice(words, (i,), (i + 1,), (1,)), ()) for i in (2, 3))
    return xp.fold_in(xp.slice(words, (0,), (2,), (1,)), high, low)


def has_halves(operand_dtypes: Sequence[np.dtype]) -> bool:
    """Return True if complex results of operands of these dtypes are complex32."""
    return dtypes.complex32 in operand_dtypes and not any(map(dtypes.is_complex, operand_dtypes))


def meta_of(xp: Backend, narrow: bool, a: Any) -> Any:
    """Return a meta tensor like an array; like one of complex32 values if `narrow` and it is complex."""
    if not xp.is_array(a):
        return a
    dtype = FROM_NUMPY[xp.dtype_of(a)]
    return torch.empty(xp.shape(a), dtype=torch.complex32 if narrow and dtype.is_complex else dtype, device="meta")


def _describe_arrays(xp: Backend, out: Any, written_count: int, narrow: bool) -> tuple[list[Result], Structure | None]:
    parts = list(out) if isinstance(out, list | tuple) else [out]
    meta = partial(map_nested, partial(meta_of, xp, narrow))
    if not isinstance(out, list | tuple):
        results, structure = describe(meta(out))
    else:
        kind = tuple if isinstance(out, tuple) else list
        results, structure = describe(kind(meta(x) for x in parts[written_count:]))
    return results or [], structure


def lay_out(xp: Backend, array: Array, result: Result) -> Array:
    """Return a result as its new storage keeps it: of the right dtype, its axes ordered by falling stride, zeros in
    gaps."""
    assert result is not None
    return _layer(xp, result)(array)


def _layer(xp: Backend, result: tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]) -> Callable[[Array], Array]:
    dtype, size, stride, nbytes = result
    to = numpy_dtype(dtype)
    conjugate = result.__class__ is Conjugate
    if dtype is torch.complex32:
        return _layer_of_halves(xp, size, stride, nbytes, conjugate)
    order: tuple[int, ...] = ()
    dense, moves = True, False
    if stride != contiguous_strides(size):
        dense = is_dense(size, stride)
        order = tuple(sorted(range(len(size)), key=lambda d: (-stride[d], d)))
        moves = order != tuple(range(len(size))) and math.prod(size) > 1

    def layer(array: Array) -> Array:
        array = convert(xp, array, to)
        if conjugate:
            array = xp.conj(array)
        if xp.shape(array) != size:
            array = xp.broadcast_to(array, size)
        if not dense:
            zeros = xp.zeros((nbytes // to.itemsize,), to)
            return write(xp, zeros, Geometry(size, stride, 0, to), array)
        if moves:
            array = xp.permute_dims(array, order)
        return xp.ensure_owned(array) if xp.mutable else array

    return layer


def _layer_of_halves(xp: Backend, size: Shape, stride: Shape, nbytes: int, conjugate: bool) -> Callable[[Array], Array]:
    pairs = in_halves(Geometry(size, stride, 0, dtypes.complex32))
    lay_halves_out = _layer(xp, (torch.float16, pairs.shape, pairs.strides, nbytes))

    def layer(array: Array) -> Array:
        array = xp.broadcast_to(xp.astype(array, dtypes.complex64), size)
        return lay_halves_out(to_halves(xp, xp.conj(array) if conjugate else array))

    return layer
