"""The rendezvous of a program's processes: at the store of `torchrun`, or of the first process."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any

from tensorgraft.hub import processes

_FAILED = "absent "
_kept: list[Any] = []  # the first process's store, which others may still ask


def coordinator(launch: processes.Launched) -> str:
    """Return HOST:PORT on the machine of the first process, a port that was free when it chose it; the same in all
    processes, once all have arrived.

    Raises RuntimeError on every process, with those that have not arrived in `hub.processes.wait_seconds()`."""
    from torch.distributed import DistError, PrefixStore, TCPStore

    first, seconds = launch.rank == 0, processes.wait_seconds()
    has_agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        # like that of `init_process_group`: a process that has one store uses it for both
        store = TCPStore(
            launch.address,
            launch.port,
            launch.count,
            is_master=first and not has_agent_store,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
        shared = PrefixStore(f"tensorgraft/{launch.attempt}", store)
        shared.set(str(launch.rank), "here")
        if first:
            _kept.append(store)
            absent = _absent(shared, launch.count, seconds)
            shared.set("coordinator", f"{_FAILED}{absent}" if absent else _free_port(launch))
        shared.wait(["coordinator"], timedelta(seconds=2 * seconds))
    except DistError as error:
        raise RuntimeError(
            f"process {launch.rank} of {launch.count} could not connect to the others at {launch.address}:"
            f"{launch.port}: {str(error).splitlines()[0]}"
        ) from None
    where = shared.get("coordinator").decode()
    if where.startswith(_FAILED):
        raise RuntimeError(
            f"process {where.removeprefix(_FAILED)} of {launch.count} has not started JAX, the backend of the"
            f" program, within {seconds:g} s ($TENSORGRAFT_PROCESSES_TIMEOUT) of the first. If only some of the"
            " processes use it, set TENSORGRAFT_JOIN=0 to keep them separate"
        )
    return where


def _absent(shared: Any, count: int, seconds: float) -> str:
    """Return the first process that does not come."""
    from torch.distributed import DistStoreError

    deadline = time.monotonic() + seconds
    for rank in range(count):
        try:
            shared.wait([str(rank)], timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
        except DistStoreError:
            return str(rank)
    return ""


def _free_port(launch: processes.Launched) -> str:
    with socket.create_connection((launch.address, launch.port)) as line:
        host = line.getsockname()[0]  # this machine's address in that network
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
