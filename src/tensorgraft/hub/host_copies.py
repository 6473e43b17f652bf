"""Copies of arrays between the host and memory that it cannot read: counted, and kept while the array exists."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

TO_HOST, TO_DEVICE = "to the host", "to the device"
MOST_ELEMENTS = 1 << 22  # of an array that may begin on the host
_MOST_BYTES = 1 << 28  # of the copies that one device's arrays have

counts: Counter[str] = Counter()


class HostCopies:
    """The host's copies of the arrays of a device, which nobody writes."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[weakref.ref[Any], np.ndarray]] = {}  # by identity of the array, oldest first
        self._nbytes = 0

    def get(self, x: Any, copy: Callable[[Any], np.ndarray]) -> np.ndarray:
        """Return the host's copy of `x`, which `copy` makes where there is none."""
        entry = self._copies.get(id(x))
        if entry is not None and entry[0]() is x:
            return entry[1]
        counts[TO_HOST] += 1
        values = copy(x)
        self._put(x, values)
        return values

    def moved(self, x: Any, values: np.ndarray) -> None:
        """Note that `x` is an array on the device with values of the host."""
        counts[TO_DEVICE] += 1
        self._put(x, values)

    def _put(self, x: Any, values: np.ndarray) -> None:
        if values.size > MOST_ELEMENTS:
            return
        key = id(x)

        def forget(ref: weakref.ref[Any]) -> None:
            entry = self._copies.get(key)
            if entry is not None and entry[0] is ref:
                self._remove(key)

        self._remove(key)
        self._copies[key] = weakref.ref(x, forget), values
        self._nbytes += values.nbytes
        while self._nbytes > _MOST_BYTES:
            self._remove(next(iter(self._copies)))

    def _remove(self, key: int) -> None:
        entry = self._copies.pop(key, None)
        if entry is not None:
            self._nbytes -= entry[1].nbytes
