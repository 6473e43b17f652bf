"""`tg.port` and `tg.diff`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping as AbstractMapping
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorgraft.codegen.program import error_line
from tensorgraft.porting.comparison import ProgramAtSizes, common, compared, compared_gradients, gradients, outputs
from tensorgraft.porting.computed import of_parameters
from tensorgraft.porting.graph import ProgramGraph
from tensorgraft.porting.mapping import Entry, Mapping
from tensorgraft.porting.matching import UNKNOWN, Matcher
from tensorgraft.porting.proof import unproved
from tensorgraft.porting.recognition import Origin, Recognizer
from tensorgraft.porting.report import PortReport, report_of
from tensorgraft.transforms.source import source_program


@dataclass
class Port:
    """The result of `tg.port`: the `mapping`, and the `report` that proves it or names the first difference."""

    mapping: Mapping
    report: PortReport
    weights: dict[str, np.ndarray]  # the target's arrays, from those that the source has now

    @property
    def ok(self) -> bool:
        """Every parameter is known, and both programs compute the same."""
        return not self.mapping.unmatched and self.report.ok

    def convert(
        self, checkpoint: Any, path: str | os.PathLike[str] | None = None, *, dtype: Any = None
    ) -> dict[str, np.ndarray] | None:
        """See `Mapping.convert`."""
        return self.mapping.convert(checkpoint, path, dtype=dtype)

    def source(self) -> str:
        """See `Mapping.source`."""
        return self.mapping.source()

    def __str__(self) -> str:
        return f"{self.mapping}\n\n{self.report}"


def port(
    source: Any,
    target: Any,
    *example: Any,
    target_example: Sequence[Any] | None = None,
    hints: AbstractMapping[str, str] | None = None,
    seed: int = 0,
) -> Port:
    """Find which parameters of one network are which of another, and whether both compute the same.

    Both are traced and run on the host in float64, the source with random weights, and what corresponds is found from
    the values: names break ties, and prove nothing. The networks stay as they are.

    Args:
        source, target: programs with weights of any framework, as for `tg.source`; a function of JAX that takes its
            weights may be given as (function, weights).
        *example: what both are called with: arrays of the source's framework, or NumPy arrays.
        target_example: what the target is called with, where that is something else: the same image in another layout.
        hints: names of target parameters -> names of source parameters, to be tried first.
        seed: of the random weights.

    Returns: a `Port`, with `mapping`, `report`, `convert(checkpoint)` and `source()`.

    Raises:
        TypeError: for programs that are not known here.
        ValueError: for hints whose names do not exist, and programs without parameters.
        NotImplementedError: for loops whose length depends on values.
    """
    of_source = _traced(source, example, folds=True)
    of_target = _traced(target, tuple(example if target_example is None else target_example), folds=True)
    for name, graph in ((of_source.trace.name, of_source.graph), (of_target.trace.name, of_target.graph)):
        if not graph.parameters:
            raise ValueError(f"{name} has no parameters: tg.diff compares programs without looking for them")
    hints = dict(hints or {})
    for kind, names, traced in (("target", hints.keys(), of_target), ("source", hints.values(), of_source)):
        if strange := sorted(set(names) - set(traced.names)):
            raise ValueError(f"hints name {', '.join(strange)}, which the {kind} has not")
    weights = random_weights(of_source, seed)
    matcher = Matcher(of_source.graph, of_target.graph, weights, hints)
    matcher.run()
    report = report_of(matcher)
    mapping = _mapping(matcher, of_source, of_target)
    _compare(report, mapping, of_source, of_target, weights)
    report.settle()
    _require_proof(report, mapping, matcher)
    mapping = of_parameters(mapping, of_source, of_target)
    known = {n: of_source.weights[n] for n in of_source.names}
    now = {e.target: e.expression(known.__getitem__) for e in mapping if e.expression is not None}
    return Port(mapping, report, now)


def diff(a: Any, b: Any, *example: Any, target_example: Sequence[Any] | None = None) -> PortReport:
    """Compare two programs that have their weights, value by value, and name the first difference.

    `a` and `b` are programs of any framework, as for `tg.source`; of one framework as well: before and after a
    refactoring. `target_example` is what `b` is called with, where that is something else. Raises as `tg.port`.
    """
    of_source = _traced(a, example)
    of_target = _traced(b, tuple(example if target_example is None else target_example))
    weights, known = ({n: t.weights[n].astype(np.float64) for n in t.graph.parameters} for t in (of_source, of_target))
    matcher = Matcher(of_source.graph, of_target.graph, weights)
    matcher.know(known)
    matcher.run()
    report = report_of(matcher)
    for sizes, first, second in _sizes(report, of_source, of_target):
        report.comparisons.append(compared("results", sizes, outputs(first, weights), outputs(second, known)))
    report.settle()
    return report


def _traced(program: Any, example: tuple[Any, ...], folds: bool = False) -> ProgramAtSizes:
    takes_weights = isinstance(program, tuple) and len(program) == 2 and callable(program[0])
    if takes_weights:
        program, example = program[0], (program[1], *example)
    args = tuple(_array_for(program, x) for x in example)
    return ProgramAtSizes(source_program(program, (args, {})), args, takes_weights, folds)


def _array_for(program: Any, x: Any) -> Any:
    """A NumPy array as an array of PyTorch, for a module of PyTorch: other frameworks take NumPy's."""
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(program, torch.nn.Module)
    if torch is not None and is_module and not isinstance(x, torch.Tensor) and hasattr(x, "__array__"):
        return torch.from_numpy(np.array(x))
    if not is_module and torch is not None and isinstance(x, torch.Tensor):
        return x.detach().cpu().numpy()
    return x


