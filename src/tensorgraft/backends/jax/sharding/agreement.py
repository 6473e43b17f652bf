"""Check, over JAX's coordination service, that all processes of a program are about to do the same.

Process 0 compares, and sends the answer to the others, so that an error is raised on every process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax.errors import JaxRuntimeError

from tensorgraft.backends.jax.sharding import processes
from tensorgraft.hub.processes import wait_seconds

_OURS = str(Path(__file__).parents[3]) + os.sep
_LIBRARY = f"{os.sep}site-packages{os.sep}"
_STANDARD = str(Path(os.__file__).parent) + os.sep
_MOST = 4  # names in a message
_lock = threading.Lock()
_times = 0


def agree(action: str, values: Mapping[str, str], advice: str = "") -> None:
    """Check that all processes do the same action with the same values. Every process has to call this.

    Arguments:
        action: what is being done; the location in the program is added.
        values: what has to be equal, by name.
        advice: what to do if it is not.

    Raises RuntimeError on every process if the actions or values differ, or if a process does not call this within
    `hub.processes.wait_seconds()`.
    """
    global _times
    with _lock:
        n, _times = _times, _times + 1
    client, rank, seconds = processes.client(), processes.index(), wait_seconds()
    at = f"tensorgraft/agreement/{n}"
    text = json.dumps([action + _location(), dict(values)])
    client.key_value_set(f"{at}/{rank}", text)
    if rank == 0:
        answer = _compare(client, at, text, seconds, advice)
        client.key_value_set(f"{at}/verdict", answer)
        if n:
            client.key_value_delete(f"tensorgraft/agreement/{n - 1}/")  # all have read it, or they would not be here
    else:
        text_of_first = _get(client, f"{at}/verdict", 2 * seconds)
        answer = _absent(0, seconds, rank, json.loads(text)[0]) if text_of_first is None else text_of_first
    if answer:
        raise RuntimeError(answer)


def _compare(client: Any, at: str, text: str, seconds: float, advice: str) -> str:
    deadline = time.monotonic() + seconds
    action, values = json.loads(text)
    for other in range(1, processes.count()):
        other_text = _get(client, f"{at}/{other}", max(deadline - time.monotonic(), 0.001))
        if other_text is None:
            return _absent(other, seconds, 0, action)
        if other_text == text:
            continue
        does, says = json.loads(other_text)
        differing = [name for name in {**values, **says} if values.get(name) != says.get(name)]
        if does.partition(" (")[0] != action.partition(" (")[0] or not values.keys() & says.keys():
            return f"the processes of the program do different things: process 0 {action}, process {other} {does}"
        if differing:
            ellipsis = ", ..." if len(differing) > _MOST else ""
            return (
                f"the processes of the program differ in {', '.join(differing[:_MOST])}{ellipsis}: process 0 {action},"
                f" process {other} {does}{advice and '. '}{advice}"
            )
    return ""


def _absent(who: int, seconds: float, rank: int, action: str) -> str:
    return (
        f"process {who} of the program has not come within {seconds:g} s ($TENSORGRAFT_PROCESSES_TIMEOUT) to where"
        f" process {rank} is, which {action}: all processes compute with what is spread over them, and ask for it"
    )


def _get(client: Any, key: str, seconds: float) -> str | None:
    try:
        value: str = client.blocking_key_value_get(key, int(1000 * seconds) or 1)
    except JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        return None
    return value


def _location() -> str:
    """Return the program's source location: that of the innermost frame outside of libraries."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, _STANDARD, "<")) and _LIBRARY not in file:
            return f" ({Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name})"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
