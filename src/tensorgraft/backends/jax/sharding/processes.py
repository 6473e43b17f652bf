"""Joining the processes of one program: `jax.devices()` are then those of all, and a program runs on all at once.

JAX can join before it makes its devices, and then alone. So it is done where JAX starts as the default backend of a
process that a launcher has started among others.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from typing import Any

import jax
from jax._src import api, clusters, distributed, xla_bridge

from tensorgraft.hub import processes, registry

HEARTBEAT = 30  # seconds without a sign of life after which a process counts as dead, and the others end


def count() -> int:
    """Return the number of processes that have joined; 1 in a program of one."""
    return distributed.global_state.num_processes if distributed.global_state.client is not None else 1


def index() -> int:
    """Return the index of this process among them."""
    return jax.process_index() if count() > 1 else 0


def client() -> Any:
    """Return JAX's coordination service: small values and barriers for all processes."""
    return distributed.global_state.client


def join() -> None:
    """Join the other processes of the program, if there are any, before JAX makes its devices.

    Raises RuntimeError where the others do not come."""
    started = bool(xla_bridge._backends)
    if distributed.global_state.client is not None:  # the program has done it
        if not started:
            _prepare()
        _joined()
        return
    if started or not processes.may_join():
        return
    # JAX is used in addition to another backend, perhaps by some processes only
    if registry.parse(registry.initial())[0] != "jax":
        return
    launch = processes.launched()
    if launch is not None:
        if processes.meet is not None:  # PyTorch is there, by whose store they meet
            _initialize(processes.meet(launch), launch.count, launch.rank, _local_devices())
    elif os.environ.get(processes.DETECT) == str(os.getpid()) and _scheduler() is not None:
        _initialize(None, None, None, None)


def _initialize(address: str | None, n: int | None, rank: int | None, local: list[int] | None) -> None:
    _prepare()
    # its signal handler keeps SIGTERM, by which launchers end processes, from ending one
    jax.config.update("jax_enable_preemption_service", False)
    seconds = int(processes.wait_seconds())
    try:
        jax.distributed.initialize(
            address,
            n,
            rank,
            local_device_ids=local,
            cluster_detection_method=None if address is None else "deactivate",
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except Exception as error:
        who = "this process" if rank is None else f"process {rank} of {n}"
        raise RuntimeError(
            f"{who} could not connect to the other processes of the program: {str(error).splitlines()[0]}"
        ) from error
    _joined()


def _prepare() -> None:
    # the number of devices of the CPU; one for each process by default
    if count := os.environ.get("TENSORGRAFT_DEVICES"):
        jax.config.update("jax_num_cpu_devices", int(count))
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # see `global_programs`: programs of a process alone, too


def _local_devices() -> list[int] | None:
    """Return this process's GPU where a machine has several processes, as with `torchrun`; None leaves it to JAX."""
    rank, n = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    one_gpu_each = "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")  # each process sees its own already
    return [int(rank)] if rank.isdigit() and n.isdigit() and int(n) > 1 and not one_gpu_each else None


def _scheduler() -> type[clusters.ClusterEnv] | None:
    """Return the launcher of these processes that JAX knows: SLURM, Open MPI, a cloud TPU, an indexed Kubernetes
    job."""
    for kind in clusters.ClusterEnv._cluster_types:
        if kind.opt_in_only_method or (kind.name == "k8s" and "JOB_COMPLETION_INDEX" not in os.environ):
            continue
        if kind.is_env_present():
            return kind if kind.get_process_count() > 1 else None
    return None


# ---- the end of a process --------------------------------------------------------------------------------------------


def _joined() -> None:
    if os.environ.get(processes.JOINED) == str(os.getpid()):
        return
    os.environ[processes.JOINED] = str(os.getpid())
    processes.joined = True
    before = sys.excepthook

    def note(*error: Any) -> None:
        processes.failing = True
        before(*error)

    sys.excepthook = note
    atexit.register(_exit_without_waiting)  # runs before JAX's own, which waits for all processes


def _exit_without_waiting() -> None:
    """Do not wait for other processes at exit after an error: they wait for this process elsewhere, and will notice
    that it has ended."""
    if not processes.failing:
        return
    atexit.unregister(api.clean_up)
    for handle in (distributed.global_state.client, distributed.global_state.service):
        if handle is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))  # its destructor would say goodbye
