"""The processes of one program, as who started them says in the environment: in the words of `torchrun`.

`$RANK` of `$WORLD_SIZE`, which meet at `$MASTER_ADDR:$MASTER_PORT`; `$LOCAL_RANK` of `$LOCAL_WORLD_SIZE` on a machine.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass

# Set, to its number, by a process that has joined the others: those that it starts inherit its rank, and are not it.
JOINED = "TENSORGRAFT_JOINED"
# Set, to its number, by `tensorgraft run`: where nothing is said here, the backend may ask the machine's scheduler.
DETECT = "TENSORGRAFT_CLUSTER"
_SCHEDULERS = ("SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "JOB_COMPLETION_INDEX")
_JOIN = "TENSORGRAFT_JOIN"  # 0: the devices of a process remain its own
_TIMEOUT = "TENSORGRAFT_PROCESSES_TIMEOUT"

failing = False  # this process is ending with an error: it does not wait for the others
joined = False  # arrays can be spread over the devices of several processes
meet: Callable[[Launched], str] | None = None  # HOST:PORT that the first process has chosen; PyTorch's import sets it


@dataclass(frozen=True)
class Launched:
    """This process among those of its program."""

    rank: int
    count: int
    address: str
    port: int
    attempt: str  # of a launcher that starts anew after a failure


def wait_seconds() -> float:
    """Return the seconds that a process waits for another one to come to where it is
    (`$TENSORGRAFT_PROCESSES_TIMEOUT`)."""
    return float(os.environ.get(_TIMEOUT) or 300)


def may_join() -> bool:
    """Return whether this process is the one that was started, none that it started itself, and nobody said
    otherwise."""
    is_original = os.environ.get(JOINED) in (None, str(os.getpid()))
    return is_original and os.environ.get(_JOIN) != "0" and multiprocessing.parent_process() is None


def several() -> bool:
    """Return whether this process may be one of several, as far as the environment says."""
    detecting = os.environ.get(DETECT) == str(os.getpid()) and any(name in os.environ for name in _SCHEDULERS)
    return joined or (may_join() and (detecting or launched() is not None))


def launched() -> Launched | None:
    """Return what a launcher of several processes says; None in a program of one."""
    values = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    address = os.environ.get("MASTER_ADDR")
    if not address or not all(n.isdigit() for n in values) or int(values[1]) < 2:
        return None
    rank, count, port = map(int, values)
    return Launched(rank, count, address, port, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
