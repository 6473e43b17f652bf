"""`init_process_group("graft")`."""

from __future__ import annotations

from typing import Any

from torch import distributed

from tensorgraft.frontends.torch_entry import loading
from tensorgraft.frontends.torch_entry.loading import TYPE


def register() -> None:
    """Register the backend of `init_process_group("graft")`, which PyTorch also takes as the accelerator's own: gloo,
    for tensors on the CPU and, by way of copies (`device/collectives.py`), for those on the device."""
    if distributed.is_available() and distributed.is_gloo_available():
        distributed.Backend.register_backend(TYPE, _process_group, extended_api=True, devices=["cpu", TYPE])


def _process_group(options: Any, _: Any) -> Any:
    if loading.loaded():  # a program that has used the CPU alone does not load the front end
        loading.part("core.devices").start_together()
    from torch.distributed import DebugLevel, ProcessGroupGloo, get_debug_level
    from torch.distributed.distributed_c10d import _create_process_group_wrapper

    group = ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
    group.options.global_ranks_in_group = options.global_ranks_in_group
    group.options.group_name = options.group_id
    group._set_sequence_number_for_group()
    if get_debug_level() != DebugLevel.DETAIL:
        return group
    # as PyTorch does for the groups that it implements: every call is first compared between the processes
    size = {"rank": options.group_rank, "world_size": options.group_size, "timeout": options.timeout}
    return _create_process_group_wrapper(group, f"{options.group_id}:wrapper", options.store, **size)
