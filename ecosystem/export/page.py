"""`docs/export_programs.md` out of the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ecosystem.export.programs import all_programs
from ecosystem.export.row import FORMATS, OURS, PEERS, Row

PAGE = Path(__file__).parents[2] / "docs" / "export_programs.md"
HEAD = """# Programs as files

Made by `python -m ecosystem.export`; not written by hand. Forty programs with random weights, most of them networks of
other libraries, are exported to each format and run in its runtime, with the example (a batch of 2, a length of 6) and
at a batch of 5 and a length of 11. *Written* counts files, *equal* those whose results differ from the program's by
1e-5 of the largest entry at most, *open* those that leave open the batch, and of sequences the length, and are equal
there, too. Other exporters are called as their documentation says, with open sizes, and if that fails without. A row
without an end in 240 seconds, on whatever the machine had left, counts as a file that was not written.

"""


def page(rows: Sequence[Row]) -> str:
    """Return the page."""
    names = [p.name for p in all_programs()]
    known = {row.key: row for row in rows if row.program in names}
    parts = [HEAD + _states(known), _summary(known), _programs(names, known), _failures(names, known)]
    return "\n".join(parts)


def _states(known: dict[tuple[str, str, str], Row]) -> str:
    """Return the commits at which rows were made: a row is kept until it is run again."""
    counts = Counter(row.state or "earlier ones" for row in known.values())
    states = ", ".join(f"{state} ({count})" for state, count in counts.most_common())
    return f"Commits of tensorgraft at which the rows were made, and how many at each: {states}.\n"


def _summary(known: dict[tuple[str, str, str], Row]) -> str:
    lines = ["| format | exporter | programs | written | equal | open | bytes | CPU s |"]
    lines.append("| --- | --- | --: | --: | --: | --: | --: | --: |")
    for form in FORMATS:
        for exporter in [OURS, *dict.fromkeys(name for (_, f), name in PEERS.items() if f == form)]:
            rows = [row for row in known.values() if row.format == form and row.exporter == exporter]
            if not rows:
                continue
            lines.append(_counts(form, exporter, rows))
            if exporter != OURS:  # the same programs
                ours = [known[row.program, form, OURS] for row in rows if (row.program, form, OURS) in known]
                lines.append(_counts("", f"{OURS} on these", ours))
    return "\n".join(lines) + "\n"


def _counts(form: str, exporter: str, rows: Sequence[Row]) -> str:
    written = [row for row in rows if row.written]
    size, seconds = (f"{sum(getattr(row, n) for row in written):,.0f}" for n in ("size", "seconds"))
    counts = len(rows), len(written), sum(row.equal for row in rows), sum(row.dynamic for row in rows)
    return f"| {form} | {exporter} | {' | '.join(map(str, counts))} | {size} | {seconds} |"


def _programs(names: Sequence[str], known: dict[tuple[str, str, str], Row]) -> str:
    lines = ["## Programs\n", "Tensorgraft's files; what the other exporter's is follows in brackets.\n"]
    lines += [f"| library | program | {' | '.join(FORMATS)} |", f"| --- | --- |{' --- |' * len(FORMATS)}"]
    libraries = {p.name: p.library for p in all_programs()}
    for name in names:
        cells = []
        for form in FORMATS:
            peers = [row for (program, f, e), row in known.items() if (program, f) == (name, form) and e != OURS]
            ours = known.get((name, form, OURS))
            peer = f" ({_verdict(peers[0])})" if peers else ""
            cells.append((_verdict(ours) if ours else "not run") + peer)
        lines.append(f"| {libraries[name]} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _verdict(row: Row) -> str:
    if row.dynamic:
        return "open"
    if row.equal:
        return f"{', '.join(row.open)} open" if row.open else "fixed"
    if row.reason.startswith("no end"):
        return "no end"
    return "differs" if row.written and row.apart is not None else "does not run" if row.written else "refused"


def _failures(names: Sequence[str], known: dict[tuple[str, str, str], Row]) -> str:
    lines = ["## Reasons\n", "| program | format | exporter | | reason |", "| --- | --- | --- | --- | --- |"]
    rows = sorted(known.values(), key=lambda r: (r.exporter != OURS, FORMATS.index(r.format), names.index(r.program)))
    for row in rows:
        if not row.dynamic:
            reason = (
                row.reason or f"results differ by {row.apart or 0.0:.0e}, at another size {row.apart_open or 0.0:.0e}"
            )
            text = reason.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")[:180]
            lines.append(f"| {row.program} | {row.format} | {row.exporter} | {_verdict(row)} | {text} |")
    return "\n".join(lines) + "\n"
