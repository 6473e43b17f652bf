"""`tg.jit(fn, guard_values=True)`: integers and booleans that Python reads, and masks that determine the size of
results, are computed and guarded instead of refused.

The function is traced up to the first value that Python reads; the program traced so far computes that value; then the
function is traced again with it. If the same line reads a value again, it gets the previous answer as a guess (else
checks in every layer would need a trace each), and if the guess was wrong, the function is traced again. Each call
first computes the guarded values, in a separate small program, and if one differs, the function is traced for it.
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
    """Raised when Python reads a value that is not known yet. A BaseException, so that programs do not catch it."""


class Values:
    """The values that Python reads in one trace, and the answers that it gets."""

    def __init__(self, known_answers: Sequence[np.ndarray] = (), guesses: bool = True) -> None:
        self.answers = list(known_answers)
        self.arrays: list[Array] = []  # in the order in which they are read
        self.missing = False  # there was no answer for the last one
        self.known = len(known_answers)  # later answers are guesses
        self.guesses = guesses
        self.undo: Callable[[], None] = lambda: None  # reverts the effects of a trace that is not used
        self._lines: dict[Any, np.ndarray] = {}  # the last answer that each line got

    @property
    def guessed(self) -> bool:
        return len(self.answers) > self.known

    def all_right(self, values: Sequence[np.ndarray]) -> bool:
        return all(map(np.array_equal, values, self.answers))

    def right(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the values up to and including the first that differs from its answer: later ones depend on it."""
        differing = (k for k, (a, b) in enumerate(zip(values, self.answers, strict=False)) if not np.array_equal(a, b))
        return list(values[: next(differing, len(values)) + 1])

    def of(self, xp: Backend, array: Array) -> np.ndarray | None:
        """Return the values of a traced array; None for floats and for large arrays. Raises Unanswered if they are not
        known yet, and TracedValueError for too many."""
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
        """Return the function to trace: it returns the results and the values read, or only these if one is unknown."""

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


def concrete_array(t: torch.Tensor, codes: bool = False) -> Array:
    """Return the array of a tensor whose value Python needs. While a function is traced, an array from outside is
    returned as an operand of the trace, since its values may differ at the next call; a view of a constant that the
    function has made has values, as the constant has."""
    capture = state.now.capture
    if capture is not None and any(cell_of(t).array is constant for constant in capture.constants):
        with capture.backend.eagerly():
            return to_array(t, codes)
    if capture is not None and capture.sparse is not None and (known := capture.sparse.indices.array_of(t)) is not None:
        return known
    array = to_array(t, codes)
    if capture is not None and any(array is one.stand_in for one in (*capture.touched, *capture.feeds)):
        xp = capture.backend
        with xp.scope():
            return xp.copy(array)
    return array


def looked_up(xp: Backend, array: Array) -> np.ndarray | None:
    """Return the values of a traced array if they may be read (`guard_values=True`), or if it has no elements; None
    otherwise."""
    if xp.is_traced(array) and 0 in xp.shape(array):
        return np.empty(xp.shape(array), xp.dtype_of(array))
    values = None if state.now.capture is None else state.now.capture.values
    return None if values is None or not xp.is_traced(array) else values.of(xp, array)
