"""Cells: a raw operation with one choice of its dtypes, out of its samples and of what TensorFlow says of it.

Which dtypes an operation takes is what its kernels for the CPU were registered for; a sample of other dtypes is
converted, and TensorFlow is asked: what it refuses is no cell. Beside the sample as it is, a cell may be `empty` (no
rows), `scalar` (no axes), `broadcast`, or have values at the `ends` of its dtype's range.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry
from tests.frontends.tensorflow.dtypes import DTYPES, Combination, converted, plain, quantised, same_kind
from tests.frontends.tensorflow.samples import BINARY, GRADIENTS, INTEGERS, SPECIAL, UNARY, Sample
from tests.frontends.tensorflow.samples_of_areas import Case
from tests.frontends.tensorflow.samples_of_programs import PROGRAMS, SAID, Program
from tests.frontends.tensorflow.samples_of_quantized import AREAS, PLAIN, QuantisedCase

_MOST = 48  # combinations of dtypes of an operation; of more, each dtype of each attribute occurs
_SAMPLES = 6  # of an operation, for each dtype
# dtypes that TensorFlow has and that do not work: the shape function reads eight bytes of two; the process ends
_BROKEN = {"ArgMax": ("Tidx", ("int16",)), "ArgMin": ("Tidx", ("int16",)), "SplitV": ("Tlen", ("int8",))}
# whose other operands say how many rows there are; or kernels read what was never written
_AS_SAMPLED = re.compile(
    r".*(Backprop|Pool.*Grad).*|RaggedTensorToTensor|Inplace.*|(Ragged|Sparse)Bincount|BlockLSTM.*|SplitV|Quantized.*"
)
# shapes, places or sorted values are their operands, or they divide: a trap of the processor's at the ends of a range
_NO_ENDS = {"RaggedRange", "DataFormatDimMap", "LowerBound", "UpperBound", "Softmax", "LogSoftmax", "L2Loss"}
_NO_ENDS |= {"Range", "BroadcastArgs", "BroadcastGradientArgs", "ConcatOffset", "LeftShift", "RightShift", "Pow"}
_NO_ENDS |= {"Div", "FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod", "RealDiv", "Reciprocal", "Inv"}
_REAL = {"complex64": "float32", "complex128": "float64"}
ELEMENTWISE = {*UNARY, *BINARY, *GRADIENTS}


class Cell(NamedTuple):
    op: str
    dtypes: tuple[tuple[str, str], ...]
    variant: str
    sample: Typed | TypedInGraph | Program

    def __str__(self) -> str:
        return f"{self.op}[{','.join(d for _, d in self.dtypes)}]{'' if self.variant == 'plain' else self.variant}"


class Typed(Case):
    """A sample whose plain integers are quantised ones where they say so, results too."""

    __slots__ = ()

    def call(self, flat: list[Any]) -> list[Any]:
        rows = [v for x in self.operands for v in _listed(x)]
        return [plain(y) for y in super().call([quantised(x, like) for x, like in zip(flat, rows, strict=True)])]


class TypedInGraph(QuantisedCase):
    """One of oneDNN's, which a graph alone has."""

    __slots__ = ()

    def call(self, flat: list[Any]) -> list[Any]:
        return [plain(y) for y in super().call(flat)]


# ---- which dtypes ----------------------------------------------------------------------------------------------------


def combinations(op: str) -> list[dict[str, str]]:
    """Of dtypes, for which there are kernels."""
    if op in SAID:
        attribute, dtypes = SAID[op]
        return [{attribute: dtype} for dtype in dtypes]
    attributes = {
        a.name: [tf.as_dtype(t).name for t in a.allowed_values.list.type] or DTYPES
        for a in op_def_registry.get(op).attr
        if a.type == "type"
    }
    found: dict[tuple[str, ...], None] = {}
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        if kernel.device_type != "CPU" or kernel.label:
            continue
        said = {c.name: [tf.as_dtype(t).name for t in c.allowed_values.list.type] for c in kernel.constraint}
        choices = [[d for d in said.get(name) or any_of if d in DTYPES] for name, any_of in attributes.items()]
        found |= dict.fromkeys(itertools.product(*choices))
    name, broken = _BROKEN.get(op, ("", ()))
    rows = [row for row in found if dict(zip(attributes, row, strict=True)).get(name) not in broken]
    if op == "SparseAdd":  # whose kernels read a threshold of the values' own precision
        rows = [row for row in rows if row[1] == _REAL.get(row[0], row[0])]
    rows.sort(key=lambda row: [DTYPES.index(d) for d in row])
    return [dict(zip(attributes, row, strict=True)) for row in _covering(rows)]


