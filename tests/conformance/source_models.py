"""How many models of a harness `tg.source` writes down, and how good the files are: `make source-conformance`.

The models are those of a folder that is not part of this repository (`--harness`, in it `models/`): its development
cases, in evaluation mode, with the inputs that they have there. Each is converted, and checked, in a process of its
own, so that one that crashes or hangs is a row as the others are. Rows go to `out/conformance/source-TARGET.jsonl`
(what has a row is not run again, but with `--fresh`), files beside them, and counts to `runs/source_models.json`, of
which `python -m tests.conformance.page` makes a part of docs/conformance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "out" / "conformance"
KEPT = Path(__file__).parent / "runs" / "source_models.json"
TARGETS = ("jax", "torch", "tensorflow", "numpy", "array_api")
LIMIT = 600  # seconds of a case
SEED = 20240  # that of the harness


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harness", type=Path, default=ROOT.parent / "shared" / "conformance")
    parser.add_argument("--onto", nargs="+", choices=TARGETS, default=["jax", "torch", "tensorflow", "numpy"])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th case")
    parser.add_argument("--first", type=int, default=0, metavar="I", help="of them, from the I-th on")
    parser.add_argument("--match", default="", help="a regular expression for names of cases")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="also what has a row")
    parser.add_argument("--failed", action="store_true", help="what has a row that says it failed")
    args = parser.parse_args()
    if not (args.harness / "models").is_dir():
        parser.error(f"there are no models in {args.harness}: name the folder by --harness (make: CONFORMANCE=)")
    cases = cases_of(args.harness / "models")
    names = [n for n in list(cases)[args.first :: args.every] if re.search(args.match, n)]
    for onto in args.onto:
        path = RESULTS / f"source-{onto}.jsonl"
        rows = read(path)
        if args.failed:
            todo = [n for n in names if n in rows and not passed(rows[n])]
        else:
            todo = [n for n in names if args.fresh or n not in rows]
        run(cases, todo, onto, path, args.jobs)
        keep(onto, {n: row for n, row in read(path).items() if n in cases}, len(cases))
        print(f"{onto}: {summary(kept()[onto])}", flush=True)
    return 0


def cases_of(models: Path) -> dict[str, Any]:
    """The development cases of the harness that can be built here."""
    warnings.filterwarnings("ignore")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # what a file prints is the reason why it does not run
    import torch
    import transformers.modeling_utils  # noqa: F401  (what every case of its models takes seconds to import)

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    sys.path.insert(0, str(models))
    import cases_timm  # type: ignore[import-not-found]
    import core  # type: ignore[import-not-found]

    there = core.all_cases()
    if not cases_timm.EXTRA.is_dir():
        there = {name: case for name, case in there.items() if case.group != "timm"}
    return dict(there)


def run(cases: dict[str, Any], names: list[str], onto: str, path: Path, jobs: int) -> None:
    """A process for each case, which puts its row into a file of its own; a row for those that end without one, too."""
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    fork = multiprocessing.get_context("fork")
    running: dict[str, tuple[Any, float]] = {}
    left = list(names)
    while left or running:
        while left and len(running) < jobs:
            name = left.pop(0)
            stem = folder / name.replace("/", "__")
            stem.with_suffix(".json").unlink(missing_ok=True)
            process = fork.Process(target=_one, args=(cases[name], onto, stem))
            process.start()
            running[name] = process, time.monotonic()
        time.sleep(0.05)
        for name, (process, began) in list(running.items()):
            late = time.monotonic() - began > LIMIT
            if process.is_alive() and not late:
                continue
            if late and process.is_alive():
                with contextlib.suppress(ProcessLookupError):  # with the process in which the file is run
                    os.killpg(process.pid, signal.SIGKILL)
            process.join()
            del running[name]
            found = folder / f"{name.replace('/', '__')}.json"
            row: dict[str, Any] = {"case": name, "converted": False, "reason": ""}
            if found.exists():
                row = json.loads(found.read_text())
                found.unlink()
            else:
                row["reason"] = f"not done after {LIMIT} s" if late else f"ended with status {process.exitcode}"
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print("ok  " if passed(row) else "FAIL", name, row.get("cpu", "-"), "s", row["reason"][:300], flush=True)


def _one(case: Any, onto: str, stem: Path) -> None:
    """Convert a case; in a process of its own."""
    os.setsid()
    stem.with_suffix(".py").unlink(missing_ok=True)
    row = {"case": case.name, **converted(case, onto, stem)}
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    row["cpu"] = round(sum(u.ru_utime + u.ru_stime for u in used), 1)
    part = stem.with_suffix(".part")
    part.write_text(json.dumps(row))
    part.replace(stem.with_suffix(".json"))


def converted(case: Any, onto: str, stem: Path) -> dict[str, Any]:
    """What became of a case: which of its comparisons hold, None for those that were not made; the reason of the first
    that does not."""
    import torch

    import tensorgraft as tg

    torch.manual_seed(SEED)
    module = case.build().eval()
    try:
        made = tg.source(module, onto=onto, **case.inputs())
    except BaseException as error:  # whatever it is, it is a row
        where = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)][-3:]
        first, _, rest = str(error).strip().partition("\n")  # and the exception that a file ended with
        said = f"{first} ... {rest.splitlines()[-1]}" if "does not run" in first else first
        return {"converted": False, "reason": f"{type(error).__name__}: {said}", "where": where}
    stem.with_suffix(".py").write_text(made.text)
    report, example = made.report, "as the example"
    others = [row for row in report.rows if row.sizes != example]
    wrong = [row for row in report.rows if not row.ok]
    return {
        "converted": True,
        "values": _all(row.ok for row in report.rows if row.what == "results" and row.sizes == example),
        "gradients": _all(row.ok for row in report.rows if row.what == "gradients"),
        "sizes": _all(row.ok for row in others),
        "fixed": [f"{g.title}: {g.reason}"[:200] for g in report.groups if not g.checked_sizes],
        "lines": report.lines,
        "functions": report.functions,
        "notes": report.notes,
        "reason": "; ".join(f"{row.what}, {row.sizes}: {row.detail} ({row.error:.0e})" for row in wrong),
    }


def _all(oks: Any) -> bool | None:
    return all(found) if (found := list(oks)) else None


def passed(row: dict[str, Any]) -> bool:
    """Converted, and nothing differs."""
    return row["converted"] and all(row[what] is not False for what in ("values", "gradients", "sizes"))


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The last row of each case."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["case"]: row for row in map(json.loads, lines)}


def keep(onto: str, rows: dict[str, dict[str, Any]], there: int) -> None:
    """Counts and failures, for the page."""
    every = list(rows.values())
    found = {
        "there": there,
        "run": len(every),
        "converted": sum(row["converted"] for row in every),
        "passed": sum(map(passed, every)),
        **{what: [sum(row.get(what) is ok for row in every) for ok in (True, False)] for what in _COMPARED},
        "lines": sorted(row["lines"] for row in every if row["converted"]),
        "cpu": round(sum(row.get("cpu", 0) for row in every), 1),
        "failed": {name: row["reason"] for name, row in sorted(rows.items()) if not passed(row)},
    }
    before = kept()
    if len(every) >= before.get(onto, found)["run"]:
        KEPT.write_text(json.dumps({**before, onto: found}, indent=1, sort_keys=True) + "\n")


_COMPARED = ("values", "gradients", "sizes")


def kept() -> dict[str, dict[str, Any]]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def summary(found: dict[str, Any]) -> str:
    return f"{found['passed']} of {found['run']} pass ({found['passed'] / max(found['run'], 1):.0%})"


def page() -> str:
    """The section of docs/conformance.md."""
    columns = [
        "onto",
        "models run",
        "of",
        "pass",
        "converted",
        *(f"{what} equal" for what in _COMPARED),
        "lines (median)",
    ]
    lines = [
        "",
        "## Models as source",
        "",
        "[tg.source](source.md) converts PyTorch models (small configurations of transformers, and classic networks),",
        "in evaluation mode. Each file is run in a process in which PyTorch and tensorgraft cannot be imported, and",
        "compared with the model: results (1e-5), gradients (1e-4), results at other sizes of the arguments. Made by",
        "`make source-conformance` with models that are not part of the repository.",
        "",
        f"| {' | '.join(columns)} |",
        "| --- " * len(columns) + "|",
    ]
    every = kept()
    for onto, found in every.items():
        median = found["lines"][len(found["lines"]) // 2] if found["lines"] else "-"
        good = f"{found['passed']} ({found['passed'] / max(found['run'], 1):.0%})"
        compared = [f"{found[what][0]} of {sum(found[what])}" if any(found[what]) else "-" for what in _COMPARED]
        cells = [found["run"], found["there"], good, found["converted"], *compared, median]
        lines.append(f"| {onto} | {' | '.join(map(str, cells))} |")
    for onto, found in every.items():
        lines += ["", f"Failures onto {onto}:", ""]
        reasons: dict[str, list[str]] = {}
        for name, reason in found["failed"].items():
            reasons.setdefault(_plain(reason), []).append(name)
        lines += [f"- {', '.join(names)}: {reason}" for reason, names in sorted(reasons.items())] or ["Nothing."]
    return "\n".join(lines) + "\n" if every else ""


def _plain(reason: str) -> str:
    """One line, without what is of the machine."""
    reason = re.sub(r"/\S*/(?=\w+\.py)", "", reason)
    reason = reason if len(reason) <= 300 else f"{reason[:297]}..."
    return reason.replace("|", "\\|").replace("`", "'")


if __name__ == "__main__":
    sys.exit(main())
