"""`tg.jit(fn, guard_values=True)`: integers and truths that Python asks for are looked at instead of refused, and so
are masks that say how large results are.

The function is traced up to where a value is asked for; the program so far computes it; then the function is traced
again, which is given the answer. A line that asks again is told what it was told before (checks in every layer would be
a trace each), and if that was wrong, the function is traced again from there. Each call computes what was asked for
before anything else, in a program of its own that has nothing else in it, and where an answer is another one, the
function is traced for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.source_location import program_place
from tensorgraft.frontends.torch.core.tensors import cell_of, to_array
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

_MOST = 1024  # in one trace
ROUNDS = 64  # traces until every answer is known
_LARGEST = 1 << 14  # elements


class Unanswered(BaseException):
    """A value is asked for that is not known yet: for nobody to catch."""


class Values:
    """The values that Python asks for in one trace, and the answers that it is given."""

    def __init__(self, answers: Sequence[np.ndarray] = (), guesses: bool = True) -> None:
        self.answers = list(answers)
        self.arrays: list[Array] = []  # in the order in which they are asked for
        self.missing = False  # there was no answer for the last one
        self.known = len(answers)  # what comes after these are guesses
        self.guesses = guesses
        self.undo: Callable[[], None] = lambda: None  # takes back what a trace has done that is not to be used
        self._lines: dict[Any, np.ndarray] = {}  # what each was told last

    @property
    def guessed(self) -> bool:
        return len(self.answers) > self.known

    def all_right(self, values: Sequence[np.ndarray]) -> bool:
        return all(map(np.array_equal, values, self.answers))

    def right(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the values up to and including the first that differs from its answer: later ones depend on it."""
        wrong = (k for k, (a, b) in enumerate(zip(values, self.answers, strict=False)) if not np.array_equal(a, b))
        return list(values[: next(wrong, len(values)) + 1])

    def of(self, xp: Backend, array: Array) -> np.ndarray | None:
        """The values of a traced array; None for numbers that are not whole, and for large ones. Raises Unanswered, and
        TracedValueError for too many."""
        if xp.dtype_of(array).kind not in "biu" or math.prod(xp.shape(array)) > _LARGEST:
            return None
        if len(self.arrays) == _MOST:
            raise too_many()
        self.arrays.append(array)
        k, line = len(self.arrays) - 1, (program_place(), xp.shape(array), xp.dtype_of(array))
        if k >= len(self.answers):
            if self.missing or not self.guesses or line not in self._lines:
                self.missing = True
                raise Unanswered
            self.answers.append(self._lines[line])
        self._lines[line] = self.answers[k]
        return self.answers[k]

    def asking(self, traced: Callable[[], list[Array]]) -> Callable[[], list[Array]]:
        """The function to trace: its results and then what was asked for, or only that if one is not known."""

        def run() -> list[Array]:
            outputs: list[Array] = []
            try:
                outputs = traced()
            except (Exception, Unanswered):
                if not self.missing:  # it may have been caught, and something else raised
                    raise
            return self.arrays[: len(self.answers) + 1] if self.missing else outputs + self.arrays

        return run


def too_many() -> TracedValueError:
    return TracedValueError(
        f"more than {_MOST} values are asked for, or in more than {ROUNDS} traces there was always another one: decide"
        " outside, or by torch.where"
    )


def array_now(t: torch.Tensor, codes: bool = False) -> Array:
    """Return the array of a tensor whose value Python needs. While a function is traced, an array from outside is
    returned as an operand of the trace, since its values may be others at the next call; a view of a constant that the
    function has made has values, as the constant has."""
    capture = state.now.capture
    if capture is not None and any(cell_of(t).array is one for one in capture.constants):
        with capture.backend.eagerly():
            return to_array(t, codes)
    array = to_array(t, codes)
    if capture is not None and any(array is one.stand_in for one in (*capture.touched, *capture.feeds)):
        xp = capture.backend
        with xp.scope():
            return xp.copy(array)
    return array


def looked_up(xp: Backend, array: Array) -> np.ndarray | None:
    """The values of an array that is only being traced, where they may be asked for; one of no elements has them."""
    if xp.is_traced(array) and 0 in xp.shape(array):
        return np.empty(xp.shape(array), xp.dtype_of(array))
    values = None if state.now.capture is None else state.now.capture.values
    return None if values is None or not xp.is_traced(array) else values.of(xp, array)
