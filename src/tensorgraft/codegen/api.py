"""`tg.source`: a program as readable source of another framework."""

from __future__ import annotations

import io
import os
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorgraft import files
from tensorgraft.codegen import checking, text
from tensorgraft.codegen.checking import Checked, Row
from tensorgraft.codegen.expanding import expand
from tensorgraft.codegen.extracted_functions import functions_of
from tensorgraft.codegen.frame_simplifying import simplify
from tensorgraft.codegen.frameworks import framework_of
from tensorgraft.codegen.program import SizeGroup, SourceProgram, trace_at_sizes
from tensorgraft.codegen.size_merging import merge
from tensorgraft.codegen.styles.choosing import style_of
from tensorgraft.codegen.styles.classes import TwoWaysError
from tensorgraft.codegen.targets import target as target_of
from tensorgraft.codegen.tidying import tidy
from tensorgraft.codegen.trace import SourceTrace, frames
from tensorgraft.codegen.weights import write_weights
from tensorgraft.codegen.writing import SizeError, UnsettledError
from tensorgraft.importing import required


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
        for g in self.groups:
            tried = ", ".join(map(str, g.tried))
            said = f"others, too (traced at {tried})" if g.tried else f"{g.size} only ({g.reason})"
            lines.append(f"  size {g.size} ({g.title}): {said}")
        for row in self.rows:
            verdict = "equal" if row.ok else f"DIFFERS: {row.detail}"
            lines.append(
                f"  {row.what:<10} {row.sizes:<28} {row.arrays:>4} arrays  {row.error:.1e} (limit {row.limit:.0e})"
                f"  {verdict}"
            )
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
        """Write `path` (`model.py`), and beside it the weights (`model.safetensors`); with `check` a test, too
        (`test_model.py`, `model_check.npz`). Raises ValueError where the source was not checked."""
        path = os.fspath(path)
        root, _ = os.path.splitext(path)
        folder, title = os.path.split(root)
        if check and self.checked is None:
            raise ValueError("save(check=True) writes what the source was checked with: tg.source(..., check=True)")
        if self.weights:
            write_weights(self.weights, f"{root}.safetensors")
        if check and self.checked is not None:
            data = io.BytesIO()
            np.savez(data, **self.checked.data)  # type: ignore[arg-type]
            files.write(f"{root}_check.npz", data.getvalue())
            test = text.formatted(self.checked.test(title))
            files.write(os.path.join(folder, f"test_{title}.py"), test.encode())
        files.write(path, self.text.encode())