def random_weights(traced: ProgramAtSizes, seed: int) -> dict[str, np.ndarray]:
    """Weights of the size that the program's have, which tell its arrays and their elements apart: positive where the
    program's are (variances, scales), since it may take their roots."""
    rng = np.random.default_rng(seed)
    out = {}
    for name in traced.names:
        w = traced.weights[name].astype(np.float64)
        if w.size and np.min(w) >= 0 and np.max(w) > 0:
            out[name] = rng.uniform(0.5, 1.5, w.shape) * np.mean(w)
        else:
            out[name] = rng.standard_normal(w.shape) * (np.std(w) or 0.1)
    return traced.with_computed(out)


def _mapping(matcher: Matcher, of_source: ProgramAtSizes, of_target: ProgramAtSizes) -> Mapping:
    recognize = Recognizer({n: p.shape for n, p in of_source.graph.parameters.items()})
    entries: dict[str, Entry] = {}
    idle: list[str] = []
    for name, node in of_target.graph.parameters.items():
        if not node.uses and node not in of_target.graph.outputs:
            idle.append(name)
            continue
        labels = matcher.origins[name].reshape(node.shape)
        expression, extended = None, 0
        if not (labels == UNKNOWN).all():
            expression, extended = recognize(
                Origin(labels, matcher.offsets.get(name), matcher.added.get(name, ()), matcher.negative.get(name))
            )
        note = f"{extended} of {node.size} elements are beyond the example" if extended else ""
        if expression is None:
            unknown = int((labels == UNKNOWN).sum())
            note = f"{unknown} of {node.size} elements unknown"
            if unknown == node.size:
                note = f"nothing that is computed with it is known of {matcher.source.name}"
        entries[name] = Entry(name, node.shape, expression, note)
    used = {s for e in entries.values() for s in e.sources}
    unused = [n for n in of_source.graph.parameters if n not in used]
    ignored = [n for n in {**of_source.trace.buffers, **of_source.trace.constants} if n not in of_source.names]
    names = matcher.source.name, matcher.target.name
    return Mapping(entries, unused, ignored, of_source.aliases, of_target.aliases, *names, idle)


def _require_proof(report: PortReport, mapping: Mapping, matcher: Matcher) -> None:
    """Take back the entries that no value proves, unless the results do."""
    if report.ok and report.comparisons:
        return
    found = unproved(matcher)
    if not report.differences and any(not c.ok for c in report.comparisons if c.what == "results"):  # of all of them
        found = set(mapping.entries)
    doubtful = sorted(n for n in found if n in mapping.entries and mapping.entries[n].expression is not None)
    for name in doubtful:
        entry = mapping.entries[name]
        if matcher.hints.get(name) in entry.sources:
            mapping.entries[name] = replace(entry, note="by a hint, not proved")
        else:
            mapping.entries[name] = replace(entry, expression=None, note=f"not proved: perhaps {entry.steps}")
    if doubtful:
        report.notes.append(f"{len(doubtful)} parameters are not proved: what they lead to differs, without a reason")


def _compare(
    report: PortReport,
    mapping: Mapping,
    of_source: ProgramAtSizes,
    of_target: ProgramAtSizes,
    weights: AbstractMapping[str, np.ndarray],
) -> None:
    """Add the results of both programs, where every weight is known, and their gradients."""
    if mapping.unmatched:
        report.notes.append("results are not compared: parameters are unmatched")
        return
    known = {e.target: e.expression(weights.__getitem__).astype(np.float64) for e in mapping if e.expression}
    for sizes, first, second in _sizes(report, of_source, of_target):
        report.comparisons.append(compared("results", sizes, outputs(first, weights), outputs(second, known)))
    try:
        expressions = {e.target: e.expression for e in mapping}
        runs = [(of_source.graph, weights), (of_target.graph, known)]
        results = common(*(outputs(graph, parameters) for graph, parameters in runs))
        found = [gradients(graph, w, which) for (graph, w), which in zip(runs, results, strict=True)]
    except NotImplementedError as error:
        report.notes.append(f"gradients are not compared: {error_line(error)}")
        return
    report.comparisons.append(compared_gradients(expressions, *found))


def _sizes(
    report: PortReport, of_source: ProgramAtSizes, of_target: ProgramAtSizes
) -> list[tuple[str, ProgramGraph, ProgramGraph]]:
    """Both graphs at the example's size, and with one more in the batch."""
    found = [("as the example", of_source.graph, of_target.graph)]
    try:
        other = [t.with_batch(1) for t in (of_source, of_target)]
    except Exception as error:  # what a program raises at another size is its own
        report.notes.append(f"another batch is not compared: {error_line(error)}")
        return found
    if other[0] is not None and other[1] is not None:
        found.append((f"batch of {other[0][1]}", other[0][0], other[1][0]))
    return found
