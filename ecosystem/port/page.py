"""`docs/port_pairs.md` out of what was judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ecosystem.port.judge import PairOutcome, PlantedOutcome

PAGE = Path(__file__).parents[2] / "docs" / "port_pairs.md"
HEAD = """# Networks carried over

Made by `python -m ecosystem.port`; not written by hand. Both networks of a pair are written by others, of several
packages; their weights are random. `tg.port` finds the mapping without hints.

## Pairs

*mapped* counts parameters of the target of which the source's are known. *table* is the package whose own conversion
the mapping is compared with, or "written" for one that was written for this page. *results* is the largest difference
of the results, relative to the largest value, at two sizes. *time* is CPU seconds of `tg.port`.

| pair | mapped | as the table | results | time | what is special |
| --- | --: | --- | --- | --: | --- |
"""
DIFFERENT = """
## Pairs that differ

These networks are known not to compute the same; *found* is the first difference that the report names.

| pair | known | found | where |
| --- | --- | --- | --- |
"""
PLANTED = """
## Planted differences

Six networks, each written in two frameworks. In the second a line computes something else; `tg.diff` is to name the
line and the reason.

| network | change | line | reason | found |
| --- | --- | --- | --- | --- |
"""
EQUAL = """
## Equal programs

The same networks without a difference, or with a line that computes the same in another way.

| network | line | called equal |
| --- | --- | --- |
"""


def page(pairs: Sequence[PairOutcome], planted: Sequence[PlantedOutcome]) -> str:
    """Return the page."""
    alike, other = [o for o in pairs if not o.expected], [o for o in pairs if o.expected]
    changed, equal = [o for o in planted if o.reason], [o for o in planted if not o.reason]
    parts = [HEAD, *map(_pair, alike), _count(sum(o.passed for o in alike), len(alike), "are whole and right")]
    parts += [DIFFERENT, *map(_different, other), _count(sum(o.passed for o in other), len(other), "are named")]
    parts += [PLANTED, *map(_planted, changed)]
    parts += [_count(sum(o.line for o in changed), len(changed), "have their line named"), "  \n"]
    parts += [_count(sum(o.found == o.reason for o in changed), len(changed), "have their reason named").lstrip()]
    parts += [EQUAL, *(f"| {o.network} | {o.change or 'as it is'} | {_said(o)} |\n" for o in equal)]
    return "".join(parts)


def _pair(o: PairOutcome) -> str:
    if o.error:
        return f"| {o.name} | | | {_cell(o.error)} | | {o.traps} |\n"
    mapped = f"{o.parameters - len(o.unmatched)} of {o.parameters}"
    table = (o.table or "written") if not o.wrong else f"other: {', '.join(o.wrong[:3])}"
    results = ", ".join(f"{d:.0e}" for d in o.apart) or f"unmatched: {', '.join(o.unmatched[:3])}"
    named = f"; first difference: {o.first}" if o.first else ""
    return f"| {o.name} | {mapped} | {_cell(table)} | {_cell(results)}{named} | {o.seconds:.1f} s | {o.traps} |\n"


def _different(o: PairOutcome) -> str:
    return f"| {o.name} | {o.expected} | {o.first or _cell(o.error) or 'nothing'} | {_cell(o.places)} |\n"


def _planted(o: PlantedOutcome) -> str:
    line = "yes" if o.line else _cell(o.place) or "no"
    found = o.found or _cell(o.error) or ("called equal" if o.called_equal else "")
    return f"| {o.network} | {o.change} | {line} | {o.reason} | {found} |\n"


def _said(o: PlantedOutcome) -> str:
    return _cell(o.error) or ("yes" if o.called_equal else f"no: {o.found or 'unknown'}, {_cell(o.place)}")


def _count(found: int, of: int, what: str) -> str:
    return f"\n{found} of {of} {what}.\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
