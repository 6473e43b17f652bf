"""Functions of PyTorch compiled by `tg.jit` and called again and again while settings, gradients, attributes, containers, hooks and states change, inside and outside; the reference is the function without it."""

from __future__ import annotations

import functools
import linecache
import os
import random
import re
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from tests.fuzz.kinds.stateful import seen, world
from tests.fuzz.kinds.stateful.by_operations import by_operations
from tests.fuzz.kinds.stateful.drawing import Drawing
from tests.fuzz.kinds.torch.noise import Noise
from tests.fuzz.program import REFERENCE, Kind, Outcome, Program, Unfit

import tensorgraft as tg

_CALL = re.compile(r"\bf\(")
_TIMES = 8  # that the reference is repeated with noise
_STATISTICS = re.compile(r"modified by an inplace operation: \[graft\w+Type \[3\]\]")
_OUTPUT_WITHOUT_GRADIENT = re.compile(r"unsupported operand type\(s\) for \*: 'NoneType'")
_SAVED_WEIGHT = re.compile(
    r"expected m1 and m2 to have the same dtype|"
    r"modified by an inplace operation: (\[graft\w+Type \[3, 3\]\]|a tensor of shape \(3, 3\) saved by a compiled function)"
)


class Stateful(Kind):
    name = "stateful"
    # "operations": what is compiled is not compiled by XLA (`by_operations`)
    shares: ClassVar[dict[str, int]] = {
        "jax operations": 1,
        "torch": 2,
        "numpy": 2,
        "tensorflow operations": 4,
        "jax": 10,
        "tensorflow": 20,
    }

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)

    # ---- drawing -----------------------------------------------------------------------------------------------------

    def names(self, subject: str) -> dict[str, Any]:
        device = torch.device("cpu") if subject == REFERENCE else tg.device(subject.split()[0])
        return world.world(device, tg.jit if _compiles(subject) else _as_it_is)

    def statement(self, rng: random.Random, names: dict[str, Any]) -> str:
        raise NotImplementedError("a program is drawn as a whole")

    def draw(self, seed: int) -> Program:
        rng = random.Random(f"stateful {seed}")
        with _as_new():
            names, drawing = self.names(REFERENCE), Drawing(rng)
            lines: list[str] = []

            def taken(block: list[str]) -> bool:
                """Run it, and keep it if it raises nothing, or now and then if it does."""
                raised = [error for _, error in _run(block, names) if error is not None]
                if raised and rng.random() > 0.2:
                    return False
                lines.extend(block)
                return True

            for text in drawing.setup():
                taken(text.splitlines())
            before = dict(names)
            taken(drawing.function())
            if not callable(names.get("f")) or "f" in before:
                return Program(self.name, tuple(lines), seed)
            for _ in range(rng.randint(3, 6)):
                for _ in range(rng.choice([0, 1, 1, 2])):
                    taken([drawing.change()])
                call = drawing.call()
                if not taken([call]):
                    drawing.calls -= 1
                elif rng.random() < 0.25:
                    taken([f"total(r{drawing.calls - 1}).backward()"])
        return Program(self.name, tuple(lines), seed)

    # ---- playing -----------------------------------------------------------------------------------------------------

    def play(self, program: Program, subject: str, refused: dict[int, str] | None = None) -> Outcome:
        """`refused`: of the subject, what it has refused is put there, and not observed; of the reference, the
        statements in it are left out."""
        outcome = Outcome()
        backend, *way = subject.split()
        refused = {} if refused is None else refused
        with by_operations(backend if "operations" in way else ""), _as_new():  # which may import a framework
            names = self.names(subject)
            lines = list(program.statements)
            leave_out = set() if _compiles(subject) else set(refused)
            for start, error in _run(lines, names, leave_out):
                text = lines[start]
                if error is not None:
                    if isinstance(error, SyntaxError):
                        raise Unfit(str(error)) from error
                    if backend != REFERENCE and _refusal(error):
                        refused[start] = _reason(error)
                        continue
                    outcome.raised[start] = type(error).__name__
                    outcome.observed[f"{start} message"] = str(error)[:300]
                if _CALL.search(text) and not text.startswith(("def", "f =")):
                    outcome.observed[str(start)] = seen.Table(names).rows
            outcome.observed["end"] = seen.Table(names).rows
        return outcome

    def failures(self, program: Program, subjects: tuple[str, ...]) -> dict[str, list[str]]:
        failed: dict[str, list[str]] = {}
        alone: Outcome | None = None
        for subject in subjects:
            refused: dict[int, str] = {}
            try:
                found = self.play(program, subject, refused)
                if refused:
                    expected = self.play(program, REFERENCE, refused)
                else:
                    expected = alone = alone or self.play(program, REFERENCE)
            except Unfit:
                self.unfit.add(subject)
                continue
            lines = self.differences(expected, found, program)
            reason = self.excuse(program, subject, expected, found, refused) if lines else None
            if reason is not None:
                self.excused[reason] += 1
            elif lines:
                failed[subject] = [*lines, *self._by_hand(program, subject, expected, refused)]
            elif refused:
                for reason in set(refused.values()):
                    self.excused[f"refused: {reason}"] += 1
        return failed

    def _by_hand(self, program: Program, subject: str, expected: Outcome, refused: dict[int, str]) -> list[str]:
        if not _compiles(subject):
            return []
        lines = self.differences(expected, self.play(program, f"{subject} eager", dict(refused)), program)
        return [f"without tg.jit, too: {lines[0]}"] if lines else []

    def observe(self, names: dict[str, Any]) -> dict[str, Any]:
        return seen.Table(names).rows

    def differences(
        self, expected: Outcome, found: Outcome, program: Program, slack: seen.Slack | None = None
    ) -> list[str]:
        """The first place at which something differs. `slack`: of rows, how far rounding moves them."""
        for at in [*expected.observed]:
            if at.endswith("message"):
                continue
            before = [i for i in sorted({*expected.raised, *found.raised}) if at == "end" or i <= int(at)]
            for i in before:
                want, got = expected.raised.get(i), found.raised.get(i)
                if want != got:
                    said = found.observed.get(f"{i} message", "")
                    return [f"{program.statements[i]}: {got or 'nothing'} raised for {want or 'nothing'}: {said}"]
            if any(self._goes_back(program, i) for i in before if i in expected.raised):
                return []  # it has left some of its gradients, whichever were done by then (docs/differences.md)
            lines = seen.unequal(expected.observed[at], found.observed.get(at, {}), (slack or {}).get(at))
            if lines:
                return [f"after {program.statements[int(at)] if at != 'end' else 'the end'}:", *lines[:8]]
        return []

    @staticmethod
    def _goes_back(program: Program, i: int) -> bool:
        """Say whether a statement may begin a backward pass."""
        text = program.statements[i]
        return ".backward(" in (str(program) if _CALL.search(text) else text)

    def excuse(
        self,
        program: Program,
        subject: str,
        expected: Outcome,
        found: Outcome,
        refused: dict[int, str] | None = None,
    ) -> str | None:
        noisy = []
        for seed in range(_TIMES):
            with Noise(seed):
                noisy.append(self.play(program, REFERENCE, dict(refused or {})))
        slack = {at: seen.slack(rows, [o.observed.get(at, {}) for o in noisy]) for at, rows in _tables(expected)}
        if not self.differences(expected, found, program, slack):
            return "rounding decides"
        if "autocast" in str(program):
            for context in (_without_cached_casts, _casting_at_each_call):
                with context():
                    casting_anew = self.play(program, REFERENCE, dict(refused or {}))
                if not self.differences(casting_anew, found, program):
                    return "documented: autocast casts a weight anew"
        raised = sorted({*expected.raised, *found.raised})
        first = next((i for i in raised if expected.raised.get(i) != found.raised.get(i)), -1)
        if expected.raised.get(first) is None and _SAVED_WEIGHT.search(found.observed.get(f"{first} message", "")):
            return "a linear layer saves its weight"  # docs/differences.md
        if expected.raised.get(first) is None and _OUTPUT_WITHOUT_GRADIENT.search(
            found.observed.get(f"{first} message", "")
        ):
            return "a hook of a result that has no part in a backward pass gets None"  # docs/differences.md
        if found.raised.get(first) is None and "modified by an inplace operation" in expected.observed.get(
            f"{first} message", ""
        ):
            return "a backward pass accumulates into a gradient that the function has read"  # docs/differences.md
        if first >= 0 and "swap_tensors(" in program.statements[first]:
            return "swap_tensors of a tensor that a compiled function has used"  # docs/differences.md
        counted = _STATISTICS.search(found.observed.get(f"{first} message", ""))
        if expected.raised.get(first) is None and counted and 'net("norm"' in str(program):
            return "a refused batch norm has counted a write"
        return None


