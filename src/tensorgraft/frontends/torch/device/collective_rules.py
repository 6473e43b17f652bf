"""Rules of the collectives that are computed on the devices, by the names of PyTorch's operators.

A rule passes this process's arrays to a collective of the hub (`GroupCall.compute`) and writes the results into the
output tensors. A result for a single process (`reduce`, `gather`) is computed by all and written by that one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.tensors import cell_of, geometry_of, numpy_dtype, to_array
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.collectives import CollectiveCall, Group, Kind, Reduction
from tensorgraft.storage import write

Tensor = torch.Tensor

_REDUCTIONS: dict[str, Reduction] = {
    "SUM": "sum", "AVG": "avg", "PRODUCT": "product", "MIN": "min", "MAX": "max", "BAND": "and", "BOR": "or",
    "BXOR": "xor",
}  # fmt: skip


class GroupCall:
    """One call of a collective: its arguments by name, and operations with which rules are written."""

    def __init__(self, name: str, bound: dict[str, Any], group: Group, process_group: Any, backend: Backend) -> None:
        self.name, self.bound, self.group, self.xp = name.strip("_"), bound, group, backend
        self.n, self.rank, self._process_group = group.size, dist.get_rank(process_group), process_group

    @property
    def root(self) -> int:
        return int(self.bound["root_rank"])

    def read(self, t: Tensor) -> Array:
        state.touch(cell_of(t))
        return cell_of(t).backend.materialize(to_array(t))

    def put(self, t: Tensor, array: Array) -> None:
        cell = cell_of(t)
        state.touch(cell)
        array = self.xp.reshape(array, tuple(t.shape))
        if cell.backend.records:  # lazy mode, in which the recording continues here
            array = cell.backend.constant(array)
        cell.array = write(cell.backend, cell.array, geometry_of(t), array)

    def compute(self, kind: Kind, arrays: Sequence[Array], root: int = 0) -> tuple[Array, ...]:
        reduction: Reduction = "sum"
        if "reduce_op" in self.bound:
            reduction = self._reduction(arrays)
        return self.xp.collective(CollectiveCall(kind, reduction, root), arrays, self.group)

    def _reduction(self, arrays: Sequence[Array]) -> Reduction:
        op = dist.ReduceOp.RedOpType(self.bound["reduce_op"].op()).name
        reduction = _REDUCTIONS.get(op)
        if reduction is None:
            raise RuntimeError(
                f"{self.name}: ReduceOp.{op} is not supported on the device: multiply, then reduce by SUM"
            )
        for dtype in {self.xp.dtype_of(x) for x in arrays}:
            if dtype.kind == "c" and op not in ("SUM", "AVG"):
                raise RuntimeError(f"{self.name} does not support ReduceOp.{op} on complex tensors")
            if dtype.kind not in "biu" and op in ("BAND", "BOR", "BXOR"):
                raise RuntimeError(f"Cannot use ReduceOp.{op} with non-integral dtype ({self.name} of {dtype})")
            if dtype.kind == "b" and op == "AVG":
                raise RuntimeError(f"{self.name}: ReduceOp.AVG is not supported for bool tensors")
        return reduction

    # ---- lists of arrays -------------------------------------------------------------------------------------------

    def stacked(self, arrays: Sequence[Array]) -> Array:
        return self.xp.concat([self.xp.reshape(a, (1, *self.xp.shape(a))) for a in arrays], axis=0)

    def row(self, x: Array, i: int) -> Array:
        shape = self.xp.shape(x)
        piece = self.xp.slice(x, (i,) + (0,) * (len(shape) - 1), (i + 1, *shape[1:]), (1,) * len(shape))
        return self.xp.reshape(piece, shape[1:])

    def flat(self, x: Array) -> Array:
        return self.xp.reshape(x, (math.prod(self.xp.shape(x)),))

    def check(self, right: bool, holds: str, *tensors: Tensor) -> None:
        if not right:
            raise ValueError(f"{self.name}: {holds}: {', '.join(f'{t.dtype} {list(t.shape)}' for t in tensors)}")


def _are_alike(tensors: Sequence[Tensor]) -> bool:
    return len({(t.dtype, t.shape) for t in tensors}) == 1


# ---- reductions and broadcasts ---------------------------------------------------------------------------------------


def _all_reduce(e: GroupCall) -> None:
    tensors = e.bound["tensors"]
    for t, x in zip(tensors, e.compute("all_reduce", [e.read(t) for t in tensors]), strict=True):
        e.put(t, x)


def _reduce(e: GroupCall) -> None:
    (t,) = e.bound["tensors"]
    (x,) = e.compute("all_reduce", [e.read(t)])
    if e.rank == e.root:
        e.put(t, x)


def _broadcast(e: GroupCall) -> None:
    (t,) = e.bound["tensors"]
    e.put(t, e.compute("broadcast", [e.read(t)], e.root)[0])


# ---- gathers ---------------------------------------------------------------------------------------------------------


def _gather_flat(e: GroupCall, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    for out, t in zip(outputs, inputs, strict=True):
        e.check(out.numel() == e.n * t.numel() and out.dtype == t.dtype, f"an output has {e.n} inputs", out, t)
    for out, x in zip(outputs, e.compute("all_gather", [e.read(t) for t in inputs]), strict=True):
        e.put(out, x)


def _gather_lists(e: GroupCall, lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
    """Gather each input into a list of outputs, one for each process."""
    for outputs, t in zip(lists, inputs, strict=True):
        e.check(len(outputs) == e.n, f"{len(outputs)} outputs, and {e.n} processes", t)
        output = outputs[e.rank]
        e.check(
            (output.dtype, output.shape) == (t.dtype, t.shape), "the output for an input is of its shape", output, t
        )
        if _are_alike(outputs):
            (rows,) = e.compute("all_gather", [e.read(t)])
            for i, out in enumerate(outputs):
                e.put(out, e.row(rows, i))
        else:  # every process knows all shapes
            for i, out in enumerate(outputs):
                e.put(out, e.compute("broadcast", [e.read(t if i == e.rank else out)], i)[0])


def _gather(e: GroupCall) -> None:
    (t,) = e.bound["input_tensors"]
    outputs = e.bound["output_tensors"][0] if e.rank == e.root else []
    if e.rank == e.root:
        e.check(
            len(outputs) == e.n and _are_alike([*outputs, t]), f"{e.n} outputs are of the input's shape", t, *outputs
        )
    (rows,) = e.compute("all_gather", [e.read(t)])
    for i, out in enumerate(outputs):
        e.put(out, e.row(rows, i))


# ---- scatters --------------------------------------------------------------------------------------------------------


def _reduce_scatter_flat(e: GroupCall, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    for out, t in zip(outputs, inputs, strict=True):
        e.check(t.numel() == e.n * out.numel() and out.dtype == t.dtype, f"an input has {e.n} outputs", out, t)
    arrays = [e.xp.reshape(e.read(t), (e.n, *out.shape)) for out, t in zip(outputs, inputs, strict=True)]
    for out, x in zip(outputs, e.compute("reduce_scatter", arrays), strict=True):
        e.put(out, x)


def _reduce_scatter(e: GroupCall) -> None:
    (out,), (inputs,) = e.bound["output_tensors"], e.bound["input_tensors"]
    e.check(len(inputs) == e.n, f"{len(inputs)} inputs, and {e.n} processes", *inputs)
    own_input = inputs[e.rank]
    e.check(
        (own_input.dtype, own_input.shape) == (out.dtype, out.shape),
        "the output is of the shape of its input",
        out,
        own_input,
    )
    if _are_alike(inputs):
        e.put(out, e.compute("reduce_scatter", [e.stacked([e.read(t) for t in inputs])])[0])
    else:
        e.put(out, e.compute("all_reduce", [e.read(t) for t in inputs])[e.rank])


def _scatter(e: GroupCall) -> None:
    (out,) = e.bound["output_tensors"]
    if e.rank == e.root:
        (inputs,) = e.bound["input_tensors"]
        e.check(
            len(inputs) == e.n and _are_alike([*inputs, out]), f"{e.n} inputs are of the output's shape", out, *inputs
        )
        rows = e.stacked([e.read(t) for t in inputs])
    else:
        rows = e.xp.zeros((e.n, *out.shape), numpy_dtype(out.dtype))
    e.put(out, e.row(e.compute("all_to_all", [rows])[0], e.root))


# ---- all to all ------------------------------------------------------------------------------------------------------


def _all_to_all_single(e: GroupCall) -> None:
    out, t = e.bound["output"], e.bound["input"]
    to, of = e.bound["input_split_sizes"], e.bound["output_split_sizes"]
    traced = state.now.capture is not None
    if (not to and not of) or (traced and len({*to, *of}) == 1):
        e.check(len(t) % e.n == 0 and t.numel() == out.numel() and t.dtype == out.dtype, f"{e.n} parts", out, t)
        (x,) = e.compute("all_to_all", [e.xp.reshape(e.read(t), (e.n, t.numel() // e.n))])
        e.put(out, x)
        return
    to, of = to or [len(t) // e.n] * e.n, of or [len(out) // e.n] * e.n
    e.check(len(to) == len(of) == e.n and sum(to) == len(t) and sum(of) == len(out), f"split {to} into {of}", t, out)
    wide, row = e.flat(e.read(t)), math.prod(t.shape[1:])
    ends = [sum(to[: i + 1]) * row for i in range(e.n)]
    pieces = [e.xp.slice(wide, (end - n * row,), (end,), (1,)) for n, end in zip(to, ends, strict=True)]
    received = _uneven(e, pieces, [n * row for n in of])
    e.put(out, e.xp.concat(received, axis=0))


def _all_to_all(e: GroupCall) -> None:
    outputs, inputs = e.bound["output_tensors"], e.bound["input_tensors"]
    e.check(len(outputs) == len(inputs) == e.n, f"{e.n} outputs and inputs", *outputs, *inputs)
    if state.now.capture is not None and _are_alike([*outputs, *inputs]):
        (rows,) = e.compute("all_to_all", [e.stacked([e.read(t) for t in inputs])])
        received = [e.row(rows, i) for i in range(e.n)]
    else:
        received = _uneven(e, [e.flat(e.read(t)) for t in inputs], [t.numel() for t in outputs])
    for out, x in zip(outputs, received, strict=True):
        e.put(out, x)


def _uneven(e: GroupCall, pieces: Sequence[Array], sizes: Sequence[int]) -> list[Array]:
    """Exchange pieces of different sizes. They are padded to the size of the largest of all processes, rounded up to a
    power of two, because each width is compiled as a separate program."""
    xp = e.xp
    if state.now.capture is not None:
        raise TracedValueError(
            f"{e.name} with parts of different sizes inside a compiled function, where the largest part of all"
            " processes is unknown. Make the parts equal, or call it outside"
        )
    row_counts = [xp.shape(x)[0] for x in pieces]
    widest = torch.tensor(max(*row_counts, *sizes, 1), device="cpu")
    dist.all_reduce(widest, dist.ReduceOp.MAX, group=e._process_group)
    width = 1 << (int(widest) - 1).bit_length()
    zero = xp.zeros((), xp.dtype_of(pieces[0]))
    rows = [xp.pad(x, zero, [(0, width - n, 0)]) for x, n in zip(pieces, row_counts, strict=True)]
    (received,) = e.compute("all_to_all", [e.stacked(rows)])
    return [xp.slice(e.row(received, i), (0,), (n,), (1,)) for i, n in enumerate(sizes)]


RULES: dict[str, Callable[[GroupCall], None]] = {
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": _all_reduce,
    "reduce_": _reduce,
    "broadcast_": _broadcast,
    "_allgather_base_": lambda e: _gather_flat(e, [e.bound["output_tensor"]], [e.bound["input_tensor"]]),
    "allgather_into_tensor_coalesced_": lambda e: _gather_flat(e, e.bound["outputs"], e.bound["inputs"]),
    "allgather_": lambda e: _gather_lists(e, e.bound["output_tensors"], e.bound["input_tensors"]),
    "allgather_coalesced_": lambda e: _gather_lists(
        e, list(zip(*e.bound["output_lists"], strict=True)), e.bound["input_list"]
    ),
    "gather_": _gather,
    "_reduce_scatter_base_": lambda e: _reduce_scatter_flat(e, [e.bound["output_tensor"]], [e.bound["input_tensor"]]),
    "reduce_scatter_tensor_coalesced_": lambda e: _reduce_scatter_flat(e, e.bound["outputs"], e.bound["inputs"]),
    "reduce_scatter_": _reduce_scatter,
    "scatter_": _scatter,
    "alltoall_base_": _all_to_all_single,
    "alltoall_": _all_to_all,
}
