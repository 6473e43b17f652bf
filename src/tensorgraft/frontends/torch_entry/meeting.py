"""Where the processes of a program meet: at the store of `torchrun`, or of the first of them."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

from tensorgraft.hub import processes

_kept: list[Any] = []  # the first process's store, which others may still ask


def coordinator(told: processes.Launched) -> str:
    """HOST:PORT on the machine of the first process, free when it chose: the same for all. Waits for that process.

    Raises `torch.distributed.DistStoreError` where it does not come."""
    from torch.distributed import PrefixStore, TCPStore

    first = told.rank == 0
    theirs = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    timeout = timedelta(seconds=processes.wait_seconds())
    # as `init_process_group` makes it: a process that has one serves both
    store = TCPStore(
        told.address, told.port, told.count, first and not theirs, timeout, wait_for_workers=False, multi_tenant=True
    )
    shared = PrefixStore(f"tensorgraft/{told.attempt}", store)
    if first:
        _kept.append(store)
        with socket.create_connection((told.address, told.port)) as line:
            host = line.getsockname()[0]  # of this machine, as it is reached from there
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
        shared.set("coordinator", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return shared.get("coordinator").decode()
