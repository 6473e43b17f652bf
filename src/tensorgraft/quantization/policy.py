"""The policy for operations that have no rule for quantised operands, and counts of them."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tensorgraft import warning_filters

CHOICES = ("dequantize", "warn", "error")


class NoQuantizedRuleError(NotImplementedError):
    """An operation on a quantised array would make it dense, and the user forbade that."""


Notes = list[tuple[str, str | None]]  # operations; of those that are missing, the shapes


class _State(threading.local):
    policy = "dequantize"
    counting = True
    notes: Notes | None = None


_now = _State()
_missing: Counter[str] = Counter()
_quantised: Counter[str] = Counter()


@contextlib.contextmanager
def on_missing(policy: str) -> Iterator[None]:
    """Operations without a rule for quantised arrays compute on dequantised ones ("dequantize", the default), do so
    with a warning ("warn"), or raise NoQuantizedRuleError ("error"), in this block and this thread. Raises
    ValueError for another policy."""
    if policy not in CHOICES:
        raise ValueError(f"on_missing({policy!r}): expected one of {', '.join(CHOICES)}")
    before, _now.policy = _now.policy, policy
    try:
        yield
    finally:
        _now.policy = before


def missing(operation: str, shapes: str, times: int = 1) -> None:
    """Note that an operation dequantises its operands: it is counted, and warned of or refused by the policy."""
    if not _now.counting:
        return
    if _now.notes is not None:
        _now.notes.extend([(operation, shapes)] * times)
        return
    _missing[operation] += times
    if _now.policy == "dequantize":
        return
    text = (
        f"{operation} of {shapes} has no rule for quantised arrays, and computes on dense ones:"
        " call tg.dequantize where that is meant"
    )
    if _now.policy == "error":
        raise NoQuantizedRuleError(text)
    warning_filters.warn(text)


def served(operation: str, times: int = 1) -> None:
    if _now.notes is not None:
        _now.notes.extend([(operation, None)] * times)
        return
    _quantised[operation] += times


@contextlib.contextmanager
def counting_later() -> Iterator[Notes]:
    """Context in which operations are noted instead of counted or forbidden: a program that is compiled once and run
    often is `counted` at every run."""
    before, _now.notes = _now.notes, []
    try:
        yield _now.notes
    finally:
        _now.notes = before


def counted(notes: Notes) -> None:
    for (operation, shapes), times in Counter(notes).items():
        served(operation, times) if shapes is None else missing(operation, shapes, times)


def counting(run: Callable[..., Any], notes: Notes) -> Callable[..., Any]:
    """Return a program that counts, or raises, at every call, before it computes."""
    if not notes:
        return run

    def call(*args: Any) -> Any:
        counted(notes)
        return run(*args)

    call.prepare = getattr(run, "prepare", None)  # type: ignore[attr-defined]
    return call


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """A context in which dequantisation is intended, and neither counted nor forbidden."""
    before, _now.counting = _now.counting, False
    try:
        yield
    finally:
        _now.counting = before


def report() -> dict[str, dict[str, int]]:
    """Return how often each operation of the hub computed on codes ("quantized"), and how often it had to make its
    operands dense ("dequantized"); those of compiled functions at every call. Raises nothing."""
    return {"quantized": dict(_quantised), "dequantized": dict(_missing)}


def reset() -> None:
    """Begin to count again. Raises nothing."""
    _missing.clear()
    _quantised.clear()
