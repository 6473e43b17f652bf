"""`python -m ecosystem.export.worker` reads [[program, format, exporter], ...] and prints a line of JSON for each."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from typing import Any

from ecosystem.export.judge import LOADERS, apart
from ecosystem.export.packages import ROOT, provide
from ecosystem.export.peers import WRITERS, as_numpy, size_of
from ecosystem.export.programs import Arguments, Program, all_programs
from ecosystem.export.row import OURS, Row

BATCH, LENGTH = 2, 6
OTHER = {"batch": (5, LENGTH), "length": (BATCH, 11)}


class _Rows:
    """The rows of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.subject, self.arguments = program.build()
        self.args, self.kwargs = self.arguments(BATCH, LENGTH)

    def _arrays(self, args: Any, kwargs: Any) -> tuple[list[str], list[Any], Any]:
        from tensorgraft.exporting.subject import Subject

        subject = Subject(self.subject, args, kwargs)
        return subject.names, [subject.source.numpy(x) for x in subject.arrays], subject

    def symbols(self, arguments: Arguments) -> list[list[Any]]:
        """Return the shape of each array, in the framework's order, with names for the extents that vary."""
        shapes = [[list(x.shape) for x in _leaves(self.program, *arguments(*at))] for at in
                  [(BATCH, LENGTH), *OTHER.values()]]  # fmt: skip
        return [
            ["batch" if b != n else "length" if m != n else n for n, b, m in zip(*of, strict=True)]
            for of in zip(*shapes, strict=True)
        ]

    def run(self, form: str, exporter: str) -> Row:
        row = Row(self.program.name, self.program.library, form, exporter, state=_commit())
        symbols = self.symbols(self.arguments)
        row.asked = sorted({n for s in symbols for n in s if isinstance(n, str)})
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, f"program{'.tflite' if form == 'litert' else '.' + form}")
            start = _cpu()
            try:
                self._export(row, symbols, path)
                row.written, row.size = True, size_of(path)
            except Exception as error:
                row.reason = _reason(error)
            row.seconds = _cpu() - start
            if row.written and not (self.program.writes and exporter == OURS):
                try:
                    self._judge(row, path)
                except Exception as error:
                    row.reason = _reason(error)
        return row

    def _export(self, row: Row, symbols: list[list[Any]], path: str) -> None:
        if row.exporter == OURS:
            import tensorgraft as tg

            written = self.program.writes  # its state is compared, too
            report = tg.export(self.subject, *self.args, to=row.format, path=path, check=written, **self.kwargs)
            row.open = _open(symbols, [x.shape for x in report.inputs])
            if written:
                row.apart = row.apart_open = max(r.error for r in report.rows if r.what == "results")
            if missing := set(row.asked) - set(row.open):
                row.reason = "; ".join(g.reason for g in report.sizes if g.reason) or f"{missing}"
            return
        write = WRITERS[row.exporter]
        try:
            write(self.subject, self.args, self.kwargs, symbols, path)
            row.open = row.asked
        except Exception as error:
            row.reason = _reason(error)
            fixed = [list(x.shape) for x in _leaves(self.program, self.args, self.kwargs)]
            write(self.subject, self.args, self.kwargs, fixed, path)

    def _judge(self, row: Row, path: str) -> None:
        """Run the file in its runtime, with the example and at another batch and length."""
        call = LOADERS[row.format](path)
        row.apart = self._apart(row, call, BATCH, LENGTH)
        if row.open:
            row.apart_open = None
            batch = OTHER["batch"][0] if "batch" in row.open else BATCH
            length = OTHER["length"][1] if "length" in row.open else LENGTH
            try:
                row.apart_open = self._apart(row, call, batch, length)
            except Exception as error:
                row.open, row.reason = [], f"at another size: {_reason(error)}"

    def _apart(self, row: Row, call: Any, batch: int, length: int) -> float:
        from tensorgraft.exporting.structure import filled

        args, kwargs = self.arguments(batch, length)
        names, arrays, subject = self._arrays(args, kwargs)
        wanted = list(subject.evaluate(subject.arrays).outputs.values())
        if row.exporter == OURS:
            args, kwargs = filled(subject.structure, arrays)
        else:
            arrays = [as_numpy(x) for x in _leaves(self.program, args, kwargs)]
            names = list(kwargs) if len(kwargs) == len(arrays) else [""] * len(arrays)
        return apart(wanted, call(names, arrays, args, kwargs))


def _leaves(program: Program, args: Any, kwargs: Any) -> list[Any]:
    if program.framework == "torch":
        from torch.utils import _pytree

        return list(_pytree.tree_leaves((args, kwargs)))
    if program.framework == "tensorflow":
        import tensorflow as tf

        return list(tf.nest.flatten((args, kwargs)))
    import jax

    return list(jax.tree.leaves((args, kwargs)))


def _open(symbols: list[list[Any]], shapes: list[list[Any]]) -> list[str]:
    """Return the names of those extents that are open in every array of the file that has them."""
    found = []
    for name in ("batch", "length"):
        axes = [axis for s in symbols for axis, n in enumerate(s) if n == name]
        is_open = all(
            sum(axis < len(s) and isinstance(s[axis], str) for s in shapes) >= axes.count(axis) for axis in set(axes)
        )
        if axes and is_open:
            found.append(name)
    return found


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


@functools.cache
def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _cpu() -> float:
    """Return the CPU seconds of this process and its children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    provide()
    warnings.simplefilter("ignore")
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not a row
    programs = {p.name: p for p in all_programs()}
    current: _Rows | None = None
    for name, form, exporter in json.loads(sys.stdin.read()):
        if current is None or current.program.name != name:
            current = _Rows(programs[name])
        print(current.run(form, exporter).line(), file=output, flush=True)


main()
