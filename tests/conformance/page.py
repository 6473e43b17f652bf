"""Tables out of the results of conformance runs; `python -m tests.conformance.page` writes docs/conformance.md."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.conformance.cases import fallback_reasons, known, known_failures

ROOT = Path(__file__).parents[2]
Results = dict[str, dict[str, Any]]  # `Case.key` -> outcome, fallbacks, message

HEADER = """# Conformance

PyTorch's own databases, run on each backend against CPU PyTorch: operators (OpInfo), modules (ModuleInfo) and
optimizers. Values, dtypes, shapes, which object is returned and what became of the arguments are compared; a case is
one operator in one mode and dtype, and passes when all its samples do (three of each). Made by `make conformance`,
which takes about ten minutes for NumPy and an hour for JAX on two cores. A dash: not run; where a backend has fewer
cases than another, a sample was run (`--of-thousand`).

| mode | what is compared |
| --- | --- |
| forward, method, inplace | the function, the method, the in-place method and operator |
| out | `out=` of the right size, empty, of another size (with its warning), not contiguous |
| strides | strides of the results, also from arguments in another memory order (channels_last) |
| error | the type of the exception for arguments that are refused |
| backward, gradgrad | gradients, and gradients of gradients |
| forward_ad, jvp, jacrev, vmap | forward-mode derivatives and `torch.func` |
"""


def counts(results: Results) -> dict[tuple[str, str, str], Counter[str]]:
    """(database, mode, dtype) -> how many cases had which outcome."""
    found: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for key, result in results.items():
        database, mode, dtype, _ = key.split("/", 3)
        found[database, mode, dtype][result["outcome"]] += 1
    return found


def share(outcomes: Counter[str]) -> str:
    """Passed of those that the CPU can do."""
    total = sum(n for outcome, n in outcomes.items() if outcome != "skipped")
    return f"{outcomes['passed']}/{total}" if total else "-"


def table(results: Results) -> str:
    """For a terminal."""
    lines = [f"{'database':<11}{'mode':<12}{'dtype':<10} passed"]
    for (database, mode, dtype), outcomes in sorted(counts(results).items()):
        lines.append(f"{database:<11}{mode:<12}{dtype:<10} {share(outcomes)}")
    fell = fallbacks(results)
    lines.append(f"on the CPU for want of a kernel: {len(fell)} operators")
    reasons = fallback_reasons()
    for name, where in sorted(fell.items()):
        lines.append(f"  aten::{name} (in {', '.join(sorted(where)[:3])}): {reasons.get(name, 'no reason')}")
    return "\n".join(lines)


def fallbacks(results: Results) -> dict[str, set[str]]:
    """Operator -> the database's entries in which it ran on the CPU."""
    found: dict[str, set[str]] = defaultdict(set)
    for key, result in results.items():
        for name in result["fallbacks"]:
            found[name].add(key.split("/", 3)[3])
    return found


def markdown(by_backend: dict[str, Results]) -> str:
    tables = {backend: counts(results) for backend, results in by_backend.items()}
    rows = sorted(set().union(*tables.values()))
    lines = [HEADER, f"| database | mode | dtype | {' | '.join(tables)} |", "| --- " * (3 + len(tables)) + "|"]
    for row in rows:
        lines.append(f"| {' | '.join(row)} | {' | '.join(share(t.get(row, Counter())) for t in tables.values())} |")
    lines += ["", "## On the CPU for want of a kernel", ""]
    fell: dict[str, set[str]] = defaultdict(set)
    for results in by_backend.values():
        for name, where in fallbacks(results).items():
            fell[name] |= where
    reasons = fallback_reasons()
    for name, where in sorted(fell.items()):
        lines.append(f"- `aten::{name}`, in {', '.join(sorted(where)[:4])}: {reasons.get(name, 'no reason')}")
    if not fell:
        lines.append("None.")
    for backend, results in by_backend.items():
        failed = sorted(key for key, r in results.items() if r["outcome"] in ("failed", "xfailed"))
        failures = known_failures(backend)
        lines += ["", f"## What fails on {backend}", ""]
        lines += [f"- {key}: {known(key, failures) or 'no reason'}" for key in failed] or ["Nothing."]
    return "\n".join(lines) + "\n"


def main() -> None:
    files = sorted((ROOT / "out" / "conformance").glob("*.json"))
    path = ROOT / "docs" / "conformance.md"
    path.write_text(markdown({f.stem: json.loads(f.read_text()) for f in files}))
    print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
