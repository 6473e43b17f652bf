"""A program written down: the file, its weights, and how it was checked."""

from __future__ import annotations

import io
import os
import textwrap
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorgraft import files
from tensorgraft.codegen.output import text
from tensorgraft.codegen.output.weights import write_weights
from tensorgraft.codegen.output.writing import SizeError, UnsettledError
from tensorgraft.codegen.program import ExtentNames, SizeGroup, SourceProgram, trace_at_sizes
from tensorgraft.codegen.simplification.expanding import expand
from tensorgraft.codegen.simplification.frame_simplifying import simplify
from tensorgraft.codegen.simplification.tidying import tidy
from tensorgraft.codegen.structure.extracted_functions import functions_of
from tensorgraft.codegen.structure.functions import SourceFunction
from tensorgraft.codegen.structure.size_merging import merge
from tensorgraft.codegen.styles import Style
from tensorgraft.codegen.styles.classes import TwoWaysError
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import SourceTrace, frames
from tensorgraft.codegen.verification import checking
from tensorgraft.codegen.verification.checking import Checked, Row


@dataclass
class SourceReport:
    """A report on a generated file: the sizes that it takes, and how far its results are from those of the program.

    `print(report)` shows a table.
    """

    program: str
    onto: str
    lines: int
    functions: int
    groups: list[SizeGroup]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    def __str__(self) -> str:
        lines = [f"{self.program} in {self.onto}: {self.lines} lines, {self.functions} functions"]
        lines += [str(group) for group in self.groups]
        lines += [str(row) for row in self.rows]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


@dataclass
class GeneratedSource:
    """A program, written down: `text` is the file, `weights` are its arrays by the names that they have in the source
    program, `report` says how good it is."""

    text: str
    weights: dict[str, np.ndarray]
    report: SourceReport
    function: str
    checked: Checked | None = None

    def save(self, path: str | os.PathLike[str], check: bool = False) -> None:
        """Write `path` (`model.py`) and its weights (`model.safetensors`); with `check` also a test (`test_model.py`,
        `model_check.npz`). Raises ValueError if the source was not checked."""
        path = os.fspath(path)
        root, _ = os.path.splitext(path)
        folder, title = os.path.split(root)
        if check and self.checked is None:
            raise ValueError(
                "save(check=True) writes the recorded check, which there is only after tg.source(..., check=True)"
            )
        if self.weights:
            write_weights(self.weights, f"{root}.safetensors")
        if check and self.checked is not None:
            data = io.BytesIO()
            np.savez(data, **self.checked.data)  # type: ignore[arg-type]
            files.write(f"{root}_check.npz", data.getvalue())
            test = text.formatted(self.checked.test(title))
            files.write(os.path.join(folder, f"test_{title}.py"), test.encode())
        files.write(path, self.text.encode())


@dataclass
class Formed:
    """A program in the form of a style, from which its file is written."""

    trace: SourceTrace
    functions: list[SourceFunction]
    style: Style
    header: str
    text: str
    stateful: bool
    random: bool


