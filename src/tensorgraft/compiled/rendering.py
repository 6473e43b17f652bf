"""An explanation as text."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from tensorgraft.compiled.explained_call import ExplainedCall, Input

_MOST_ROWS = 10
_LARGE = 1024  # bytes of a constant that is worth a row of its own


def as_text(explanation: ExplainedCall, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(rendered(explanation))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def rendered(e: ExplainedCall) -> Group:
    parts: list[Any] = [Text(f"{e.name} on {e.backend}", style="bold")]
    parts.append(table("program", _program(e)))
    if e.traces:
        parts.append(_history(e))
    parts.append(_inputs(e))
    if constants := [i for i in e.inputs if i.kind == "constant" and i.bytes >= _LARGE]:
        parts.append(_constants(constants))
    if e.fallbacks:
        rows = [(f.name, str(f.calls), f.place) for f in e.fallbacks]
        note = "without a kernel: on the CPU eagerly, refused by tg.jit"
        parts.append(table(note, rows, "operator", Column("calls", justify="right"), "line"))
    if e.program.collectives:
        parts.append(_collectives(e))
    if e.program.costs:
        parts.append(_operators(e))
    return Group(*parts)


def _program(e: ExplainedCall) -> list[tuple[str, str]]:
    p, m = e.program, e.program.memory
    most = ", ".join(f"{name} {n}" for name, n in list(p.primitives.items())[:_MOST_ROWS])
    rows = [("operations", f"{sum(p.primitives.values()):,} ({most})")]
    if p.compiled_operations is not None:
        rows.append(("optimised", f"{p.compiled_operations:,} instructions, {p.kernels:,} run one by one"))
    flops = sum(c.flops for c in p.costs.values())
    counted = [quantity(flops)] if p.costs else []
    if p.flops is not None:
        counted.append(f"the backend counts {quantity(p.flops)}")
    if p.unbounded:
        counted.append(f"{p.unbounded} loops of unknown length counted once")
    if counted:
        rows.append(("FLOPs", "; ".join(counted)))
    if p.bytes is not None:
        rows.append(("memory traffic", size(p.bytes)))
    if m is not None:
        parts = f"arguments {size(m.arguments)}, results {size(m.outputs)} ({size(m.alias)} in place)"
        rows.append(
            (
                "memory of a device" if _is_spread(e) else "memory",
                f"peak {size(m.peak)}: {parts}, temporary {size(m.temporary)}",
            )
        )
    n, kept_bytes = e.kept_for_backward
    if n:
        rows.append(("kept for backward", f"{n} tensors, {size(kept_bytes)}"))
    compiled = "" if p.compile_seconds is None else f", compile {p.compile_seconds:.2f} s"
    rows.append(("time", f"trace {e.trace_seconds:.2f} s{compiled}"))
    return rows


def _history(e: ExplainedCall) -> Group:
    rows = []
    for n, traced in enumerate(e.traces, start=1):
        rows.append((str(n), f"{traced.operations:,}", "\n".join(traced.reasons) or "the first call"))
    count = f"{len(rows)} trace{'s' * (len(rows) != 1)} in {e.calls} call{'s' * (e.calls != 1)}"
    count += f", {e.cold} of them uncompiled" if e.cold else ""
    if e.switched:
        count += f", switched to what another thread had compiled at call {', '.join(map(str, e.switched))}"
    this_call = f"would be traced: {'; '.join(e.this_call)}" if e.this_call else "runs what is compiled"
    this_call = f"runs uncompiled: {e.waits}" if e.waits else this_call
    return table(f"{count}; this call {this_call}", rows, "trace", Column("operations", justify="right"), "because")


def _is_spread(e: ExplainedCall) -> bool:
    return any(0 < i.bytes_each < i.bytes for i in e.inputs)


def _inputs(e: ExplainedCall) -> Group:
    kinds: dict[str, list[Input]] = {}
    for entry in e.inputs:
        kinds.setdefault(entry.kind, []).append(entry)
    rows = []
    on_mesh = _is_spread(e)
    for kind, inputs in kinds.items():
        writes = sum(i.written for i in inputs)
        donated = sum(i.donated for i in inputs)
        listed = [] if kind == "constant" else list(dict.fromkeys(i.name for i in inputs if i.name))
        names = ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
        nbytes = [size(sum(i.bytes_each or i.bytes for i in inputs))] if on_mesh else []
        total = size(sum(i.bytes for i in inputs))
        rows.append((kind, str(len(inputs)), total, *nbytes, f"{writes} ({donated})" if writes else "", names))
    columns = ("arrays", "bytes", *["of a device"] * on_mesh, "written (in place)")
    right = [Column(name, justify="right") for name in columns]
    return table("inputs", rows, "kind", *right, Column("names", overflow="fold"))


def _constants(constants: list[Input]) -> Group:
    constants = sorted(constants, key=lambda i: -i.bytes)
    rows = [(size(i.bytes), f"{i.dtype} {i.shape}", i.name) for i in constants[:_MOST_ROWS]]
    return table("the largest constants", rows, Column("bytes", justify="right"), "array", "first read")


def _collectives(e: ExplainedCall) -> Group:
    """Return a table of the communication between devices, by the line that causes it."""
    total: dict[tuple[str, str, str, str], list[int]] = {}
    for collective, use in e.exchanges():
        name = "" if use is None else f"{use.name} (backward)" if use.backward else use.name
        key = (collective.kind, name, use.place if use else "", _short(use.source) if use else "")
        total.setdefault(key, []).append(collective.bytes)
    busiest = sorted(total.items(), key=lambda item: -sum(item[1]))
    rows = [(kind, str(len(n)), size(sum(n)), *rest) for (kind, *rest), n in busiest[:_MOST_ROWS]]
    total_bytes = size(sum(c.bytes for c in e.program.collectives))
    right = [Column(name, justify="right") for name in ("times", "bytes")]
    title = f"between devices: {len(e.program.collectives)} collectives, {total_bytes} on each"
    return table(title, rows, "kind", *right, "operator", "line", "")


def _operators(e: ExplainedCall) -> Group:
    total = sum(o.flops for o in e.operators) or 1.0
    rows = []
    for o in [o for o in e.operators if o.flops or o.bytes][:_MOST_ROWS]:
        name = f"{o.name} (backward)" if o.backward else o.name
        share = f"{o.flops / total:.0%}"
        rows.append((name, str(o.calls), quantity(o.flops), share, size(o.bytes), o.place, _short(o.source)))
    # If lines are too long, names and sources are shortened, but no figures or positions.
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)][1:6] or [0] * 5
    names = (("calls", "right"), ("FLOPs", "right"), ("share", "right"), ("bytes", "right"), ("line", "left"))
    right = [
        Column(name, justify=side, no_wrap=True, min_width=max(width, len(name)))  # type: ignore[arg-type]
        for (name, side), width in zip(names, widths, strict=True)
    ]
    right.append(Column("", no_wrap=True))
    return table("the most expensive operators, by FLOPs", rows, Column("operator", no_wrap=True), *right)


def table(title: str, rows: Iterable[tuple[str, ...]], *columns: Any) -> Group:
    table = Table(*columns, box=None, pad_edge=False)
    if not columns:
        table.show_header = False
        table.add_column(no_wrap=True)
        table.add_column()
    for row in rows:
        table.add_row(*map(escape, row))
    return Group("", Text(title, style="bold"), Padding(table, (0, 0, 0, 2)))


def _short(source: str, most: int = 40) -> str:
    return source if len(source) <= most else source[: most - 3] + "..."


def size(n: float) -> str:
    """Return a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def quantity(n: float) -> str:
    """Return a large number, in words of three digits."""
    for unit in ("", " k", " M", " G", " T"):
        if n < 1000:
            return f"{n:.0f}{unit}" if not unit else f"{n:.2f}{unit}"
        n /= 1000
    return f"{n:.2f} P"
