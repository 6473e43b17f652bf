"""The cost of a jaxpr: operations by primitive and by label, and XLA's analysis of the compiled program."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from tensorgraft.hub.analysis import Analysis, Collective, Cost, Memory

# These move values, or make them out of nothing.
_FREE = re.compile(
    "(?:broadcast_in_dim|reshape|transpose|squeeze|expand_dims|slice|dynamic_slice|dynamic_update_slice|concatenate|pad"
    "|gather|scatter|rev|copy|copy_p|convert_element_type|bitcast_convert_type|iota|split|device_put"
    "|optimization_barrier)$"
)
_LABEL = re.compile(r"tg:(\S+?)(?:/|$)")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%\S+ = \S.*? ([a-z][a-z0-9\-]*)\(", re.MULTILINE)
_NO_KERNEL = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})


def label_scope(label: str) -> Any:
    return jax.named_scope(f"tg:{label}")


def analyse(jaxpr: Jaxpr, lowered: Any) -> Analysis:
    """Analyse a jaxpr and the `jax.stages.Lowered` of it, which is compiled here."""
    primitives: Counter[str] = Counter()
    costs: dict[str, Cost] = {}
    analysis = Analysis(primitives, costs, _first_uses(jaxpr))
    _count(jaxpr, "", 1, analysis)
    analysis.primitives = dict(primitives.most_common())
    start = time.perf_counter()
    compiled = lowered.compile()
    analysis.compile_seconds = time.perf_counter() - start
    cost = compiled.cost_analysis() or {}
    analysis.flops, analysis.bytes = cost.get("flops"), cost.get("bytes accessed")
    stats = compiled.memory_analysis()
    if stats is not None:
        analysis.memory = Memory(
            stats.argument_size_in_bytes,
            stats.output_size_in_bytes,
            stats.alias_size_in_bytes,
            stats.temp_size_in_bytes,
            stats.peak_memory_in_bytes,
        )
    text = compiled.as_text()
    if text:
        analysis.compiled_operations, analysis.kernels = _instructions(text)
        analysis.collectives = collectives(text)
    return analysis


_COLLECTIVE = re.compile(
    r"^\s+(?:ROOT )?%\S+ = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|"
    r"collective-broadcast)(?:-start)?\((.*)$",
    re.MULTILINE,
)
_SHAPE = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


def collectives(text: str) -> list[Collective]:
    """Return the collectives of an HLO module, in its order."""
    exchanges = []
    for results, kind, rest in _COLLECTIVE.findall(text):
        size = 0
        for dtype, extents in _SHAPE.findall(results):
            bits = _BITS.search(dtype)
            itemsize = max(int(bits[0]) if bits else 8, 8) // 8
            size += itemsize * math.prod(int(n) for n in extents.split(",") if n)
        named = re.search(r'op_name="([^"]*)"', rest)
        labels = _LABEL.findall(named[1]) if named else []
        exchanges.append(Collective(kind, size, labels[-1] if labels else "", _group(rest)))
    return exchanges


_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]*)\}")
_NUMBERED = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
_COUNTED = re.compile(rf"replica_groups=\[([\d,]+)\]<={_NUMBERED}")
_AXES = re.compile(rf"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({_NUMBERED}\))? \{{([^}}]*)\}}")
_AXIS = re.compile(r"'(\w+)'=(\d+)")


def _group(attributes: str) -> tuple[int, ...]:
    """Return the first group of devices among which a collective is, in any of the ways in which HLO writes it: each
    device, `[groups, size]<=[extents]T(permutation)` of all, or axes of a mesh; () where it is another one."""
    if (listed := _LISTED.search(attributes)) is not None:
        return _numbers(listed[1])
    if (counted := _COUNTED.search(attributes)) is not None:
        groups = _grid(counted[2], counted[3]).reshape(_numbers(counted[1]))
        return tuple(groups[0].ravel().tolist())
    if (axes := _AXES.search(attributes)) is not None:
        extents = {name: int(n) for name, n in _AXIS.findall(axes[1])}
        named = re.findall(r"'(\w+)'", axes[4])
        if ":" not in axes[4] and all(name in extents for name in named):  # parts of axes have a colon
            shape = tuple(extents.values())
            grid = _grid(axes[2] or ",".join(map(str, shape)), axes[3]).reshape(shape)
            return tuple(grid[tuple(slice(None) if n in named else 0 for n in extents)].ravel().tolist())
    return ()


def _grid(extents: str, permutation: str | None) -> np.ndarray:
    shape = _numbers(extents)
    ids = np.arange(math.prod(shape)).reshape(shape)
    return ids.transpose(_numbers(permutation)) if permutation else ids


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


def _instructions(text: str) -> tuple[int, int]:
    """Return (instructions of an HLO module, those outside of fusions that do something)."""
    total = kernels = 0
    for computation in re.split(r"\n(?=\S)", text):
        instructions = [op for op in _INSTRUCTION.findall(computation) if op not in _NO_KERNEL]
        total += len(instructions)
        if not re.match(r"%?(?:fused_|wrapped_|region_|parallel_)", computation):
            kernels += len(instructions)
    return total, kernels


# ---- the jaxpr -------------------------------------------------------------------------------------------------------


def _label(eqn: Any, outer: str) -> str:
    labels = _LABEL.findall(str(eqn.source_info.name_stack))
    return labels[-1] if labels else outer


def _inner(eqn: Any) -> Iterator[tuple[Jaxpr, int, bool]]:
    """Yield the programs inside an operation, how often each runs, and whether that is a guess."""
    name, params = eqn.primitive.name, eqn.params
    times, unknown = (params["length"], False) if name == "scan" else (1, name == "while")
    for value in params.values():
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, ClosedJaxpr):
                yield part.jaxpr, times, unknown
            elif isinstance(part, Jaxpr):
                yield part, times, unknown


# A function that is the argument of another operation (of a reduction, a scatter) is part of what that one costs.
_LEAVES = re.compile(r"reduce|scatter|sort|cumul|cum|select_and|custom_root")


def _count(jaxpr: Jaxpr, outer: str, times: int, analysis: Analysis) -> None:
    for eqn in jaxpr.eqns:
        name, label = eqn.primitive.name, _label(eqn, outer)
        bodies = [] if _LEAVES.match(name) else list(_inner(eqn))
        analysis.primitives[name] = analysis.primitives.get(name, 0) + 1
        for body, n, unknown in bodies:
            analysis.unbounded += unknown
            _count(body, label, times * n, analysis)
        if not bodies:
            analysis.costs.setdefault(label, Cost()).add(times, times * _flops(eqn), times * _bytes(eqn))


def _flops(eqn: Any) -> float:
    name = eqn.primitive.name
    out = [math.prod(v.aval.shape) for v in eqn.outvars if hasattr(v.aval, "shape")]
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2.0 * out[0] * math.prod(eqn.invars[0].aval.shape[d] for d in contracted)
    if name == "conv_general_dilated":
        kernel, numbers = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"]
        return 2.0 * out[0] * math.prod(kernel) / kernel[numbers.rhs_spec[0]]
    if _FREE.match(name):
        return 0.0
    largest = max((math.prod(v.aval.shape) for v in eqn.invars if hasattr(v.aval, "shape")), default=0)
    if name.startswith(("reduce_window", "select_and")):
        return float(sum(out) * math.prod(eqn.params.get("window_dimensions", ())))
    return float(max([largest, *out]))


def _bytes(eqn: Any) -> float:
    avals = {id(v): v.aval for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal)}
    return float(sum(math.prod(a.shape) * a.dtype.itemsize for a in avals.values() if hasattr(a, "shape")))


def _first_uses(jaxpr: Jaxpr) -> list[str | None]:
    first: dict[Any, str] = {}
    for eqn in jaxpr.eqns:
        label = _label(eqn, "")
        for v in eqn.invars:
            if not isinstance(v, Literal):
                first.setdefault(v, label)
    return [first.get(v) for v in jaxpr.constvars]