def source(
    program: Any,
    *args: Any,
    onto: str,
    style: str | None = None,
    dynamic: bool = True,
    check: bool = True,
    **kwargs: Any,
) -> GeneratedSource:
    """A program of one framework as readable source of another, which needs neither tensorgraft nor the first one.

    Args:
        program: a `torch.nn.Module` (in the mode it is in, training or evaluation); a function of JAX, a model of
            Equinox, Flax (linen or nnx) or Haiku's `apply`; a function of TensorFlow, a `tf.Module`, a layer or model
            of Keras; a function of arrays that have `__array_namespace__`.
        *args, **kwargs: an example of what it is called with.
        onto: "jax", "torch", "tensorflow", "numpy" or "array_api".
        style: how parameters are held; None is the first of: "functions" of a nested dictionary, "equinox" and "flax"
            (nnx) modules for JAX; "modules" (`nn.Module`) for PyTorch; "modules" (`tf.Module`), "keras" and "functions"
            for TensorFlow; "functions" for the others.
        dynamic: look for sizes of the arguments that may be others (batches, lengths).
        check: run the file, in a process without the source framework, at the example's sizes and at others, and
            compare results and gradients with the program's.

    Returns: a `GeneratedSource` with `text`, `weights`, `report` and `save("model.py")`.

    Raises:
        TypeError: for programs that are not known here.
        ValueError: for targets and styles that are not known.
        ModuleNotFoundError: where ruff, which formats the file, or the target's framework is not installed.
        CannotBeSaidError: where the target has no words for what the program does, with the place in the program.
    """
    required("ruff", by="tg.source", extra="source")
    target = target_of(onto)
    form = style_of(style, target)
    read = _program(program, (args, kwargs))

    def prepare(trace: SourceTrace) -> None:
        expand(trace, target)
        simplify(trace)

    sized = trace_at_sizes(read, args, kwargs, dynamic, prepare)
    apart: set[str] = set()
    opened: frozenset[str] = frozenset()  # modules that are no class of their own
    while True:
        trace = merge(sized.traces)
        tidy(trace)
        for frame in frames(trace.root):
            frame.is_module &= frame.path not in opened
        stateful, random = bool(trace.written), trace.key is not None
        form.prepare(trace)
        functions = functions_of(trace, len(sized.traces), form.modules(), text.names_of(target), apart)
        try:
            formed = form(target, trace, functions)
        except TwoWaysError as error:
            if error.paths <= opened:
                raise
            opened |= error.paths
            continue
        header = f"{trace.name}: {read.origin}, written for {target.title} by tensorgraft."
        try:
            written = text.write(trace, functions, formed, header)
            break
        except (UnsettledError, SizeError) as error:
            if isinstance(error, UnsettledError) and error.method not in apart:
                apart.add(error.method)
                continue
            # a number for which there is no expression: lengths stay as they are, then batches, too
            lengths = {g for g, group in enumerate(sized.groups) if group.tried and group.title != "batch"}
            fixed = lengths or {g for g, group in enumerate(sized.groups) if group.tried}
            if not fixed:
                raise
            sized.without(fixed, str(error))
    report = SourceReport(trace.name, onto, written.count("\n"), len(formed.written(functions)), sized.groups)
    report.notes = list(dict.fromkeys(trace.notes))
    result = GeneratedSource(written, trace.weights, report, functions[-1].name)
    if check:
        examples: list[list[checking.Example]] = [[("as the example", args, kwargs)]]
        for g, group in enumerate(sized.groups):
            if group.tried:
                sizes = [group.tried[-1] + 1] if group.title == "batch" else [*group.tried, group.size - 1]
                examples.append([(f"{group.title} of {n}", *sized.arguments({g: n})) for n in sizes if n > 0])
        result.checked = checking.check(
            result.text,
            result.weights,
            result.function,
            target,
            read,
            examples,
            stateful,
            random=random,
            key=trace.key is not None,
            epsilon=checking.epsilon_of(trace),
            spelled={formed.spelled(path): path for path in trace.parameters},
        )
        report.rows = result.checked.rows
        report.notes += result.checked.notes
        result.text = _with_check(written, header, report.rows)
        report.lines = result.text.count("\n")
    return result


def _with_check(text_of: str, header: str, rows: list[Row]) -> str:
    """The file's docstring says how it was checked, where it was and is equal."""
    if not rows or not all(row.ok for row in rows):
        return text_of
    worst = {what: max(row.error for row in rows if row.what == what) for what in dict.fromkeys(r.what for r in rows)}
    sizes = ", ".join(row.sizes for row in rows if row.what == "results")
    said = ", ".join(f"{what} differ by {error:.0e} at most" for what, error in worst.items())
    about = textwrap.fill(f"Checked against it ({sizes}): {said}, relative to the largest entry of an array.", 99)
    return text_of.replace(f'"""{header}"""', f'"""{header}\n\n{about}\n"""', 1)


def _program(program: Any, examples: Any) -> SourceProgram:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(program, torch.nn.Module):
        from tensorgraft.frontends.torch.codegen.program import ModuleProgram

        return ModuleProgram(program)
    found = framework_of(program, examples)
    if found == "tensorflow":
        from tensorgraft.frontends.tensorflow.codegen.program import GraphFunctionProgram

        return GraphFunctionProgram(program)
    if found == "jax":
        from tensorgraft.frontends.jax.codegen.program import FunctionProgram

        return FunctionProgram(program)
    if found == "array_api":
        from tensorgraft.frontends.array_api.codegen.program import ArrayFunctionProgram

        return ArrayFunctionProgram(program)
    raise TypeError(
        "tg.source takes a torch.nn.Module, a function or model of JAX or TensorFlow, or a function of the Array API,"
        f" not a {type(program).__qualname__}"
    )
