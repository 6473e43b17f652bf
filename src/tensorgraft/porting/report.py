"""`PortReport`: the proof that two programs compute the same, value by value, or where they do not."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorgraft.porting.matching import Matcher
from tensorgraft.porting.reasons import Difference, differences
from tensorgraft.porting.values import TOLERANCE, relative_difference

_SKIPPED = ("input", "reshape", "permute_dims", "broadcast_to")


@dataclass(frozen=True)
class Pair:
    """Values of both programs that correspond."""

    source_place: str
    target_place: str
    operation: str  # the target's
    shape: tuple[int, ...]
    difference: float  # the largest, relative to the largest value
    ok: bool

    @property
    def verdict(self) -> str:
        return "equal to rounding" if self.ok else "differs"


@dataclass(frozen=True)
class Comparison:
    """Results of the whole programs, or gradients, at one size."""

    what: str
    sizes: str
    difference: float
    limit: float
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.difference <= self.limit

    def __str__(self) -> str:
        verdict = "equal" if self.ok else f"DIFFERS{self.detail and ': ' + self.detail}"
        return f"{self.what:<10} {self.sizes:<28} {self.difference:.1e} (limit {self.limit:.0e})  {verdict}"


@dataclass
class PortReport:
    """The comparisons that were made. `print(report)` shows the differences, or all that is equal where there are none.

    Values are computed in float64 from float32 weights and constants, so that what differs by more than `TOLERANCE`
    (3e-7 of the largest) differs by more than rounding.
    """

    source: str
    target: str
    pairs: list[Pair] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """All that corresponds is equal, and so are the results."""
        return not self.differences and all(c.ok for c in self.comparisons)

    @property
    def first_difference(self) -> Difference | None:
        return self.differences[0] if self.differences else None

    def settle(self) -> None:
        """Drop the differences where all results are equal: such values are steps on another way, and become notes."""
        if self.comparisons and all(c.difference <= TOLERANCE for c in self.comparisons):
            self.notes += [f"computed in another way: {d.source_place} | {d.target_place}" for d in self.differences]
            self.differences = []
            self.pairs = [p for p in self.pairs if p.ok]

    def __str__(self) -> str:
        lines = [f"{self.source} | {self.target}: {len(self.pairs)} pairs of values"]
        lines += [f"  {c}" for c in self.comparisons]
        for k, d in enumerate(self.differences):
            lines.append(f"  {'first difference' if not k else 'then'}: {d}")
        lines += [f"  note: {n}" for n in self.notes]
        return "\n".join(lines)

    def table(self) -> str:
        """Every pair, with the lines of both programs."""
        rows = [(p.source_place, p.target_place, p.operation, f"{p.difference:.0e}", p.verdict) for p in self.pairs]
        rows.insert(0, (self.source, self.target, "operation", "difference", "verdict"))
        widths = [max(len(r[k]) for r in rows) for k in range(4)]
        return "\n".join("  ".join(f"{x:<{w}}" for x, w in zip(r, [*widths, 0], strict=True)).rstrip() for r in rows)


def report_of(matcher: Matcher) -> PortReport:
    """The pairs and differences that a search has found."""
    report = PortReport(matcher.source.name, matcher.target.name)
    report.pairs = list(_pairs(matcher))
    report.differences = differences(matcher)
    return report


def _pairs(matcher: Matcher) -> list[Pair]:
    forced = {d.target: d for d in matcher.divergences}
    pairs: dict[tuple[str, str, str], Pair] = {}
    for node in matcher.target.nodes:
        if not node.dynamic or node.op in _SKIPPED:
            continue
        other = forced[node].source if node in forced else None
        if other is not None:
            try:
                value, of_source = matcher.target_values.compute(node), matcher.source_values(other)
            except ValueError:  # something before is not known
                continue
            far = relative_difference(of_source, value) if of_source.shape == value.shape else float("inf")
            pair = Pair(other.place, node.place, node.op, node.shape, far, ok=False)
        elif node in matcher.class_of and node not in forced:
            positions = matcher.positions(node)
            if positions is None:
                continue
            value_class = matcher.class_of[node]
            other = next((m for m in value_class.members if m.op not in _SKIPPED), value_class.members[0])
            of_source = matcher.source_values(value_class.reference).ravel()[positions.ravel()]
            far = matcher.rounding.get(node, relative_difference(of_source, matcher.target_values(node).ravel()))
            pair = Pair(other.place, node.place, node.op, node.shape, far, far <= TOLERANCE)
        else:
            continue
        key = (pair.source_place, pair.target_place, f"{pair.operation}{pair.shape}{pair.ok}")  # one row for a loop
        pairs.pop(key, None)
        pairs[key] = pair
    return list(pairs.values())
