"""Whether the processes of a group call the same collective: asked of each other before anything is exchanged.

XLA exchanges what it is given. Where shapes differ, or collectives, that is a wrong result, a wait, or the end of a
process. So the processes compare in words what they are about to call, by way of JAX's coordination service, the first
time that one of them calls it: it may take some milliseconds, and later calls that look the same cost nothing. With
TORCH_DISTRIBUTED_DEBUG=DETAIL every call is compared.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from tensorgraft.backends.jax.spread import processes
from tensorgraft.backends.jax.spread.overdue import watched

_lock = threading.Lock()
_calls: Counter[tuple[int, ...]] = Counter()  # of each group, by its devices
_agreed: dict[tuple[int, ...], set[Hashable]] = {}
_MARGIN = 5.0  # seconds that the others wait for the first of them longer than that one does


def agreed(
    devices: tuple[int, ...], signature: Hashable, words: Callable[[], str], seconds: float
) -> contextlib.AbstractContextManager[Callable[[Sequence[Any]], None]]:
    """The context of a call of all processes of a group, which begins when all call the same, where this one has not
    called it before.

    Raises RuntimeError, in each of them, where they do not, or where one does not come in `seconds`."""
    with _lock:
        _calls[devices] += 1
        number, known = _calls[devices], _agreed.setdefault(devices, set())
    if signature in known and os.environ.get("TORCH_DISTRIBUTED_DEBUG") != "DETAIL":
        return watched(words, seconds)
    verdict = _compared(devices, number, words(), seconds)
    if verdict:
        raise RuntimeError(verdict)
    known.add(signature)
    return watched(words, seconds)


def _compared(devices: tuple[int, ...], number: int, mine: str, seconds: float) -> str:
    """The first process of the group reads what each says, and tells all what is wrong; "" for nothing."""
    client = processes.client()
    key = f"tensorgraft/collectives/{','.join(map(str, devices))}/{number}"
    own = {d.id for d in jax.local_devices()}
    rank = next(r for r, device in enumerate(devices) if device in own)
    if rank:
        client.key_value_set(f"{key}/{rank}", mine)
        try:
            return str(client.blocking_key_value_get(f"{key}/said", int(1000 * (seconds + _MARGIN)))).removeprefix("=")
        except jax.errors.JaxRuntimeError:
            return (
                f"collective {number} of {len(devices)} processes: process {rank}, which says this, calls {mine};"
                f" process 0 has not come within {seconds:g} s, or calls something that it has called before"
            )
    said = [mine]
    for other in range(1, len(devices)):
        try:
            said.append(client.blocking_key_value_get(f"{key}/{other}", int(1000 * seconds)))
        except jax.errors.JaxRuntimeError:
            said.append(f"nothing within {seconds:g} s, or something that it has called before")
            break  # the others wait no longer
    verdict = ""
    if len(set(said)) > 1:
        calls = "\n".join(f"  process {r} calls {s}" for r, s in enumerate(said))
        verdict = f"the processes of a group do not call the same collective (the {number}. of the group):\n{calls}"
    client.key_value_set(f"{key}/said", f"={verdict}")  # the service keeps no empty values
    return verdict
