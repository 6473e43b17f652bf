"""The processes of one program, described by the environment variables of `torchrun`.

`$RANK` of `$WORLD_SIZE` processes, which connect to `$MASTER_ADDR:$MASTER_PORT`; `$LOCAL_RANK` of `$LOCAL_WORLD_SIZE`
on a machine.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass

# The id of the process that has joined the others: its children inherit its rank, but are different processes.
JOINED = "TENSORGRAFT_JOINED"
# The id of the process started by `tensorgraft run`: without a rank, its backend may ask the machine's scheduler.
DETECT = "TENSORGRAFT_CLUSTER"
_SCHEDULERS = ("SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "JOB_COMPLETION_INDEX")
_JOIN = "TENSORGRAFT_JOIN"  # 0: do not join; each process uses its own devices
_TIMEOUT = "TENSORGRAFT_PROCESSES_TIMEOUT"

failing = False  # this process ends with an error and does not wait for the others
joined = False  # arrays can be spread over the devices of several processes
meet: Callable[[Launched], str] | None = None  # HOST:PORT that the first process has chosen; PyTorch's import sets it


@dataclass(frozen=True)
class Launched:
    """This process among those of its program."""

    rank: int
    count: int
    address: str
    port: int
    attempt: str  # the number of restarts by the launcher after failures


def wait_seconds() -> float:
    """Return the seconds that a process waits for the others at a meeting point (`$TENSORGRAFT_PROCESSES_TIMEOUT`)."""
    return float(os.environ.get(_TIMEOUT) or 300)


def may_join() -> bool:
    """Return True if this process was started by the launcher, not by another process of the program, and joining is
    not switched off."""
    is_original = os.environ.get(JOINED) in (None, str(os.getpid()))
    return is_original and os.environ.get(_JOIN) != "0" and multiprocessing.parent_process() is None


def several() -> bool:
    """Return True if the environment says that this process may be one of several."""
    detecting = os.environ.get(DETECT) == str(os.getpid()) and any(name in os.environ for name in _SCHEDULERS)
    return joined or (may_join() and (detecting or launched() is not None))


def launched() -> Launched | None:
    """Return the launcher's description of this process; None if the program has a single process."""
    values = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    address = os.environ.get("MASTER_ADDR")
    if not address or not all(n.isdigit() for n in values) or int(values[1]) < 2:
        return None
    rank, count, port = map(int, values)
    return Launched(rank, count, address, port, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
