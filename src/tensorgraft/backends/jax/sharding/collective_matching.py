"""Comparison of the collectives that the processes of a group call, before anything is exchanged.

XLA does not check that processes call the same collective with the same shapes; otherwise the result is wrong, or a
process waits or crashes. Before the first call of each kind, the processes therefore compare descriptions of it through
JAX's coordination service, which takes some milliseconds. Later calls of the same kind are compared if they have waited
for some seconds (`collective_timeout`), or always with TORCH_DISTRIBUTED_DEBUG=DETAIL.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from tensorgraft.backends.jax.sharding import processes
from tensorgraft.backends.jax.sharding.collective_timeout import watched

_lock = threading.Lock()
_calls: Counter[tuple[int, ...]] = Counter()  # {devices of a group: number of calls}
_agreed: dict[tuple[int, ...], set[Hashable]] = {}
_compared: dict[tuple[int, ...], str] = {}  # {devices of a group: where the service has its last comparison}
_NOTHING = "nothing within {:g} s"
_MARGIN = 5.0  # extra seconds that the other processes wait for the verdict of the first


def agreed(
    devices: tuple[int, ...], signature: Hashable, words: Callable[[], str], seconds: float
) -> contextlib.AbstractContextManager[Callable[[Sequence[Any]], None]]:
    """Return a context for a call of all processes of a group. If this process makes the call for the first time, the
    context begins when all of them have made the same one.

    Raises RuntimeError in each of them if the calls differ, or one does not arrive in `seconds`."""
    with _lock:
        _calls[devices] += 1
        number, known = _calls[devices], _agreed.setdefault(devices, set())
    call = _Call(devices, number, words, seconds)
    if signature not in known or os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
        if problem := call.verdict(lambda: False):
            raise RuntimeError(problem)
        known.add(signature)
    return watched(call.verdict, words, seconds)


class _Call:
    """One call of a group. Its first process reads the descriptions of the others, and sends them the verdict."""

    def __init__(self, devices: tuple[int, ...], number: int, words: Callable[[], str], seconds: float) -> None:
        self._devices, self._number, self._words, self._seconds = devices, number, words, seconds
        self._deadline = time.monotonic() + seconds
        self._prefix = f"tensorgraft/collectives/{','.join(map(str, devices))}/{number}"

    def verdict(self, stop: Callable[[], bool]) -> str:
        """Compare the calls of the processes. Return an error message, or "" if they agree or `stop` returns True."""
        client = processes.client()
        local_ids = {d.id for d in jax.local_devices()}
        rank = next(r for r, device in enumerate(self._devices) if device in local_ids)
        if rank:
            client.key_value_set(f"{self._prefix}/{rank}", self._words(), allow_overwrite=True)
            answer = self._get("said", _MARGIN, stop)
            if answer is None and not stop():
                return self._difference({rank: self._words(), 0: _NOTHING.format(self._seconds)})
            return (answer or "").removeprefix("=")
        calls = {0: self._words()}
        for other in range(1, len(self._devices)):
            answer = self._get(str(other), 0, stop)
            if answer is None and stop():
                return ""
            calls[other] = _NOTHING.format(self._seconds) if answer is None else answer
            if answer is None:
                break  # the time is over, so the remaining processes need not be waited for
        if len(calls) == len(self._devices) and (before := _compared.get(self._devices)) is not None:
            client.key_value_delete(f"{before}/")  # all have made a later call, so all have read this verdict
        _compared[self._devices] = self._prefix
        problem = self._difference(calls) if len(set(calls.values())) > 1 else ""
        # the service keeps no empty values
        client.key_value_set(f"{self._prefix}/said", f"={problem}", allow_overwrite=True)
        return problem

    def _difference(self, calls: dict[int, str]) -> str:
        """Return the error message for processes whose calls differ, by their rank."""
        lines = "\n".join(f"  process {rank} calls {words}" for rank, words in sorted(calls.items()))
        return f"the processes of a group do not call the same collective (its call {self._number}):\n{lines}"

    def _get(self, key: str, margin: float, stop: Callable[[], bool]) -> str | None:
        """Wait for a key until `margin` seconds after the deadline. Return its value, or None if it is not set."""
        while (left := self._deadline + margin - time.monotonic()) > 0 and not stop():
            try:
                value: str = processes.client().blocking_key_value_get(
                    f"{self._prefix}/{key}", max(1, int(1000 * min(left, 1.0)))
                )
                return value
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
        return None
