"""`docs/ecosystem.md` out of the results in `out/ecosystem`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ecosystem.functions import PROGRAMS
from ecosystem.outcome import OUT, Outcome, read

PAGE = Path(__file__).parents[1] / "docs" / "ecosystem.md"
HEAD = """# Other people's programs and tests

Made by `make ecosystem`; not written by hand. None of these programs imports tensorgraft.

"""
AREAS = {
    "torch": """## PyTorch scripts

Scripts are run by `python`, and unmodified by `tensorgraft run --on BACKEND --strict-fallbacks`; their output (losses,
results, generated tokens) is compared. *apart* is the largest difference relative to the largest value of its list, at
most 1e-5. *time* is CPU seconds over those of the native run, start-up included, with the program cache as it was,
empty or filled.

""",
    "jax": """## JAX programs

Run by `jax.jit`, and by `tg.graft(function, onto=BACKEND)`, among them gradients and whole training steps. At most 1e-5
in single and 1e-9 in double precision.

""",
    "arrays": """## Programs of any array

Run on NumPy's arrays, and on those of `tensorgraft.array_api`.

""",
}
SUITES = """## Test suites

These are the projects' own tests under `tensorgraft run` with the device as the default one: those that pass on the
CPU with plain PyTorch, a sample selected by a hash of their names, and the same tests natively. *tests* is their CPU
seconds over those of the native run, *process* those of the whole process (start-up, imports and collection included),
and *memory* the additional peak memory of the process. On JAX eager operations are tiered, the default.

| suite | pass natively | on | run | pass | | tests | | process | | memory |
| --- | --: | --- | --: | --: | --: | --: | --: | --: | --: | --: |
"""

NOT_PASSED = "\n\nThose that do not pass, and why:\n\n"
JUDGES = """## Tests of the frameworks themselves

These are the frameworks' own tests, with this library in place of the library that they test: PyTorch's tests that
take a device, on a backend's; its tests of `torch.compile` with `tg.jit`; JAX's, with each compiled function also
grafted onto another framework; tf2jax's of operators, with `tg.graft` as the converter. They are not part of this
repository: they are fetched from Debian's source package, from wheels, and JAX's, which no package contains, from the
checkout that `ECOSYSTEM_JAX` names. *refused* is an error of this library, *wrong* another value, effect or error than
the test expects, *crash* any other exception. Of tens of thousands of tests a fraction is run, also natively. *time*
is CPU seconds of the tests over those of the native run.

| tests | pass natively | on | run | right | | refused | wrong | crash | time |
| --- | --: | --- | --: | --: | --: | --: | --: | --: | --: |
"""
APART = "\nTests of something else, which are not run:\n\n"


def page() -> str:
    """Return the page; of what was not run here, sections and rows stay as they were."""
    sections = [
        _programs(area) if any(OUT.glob(f"programs-{area}-*.jsonl")) else _before(AREAS[area]) for area in AREAS
    ]
    return HEAD + "\n".join([*sections, _suites(), _judges()])


def _before(section: str) -> str:
    """Return the section of the page, as it is, that begins as this one."""
    title = section.partition("\n")[0]
    parts = PAGE.read_text().split("\n## ")[1:] if PAGE.exists() else []
    return next((f"## {part.rstrip()}\n" for part in parts if f"## {part}".startswith(f"{title}\n")), "")


def _kept(section: str) -> tuple[list[str], list[str], list[str]]:
    """Return the rows, the notes and the tests apart of suites that were not run here on a backend."""
    ran = {(r["suite"], r["backend"]) for judge in (True, False) for r in _results(judge)}
    text, _, apart = _before(section).partition(APART)
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and line not in section]
    notes, further = (
        [line for line in lines.splitlines() if line.startswith("- ") and _subject(line) not in ran]
        for lines in (text, apart)
    )
    return [" | ".join(row) for row in rows if (row[0][2:], row[2]) not in ran], notes, further


def _subject(note: str) -> tuple[str, str]:
    """Return the suite and the backend of which a note is."""
    suite, _, rest = note[2:].partition(" on ")
    return suite, re.split("[,:]", rest)[0]


def _programs(area: str) -> str:
    files = sorted(OUT.glob(f"programs-{area}-*.jsonl"))
    backends = [f.stem.rpartition("-")[2] for f in files]
    by_name: dict[str, dict[str, Outcome]] = {}
    for file, backend in zip(files, backends, strict=True):
        for outcome in read(file):
            by_name.setdefault(outcome.name, {})[backend] = outcome
    timed = area == "torch"
    columns = [c for b in backends for c in ((b, "time") if timed else (b,))]
    lines = [f"| program | | {' | '.join(columns)} |", "| --- | --- " + "| --: " * len(columns) + "|"]
    for name, outcomes in by_name.items():
        cells = [c for b in backends for c in _cells(outcomes.get(b), timed)]
        lines.append(f"| {name} | {_about(area, name)} | {' | '.join(cells)} |")
    return AREAS[area] + "\n".join(lines) + "\n"


def _cells(outcome: Outcome | None, timed: bool) -> list[str]:
    if outcome is None:
        return ["-"] * (2 if timed else 1)
    shown = f"{outcome.apart:.0e}" if outcome.apart else "equal"
    if not outcome.passed:
        shown = f"**{outcome.error or shown}**"
    return [shown, f"{outcome.seconds / max(outcome.native, 1e-9):.1f}"] if timed else [shown]


def _about(area: str, name: str) -> str:
    """The program's own first line, at its first case."""
    stem, _, case = name.partition(": ")
    text = (PROGRAMS / area / f"{stem}.py").read_text().partition('"""')[2].partition('"""')[0]
    return " ".join(text.split()) if not case else ""