def _run(
    lines: list[str], names: dict[str, Any], leave_out: set[int] | frozenset[int] = frozenset()
) -> Iterator[tuple[int, Exception | None]]:
    """(first line, what it has raised) of each statement: a line and those after it that are indented."""
    start = 0
    while start < len(lines):
        end = start + 1
        while end < len(lines) and lines[end].startswith(" "):
            end += 1
        if start not in leave_out:
            text, file = "\n".join(lines[start:end]) + "\n", f"<stateful {start}>"
            linecache.cache[file] = len(text), None, text.splitlines(True), file
            error: Exception | None = None
            try:
                exec(_code(text, file), names)
            except Exception as raised:
                error = raised.with_traceback(None)
            yield start, error
        start = end


def _tables(outcome: Outcome) -> list[tuple[str, dict[str, Any]]]:
    return [(at, rows) for at, rows in outcome.observed.items() if not at.endswith("message")]


def _compiles(subject: str) -> bool:
    """Return True if functions are compiled: not by the reference, nor to compare with the device without `tg.jit`."""
    return subject != REFERENCE and not subject.endswith(" eager")


@functools.lru_cache(maxsize=4096)  # a program is played on several subjects
def _code(text: str, file: str) -> types.CodeType:
    return compile(text, file, "exec")