def _covering(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """All of them; of very many, for each dtype of the first attribute some, others in turn."""
    if len(rows) <= _MOST:
        return list(rows)
    chosen: list[tuple[str, ...]] = []
    for i, (_, each) in enumerate(itertools.groupby(rows, key=lambda row: row[0])):
        group = list(each)
        step = max(1, len(group) * len(set(next(zip(*rows, strict=True)))) // (2 * _MOST))
        chosen += group[i % step :: step] if len(group) > step else group
    return chosen


# ---- operands of them ------------------------------------------------------------------------------------------------


def _arguments(sample: Sample) -> list[Any]:
    """The operation's own word on each operand."""
    listed = list(op_def_registry.get(sample.op).input_arg)
    said = {a.name: a for a in listed}
    names = list(inspect.signature(getattr(tf.raw_ops, sample.op)).parameters)[: len(sample.operands)]
    return [said.get(name, listed[min(i, len(listed) - 1)]) for i, name in enumerate(names)]


def _main(op: str) -> str:
    """The attribute that is the dtype of the numbers, not of shapes and places."""
    first: dict[str, int] = {}
    for argument in op_def_registry.get(op).input_arg:
        if argument.type_attr:
            first.setdefault(argument.type_attr, len({row[argument.type_attr] for row in combinations(op)}))
    return max(first, key=lambda name: first[name], default="")


def _own_dtypes(sample: Sample) -> dict[str, str]:
    own = {}
    for argument, x in zip(_arguments(sample), sample.operands, strict=True):
        first = _listed(x)[0]
        if argument.type_attr:
            own[argument.type_attr] = getattr(first, "quantised", "") or np.asarray(first).dtype.name
    return own


def _is_complex(dtype: str) -> bool:
    return dtype.startswith("complex")


def _listed(x: Any) -> list[Any]:
    return x if isinstance(x, list) else [x]


def _mapped(x: Any, change: Any) -> Any:
    return [change(np.asarray(v)) for v in x] if isinstance(x, list) else change(np.asarray(x))


def typed(sample: Sample, chosen: Combination) -> Typed | TypedInGraph:
    """The sample with other dtypes."""
    operands = []
    for argument, x in zip(_arguments(sample), sample.operands, strict=True):
        to = chosen[argument.type_attr] if argument.type_attr else tf.as_dtype(argument.type).name
        operands.append(_mapped(x, lambda v, to=to: converted(v, to, sample.op.startswith("MaxPool"))))
    bound = {a.type_attr for a in op_def_registry.get(sample.op).input_arg}
    attributes = {k: v for k, v in sample.attributes.items() if k not in chosen}
    attributes |= {k: getattr(tf, v) for k, v in chosen.items() if k not in bound}
    kind = TypedInGraph if isinstance(sample, QuantisedCase) else Typed
    return kind(sample.op, tuple(operands), attributes)


def _changed(sample: Any, places: Sequence[int], change: Any) -> Any:
    operands = list(sample.operands)
    for i in places:
        operands[i] = _mapped(operands[i], lambda v: same_kind(change(v), v))
    return sample._replace(operands=tuple(operands))


def _variants(sample: Any, main: str, dtype: str) -> Iterator[tuple[str, Any]]:
    if _AS_SAMPLED.fullmatch(sample.op):
        return
    data = [i for i, a in enumerate(_arguments(sample)) if a.type_attr == main]
    first = _listed(sample.operands[data[0]])[0]
    rows = first.shape[:1]
    if rows and rows != (0,):
        yield "empty", _changed(sample, data, lambda v: v[:0] if v.shape[:1] == rows else v)
    if first.ndim:
        yield "scalar", _changed(sample, data, lambda v: v.reshape(-1)[:1].reshape(()) if v.size else v)
        if len(data) > 1:
            yield "broadcast", _changed(sample, data[:1], lambda v: v.reshape(-1)[:1].reshape((1,) * v.ndim))
    if sample.op in _NO_ENDS or dtype in ("bool", *PLAIN) or _is_complex(dtype):
        return
    if sample.op in ELEMENTWISE:
        yield "ends", _at_ends(sample, data, dtype)
    elif dtype in INTEGERS:
        top = np.iinfo(dtype).max
        yield "ends", _changed(sample, data, lambda v: v * v.dtype.type(top // 2) if v.dtype.name == dtype else v)


def _at_ends(sample: Any, data: Sequence[int], dtype: str) -> Any:
    """Each with each."""
    some = SPECIAL.astype(tf.as_dtype(dtype).as_numpy_dtype)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        some = np.asarray([info.min, info.min + 1, info.max, info.max - 1, info.max // 2, 3, 1, 0], dtype)
    operands = list(sample.operands)
    for k, i in enumerate(data):
        operands[i] = np.repeat(some, some.size) if k == 0 and len(data) > 1 else np.tile(some, some.size if k else 1)
    return sample._replace(operands=tuple(operands))


# ---- all of them -----------------------------------------------------------------------------------------------------


@functools.cache
def samples() -> dict[str, list[Sample]]:
    """By operation."""
    found: dict[str, list[Sample]] = {}
    for make in AREAS.values():
        for sample in make():
            found.setdefault(sample.op, []).append(sample)
    return found


def operations() -> list[str]:
    return sorted({*samples(), *PROGRAMS})


def cells(op: str) -> list[Cell]:
    """Of an operation that has samples."""
    with np.errstate(all="ignore"):  # numbers that a dtype has not
        return list(_cells(op))


def _cells(op: str) -> Iterator[Cell]:
    if op in PROGRAMS:
        for chosen in combinations(op):
            try:
                operands, fn = PROGRAMS[op](chosen)
            except tf.errors.InvalidArgumentError:  # no variable of this dtype
                continue
            yield Cell(op, tuple(chosen.items()), "plain", Program(op, tuple(operands), fn))
        return
    some, main, met = samples()[op], _main(op), set()
    for chosen in combinations(op):
        own = [s for s in some if all(chosen.get(k) == v for k, v in _own_dtypes(s).items())]
        dtypes, nearest = tuple(chosen.items()), (own or some)[0]
        sample = typed(nearest, chosen)
        yield Cell(op, dtypes, "plain", sample)
        if chosen.get(main) in met:
            continue
        met.add(chosen.get(main))
        others = [s for s in some if s is not nearest]
        if any(map(_is_complex, chosen.values())):  # whose arithmetic with what is not finite is no kernel's promise
            others = [s for s in (own or others) if s is not nearest]
            others = [s for s in others if all(np.isfinite(v).all() for x in s.operands for v in _listed(x))]
        for i, other in enumerate(others[:: max(1, len(others) // _SAMPLES)]):
            yield Cell(op, dtypes, f"sample{i + 1}", typed(other, chosen))
        if main:
            for variant, changed in _variants(sample, main, chosen[main]):
                yield Cell(op, dtypes, variant, changed)