def _suites() -> str:
    lines, notes, _ = _kept(SUITES)
    for r in _results(judge=False):
        share = f"{100 * r['passed'] / max(r['run'], 1):.1f} %"
        tests = f"{r['seconds'] / max(r['native_seconds'], 1e-9):.1f} | {r['seconds']:.1f} s"
        process = f"{r['whole'] / r['native_whole']:.1f} | {r['whole']:.1f} s"
        memory = f"{(r['peak'] - r['native_peak']) / 1e6:+.0f} MB"
        lines.append(
            f"| {r['suite']} | {r['natively']} | {r['backend']} | {r['run']} | {r['passed']} | {share} | {tests}"
            f" | {process} | {memory} |"
        )
        notes += _notes(r)
    return SUITES + "\n".join(sorted(lines)) + NOT_PASSED + ("\n".join(sorted(notes, key=_subject)) or "None.") + "\n"


def _judges() -> str:
    lines, notes, apart = _kept(JUDGES)
    for r in _results(judge=True):
        share = f"{100 * r['passed'] / max(r['run'], 1):.1f} %"
        kinds = " | ".join(str(r["kinds"].get(kind, 0)) for kind in ("refused", "wrong", "crash"))
        lines.append(
            f"| {r['suite']} | {r['natively']} | {r['backend']} | {r['run']} | {r['passed']} | {share} | {kinds}"
            f" | {r['seconds'] / max(r['native_seconds'], 1e-9):.1f} |"
        )
        notes += _notes(r)
        apart += [f"- {r['suite']} on {r['backend']}, {n}: {reason}" for reason, n in r["apart"].items()]
    what = JUDGES + "\n".join(sorted(lines)) + NOT_PASSED + ("\n".join(sorted(notes, key=_subject)) or "None.") + "\n"
    return what + (APART + "\n".join(apart) + "\n" if apart else "")


def _results(judge: bool) -> Iterator[dict[str, Any]]:
    for file in sorted(OUT.glob("result-*.json")):
        result = json.loads(file.read_text())
        if result["judge"] == judge:
            yield result


def _notes(r: dict[str, Any]) -> list[str]:
    start = f"- {r['suite']} on {r['backend']}"
    notes = [f"{start}, {n}: {reason}" for reason, n in r["reasons"].items()]
    notes += [f"{start}: `{name}`, not explained" for name in r["unexplained"]]
    if r["fallbacks"]:
        notes.append(f"{start}: on the CPU for want of a kernel: {', '.join(r['fallbacks'])}")
    return notes