def _as_it_is(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    if not _cast_at_each_call:
        return fn

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        torch.clear_autocast_cache()
        return fn(*args, **kwargs)

    return call


_cast_at_each_call: list[bool] = []


@contextmanager
def _casting_at_each_call() -> Iterator[None]:
    _cast_at_each_call.append(True)
    try:
        yield
    finally:
        _cast_at_each_call.clear()


@contextmanager
def _without_cached_casts() -> Iterator[None]:
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(True)


def _refusal(error: Exception) -> bool:
    """Compiling is refused, with the line of the program, which is said in words; or PyTorch takes inference tensors
    for `.data` of no other devices than its own."""
    said = str(error)
    if "incompatible tensor type" in said:
        return True
    return "<stateful" in said and (isinstance(error, tg.TracedValueError) or "tg.jit" in said)


def _reason(error: Exception) -> str:
    """The first line of the message without the program's own text."""
    first = str(error).splitlines()[0]
    first = re.sub(r"<stateful \d+>:\d+:?", "", re.sub(r"`[^`]*`", "...", first))
    return re.sub(r"\d+", "N", re.sub(r"\b(?:[a-z]+\d+|v|x)\b\S*", "...", first)).strip()[:90]


@contextmanager
def _as_new() -> Iterator[None]:
    """Settings of the process as a new one has them, and as they were afterwards."""
    hooks = torch.nn.modules.module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        random.seed(0)
        np.random.seed(0)
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` queues a call for each kind of device
        torch.graft.manual_seed_all(0)
        os.environ.pop(world.VARIABLE, None)
        types = ("cpu", "graft")
        casts = [(kind, torch.get_autocast_dtype(kind)) for kind in types]
        torch.set_autocast_dtype("graft", torch.bfloat16)  # the CPU's
        try:
            yield
        finally:
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.benchmark = False
            for kind, dtype in casts:
                torch.set_autocast_enabled(kind, False)
                torch.set_autocast_dtype(kind, dtype)
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
            torch.set_grad_enabled(True)
            os.environ.pop(world.VARIABLE, None)
            for table in (
                hooks._global_forward_hooks,
                hooks._global_forward_pre_hooks,
                hooks._global_backward_hooks,
                hooks._global_backward_pre_hooks,
                hooks._global_forward_hooks_always_called,
                hooks._global_forward_hooks_with_kwargs,
            ):
                table.clear()
            hooks._global_is_full_backward_hook = None


KIND = Stateful()