class Generation:
    """A program that is written for a target, in a style. `dynamic`: search for sizes that may vary. `names`: of the
    extents of the arguments, if not those that the program states."""

    def __init__(
        self,
        program: SourceProgram,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        target: Target,
        style: type[Style],
        dynamic: bool,
        names: ExtentNames | None = None,
    ) -> None:
        self._program, self._args, self._kwargs = program, args, kwargs
        self._target, self._style = target, style
        self._sized = trace_at_sizes(program, args, kwargs, dynamic, self._prepare, names)
        self._exact_methods: set[str] = set()  # methods whose functions are not merged
        self._opened: frozenset[str] = frozenset()  # modules that are no class of their own
        formed = None
        while formed is None:
            formed = self._attempt()
        self._formed = formed

    def _prepare(self, trace: SourceTrace) -> None:
        expand(trace, self._target)
        simplify(trace)

    def _attempt(self) -> Formed | None:
        """Return the program, written down; None: with fewer modules, functions or sizes it is to be tried again."""
        trace, target, sized = merge(self._sized.traces), self._target, self._sized
        tidy(trace)
        for frame in frames(trace.root):
            frame.is_module &= frame.path not in self._opened
        stateful, random = bool(trace.written), trace.key is not None
        self._style.prepare(trace)
        names = text.names_of(target)
        functions = functions_of(trace, len(sized.traces), self._style.modules(), names, self._exact_methods)
        try:
            style = self._style(target, trace, functions)
        except TwoWaysError as error:
            if error.paths <= self._opened:
                raise
            self._opened |= error.paths
            return None
        title = _in_quotes(f"{trace.name}: {self._program.origin}")
        header = f"{title}, written for {target.title} by tensorgraft."
        try:
            source = text.write(trace, functions, style, header)
        except (UnsettledError, SizeError) as error:
            if isinstance(error, UnsettledError) and error.method not in self._exact_methods:
                self._exact_methods.add(error.method)
            else:
                self._fix_sizes(error)
            return None
        return Formed(trace, functions, style, header, source, stateful, random)

    def _fix_sizes(self, error: Exception) -> None:
        """Leave sizes as they are, lengths first, then batches, too: there is a number without an expression."""
        groups = list(enumerate(self._sized.groups))
        lengths = {g for g, group in groups if group.checked_sizes and group.title != "batch"}
        fixed = lengths or {g for g, group in groups if group.checked_sizes}
        if not fixed:
            raise error
        self._sized.without(fixed, str(error))

    @property
    def stateful(self) -> bool:
        """The program writes its buffers."""
        return self._formed.stateful

    @property
    def draws(self) -> bool:
        """The program draws random numbers."""
        return self._formed.random

    def result(self, target_name: str) -> GeneratedSource:
        """Return the file, its weights and a report, in which nothing is checked yet."""
        formed = self._formed
        classes = len(formed.style.written(formed.functions))
        report = SourceReport(formed.trace.name, target_name, formed.text.count("\n"), classes, self._sized.groups)
        trace = formed.trace
        report.notes = list(dict.fromkeys(trace.notes + trace.derivative_notes * self._target.trains))
        return GeneratedSource(formed.text, formed.trace.weights, report, formed.functions[-1].name)

    def check(self, result: GeneratedSource) -> None:
        """Run the file and the program, and add their differences to the report."""
        formed, target = self._formed, self._target
        checked = checking.check(
            result.text,
            result.weights,
            result.function,
            target,
            self._program,
            self._examples(),
            formed.stateful,
            random=formed.random,
            key=formed.trace.key is not None,
            epsilon=checking.epsilon_of(formed.trace),
            names_in_file={formed.style.parameter_name(path): path for path in formed.trace.parameters},
        )
        result.checked = checked
        result.report.rows = checked.rows
        result.report.notes += checked.notes
        result.text = _with_check(formed.text, formed.header, checked.rows)
        result.report.lines = result.text.count("\n")

    def _examples(self) -> list[list[checking.Example]]:
        """Return the arguments to compare at: those of the example, and for each group of sizes others, the first of
        which that the program takes counts."""
        examples: list[list[checking.Example]] = [[("as the example", self._args, self._kwargs)]]
        for g, group in enumerate(self._sized.groups):
            if group.checked_sizes:
                sizes = (
                    [group.checked_sizes[-1] + 1] if group.title == "batch" else [*group.checked_sizes, group.size - 1]
                )
                arguments = self._sized.arguments
                examples.append([(f"{group.title} of {n}", *arguments({g: n})) for n in sizes if n > 0])
        return examples


def _in_quotes(text: str) -> str:
    """Return a text that cannot end a docstring: names in a model of others may be any."""
    return "".join(c if c.isprintable() else " " for c in text).replace("\\", "\\\\").replace('"', "'")


def _with_check(text_of: str, header: str, rows: list[Row]) -> str:
    """Return the file with a note in its docstring on how it was checked, if all checks have passed."""
    if not rows or not all(row.ok for row in rows):
        return text_of
    errors = {kind: max(row.error for row in rows if row.what == kind) for kind in dict.fromkeys(r.what for r in rows)}
    sizes = ", ".join(row.sizes for row in rows if row.what == "results")
    summary = ", ".join(f"{kind} differ by {error:.0e} at most" for kind, error in errors.items())
    note = textwrap.fill(f"Checked against it ({sizes}): {summary}, relative to the largest entry of an array.", 99)
    return text_of.replace(f'"""{header}"""', f'"""{header}\n\n{note}\n"""', 1)
