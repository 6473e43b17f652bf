"""Agreement of the processes of a program, compared over JAX's coordination service before it counts.

Process 0 compares, and tells the others: an error is one on every process.
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


def agree(what: str, said: Mapping[str, str], advice: str = "") -> None:
    """Check that all processes do the same, with the same values: every process has to call this.

    Arguments:
        what: is being done; where in the program is added.
        said: by name, what is to be equal.
        advice: what to do where it is not.

    Raises RuntimeError on every process where one does something else, says something else, or does not come in
    `hub.processes.wait_seconds()`.
    """
    global _times
    with _lock:
        n, _times = _times, _times + 1
    client, here, seconds = processes.client(), processes.index(), wait_seconds()
    at = f"tensorgraft/agreement/{n}"
    text = json.dumps([what + _place(), dict(said)])
    client.key_value_set(f"{at}/{here}", text)
    if here == 0:
        verdict = _judge(client, at, text, seconds, advice)
        client.key_value_set(f"{at}/verdict", verdict)
        if n:
            client.key_value_delete(f"tensorgraft/agreement/{n - 1}/")  # all have read it, or they would not be here
    else:
        told = _get(client, f"{at}/verdict", 2 * seconds)
        verdict = _absent(0, seconds, here, json.loads(text)[0]) if told is None else told
    if verdict:
        raise RuntimeError(verdict)


def _judge(client: Any, at: str, text: str, seconds: float, advice: str) -> str:
    until = time.monotonic() + seconds
    what, said = json.loads(text)
    for other in range(1, processes.count()):
        told = _get(client, f"{at}/{other}", max(until - time.monotonic(), 0.001))
        if told is None:
            return _absent(other, seconds, 0, what)
        if told == text:
            continue
        does, says = json.loads(told)
        differing = [name for name in {**said, **says} if said.get(name) != says.get(name)]
        if does.partition(" (")[0] != what.partition(" (")[0] or not said.keys() & says.keys():
            return f"the processes of the program do different things: process 0 {what}, process {other} {does}"
        if differing:
            more = ", ..." if len(differing) > _MOST else ""
            return (
                f"the processes of the program differ in {', '.join(differing[:_MOST])}{more}: process 0 {what},"
                f" process {other} {does}{advice and '. '}{advice}"
            )
    return ""


def _absent(who: int, seconds: float, here: int, what: str) -> str:
    return (
        f"process {who} of the program has not come within {seconds:g} s ($TENSORGRAFT_PROCESSES_TIMEOUT) to where"
        f" process {here} is, which {what}: all processes compute with what is spread over them, and ask for it"
    )


def _get(client: Any, key: str, seconds: float) -> str | None:
    try:
        told: str = client.blocking_key_value_get(key, int(1000 * seconds) or 1)
    except JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        return None
    return told


def _place() -> str:
    """Return the program's place in its source: the innermost frame that is nobody's library."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, _STANDARD, "<")) and _LIBRARY not in file:
            return f" ({Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name})"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
