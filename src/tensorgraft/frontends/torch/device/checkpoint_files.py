"""Files of `torch.distributed.checkpoint`: an interrupted save leaves the previous checkpoint intact, safetensors files
may contain pieces of tensors, and asynchronous saves do not interfere with the program's collectives.

PyTorch's writer overwrites the files of a checkpoint in the same folder. Here a second save into a folder uses new
files; `.metadata`, which names the files of a checkpoint, replaces the previous one in one step when all are written,
and only then are the previous files removed. (A save into a new folder has PyTorch's names.)
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import io
import os
import pickle
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.futures import Future

from tensorgraft.frontends.torch.core.devices import TYPE

_OURS = re.compile(r"__\d+_[0-9a-f]{32}_\d+\.distcp")


def new_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `prepare_global_plan`, which chooses the prefix of file names of each process."""

    @functools.wraps(original)
    def prepare_global_plan(self: Any, plans: Any) -> Any:
        new_plans = original(self, plans)
        if not self._metadata_exists() or not self.use_collectives:
            return new_plans
        run = self.save_id.replace("-", "")
        prefixes = [dataclasses.replace(p.storage_data, prefix=f"{p.storage_data.prefix}{run}_") for p in new_plans]
        return [dataclasses.replace(p, storage_data=prefix) for p, prefix in zip(new_plans, prefixes, strict=True)]

    return prepare_global_plan


def exchange(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `finish`, which writes the metadata to another file and renames it."""
    from torch.distributed.checkpoint.filesystem import FileSystem

    class Replacing(FileSystem):
        """A writer that replaces a file atomically: at any time the old or the new one exists."""

        def rm_file(self, path: Any) -> None:
            pass

        def rename(self, path: Any, new_path: Any) -> None:
            os.replace(path, new_path)

    @functools.wraps(original)
    def finish(self: Any, metadata: Any, results: Any) -> Any:
        if type(self.fs) is not FileSystem or not self.use_collectives:
            return original(self, metadata, results)
        folder = Path(self.path)
        before = _files_of(folder / ".metadata")
        file_system, self.fs = self.fs, Replacing()
        try:
            result = original(self, metadata, results)
        finally:
            self.fs = file_system
        interrupted = {f.name for f in folder.iterdir() if _OURS.fullmatch(f.name)}
        for name in (before | interrupted) - _files_of(folder / ".metadata"):
            (folder / name).unlink(missing_ok=True)
        return result

    return finish


def _files_of(metadata: Path) -> set[str]:
    if not metadata.exists():
        return set()
    try:
        infos = _Metadata(io.BytesIO(metadata.read_bytes())).load().storage_data.values()
        names = {str(info.relative_path) for info in infos}
    except Exception as error:  # a file that is no pickle can raise any error
        raise ValueError(f"{metadata} is broken, or is not the metadata of a PyTorch checkpoint: {error}") from error
    return {name for name in names if Path(name).name == name}  # no other is in the folder


class _Metadata(pickle._Unpickler):  # the one in C makes room for as many objects as a file says that it has
    """Unpickles PyTorch's metadata without running code: a checkpoint may come from anyone."""

    def find_class(self, module: str, name: str) -> Any:
        module = "pathlib" if module == "pathlib._local" else module  # the name in Python 3.13
        if (module, name) in _HARMLESS:
            return super().find_class(module, name)
        if module.startswith(("torch.distributed.checkpoint.", "torch.distributed.tensor")):
            cls = super().find_class(module, name)
            if isinstance(cls, type) and (dataclasses.is_dataclass(cls) or issubclass(cls, enum.Enum)):
                return cls
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(
            f"it contains {module}.{name}, which is not allowed in the metadata of a checkpoint"
        )


_HARMLESS = {
    *(("builtins", name) for name in ("dict", "list", "set", "tuple")),
    *(("pathlib", name) for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")),
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}


def one_piece_a_file(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `write_data` of the safetensors writer, which keeps one piece of a tensor for each process."""

    @functools.wraps(original)
    def write_data(self: Any, plan: Any, planner: Any) -> Any:
        turns: dict[int, list[Any]] = defaultdict(list)  # the n-th piece of each tensor
        occurrences: dict[str, int] = defaultdict(int)
        for item in plan.items:
            turns[occurrences[item.index.fqn]].append(item)
            occurrences[item.index.fqn] += 1
        if len(turns) < 2:
            return original(self, plan, planner)
        if not self.save_distributed:
            name = max(occurrences, key=lambda name: occurrences[name])
            raise ValueError(
                f"HuggingFaceStorageWriter: {name!r} is sharded over devices, in {occurrences[name]} pieces: pass"
                " save_distributed=True, and enable_consolidation=True for files that hold whole tensors"
            )
        processes = dist.get_world_size() if dist.is_initialized() else 1
        results: list[Any] = []
        for turn, items in turns.items():
            data = plan.storage_data | {"shard_index": plan.storage_data["shard_index"] + turn * processes}
            results += original(self, dataclasses.replace(plan, items=items, storage_data=data), planner).value()
        result_future: Future[list[Any]] = Future()
        result_future.set_result(results)
        return result_future

    return write_data


def own_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `async_save`, whose thread communicates with the other processes while their programs do. On PyTorch's
    own devices the program's collectives use another process group than those of the CPU; here both are gloo's and
    would be mixed up in one group."""

    @functools.wraps(original)
    def async_save(*args: Any, process_group: Any = None, **kwargs: Any) -> Any:
        if dist.is_initialized() and TYPE in dist.get_backend(process_group):
            process_group = _thread_group(process_group or dist.group.WORLD)
        return original(*args, process_group=process_group, **kwargs)

    return async_save


_thread_groups: dict[str, Any] = {}  # {name of the program's group: group}


def _is_alive(group: Any) -> bool:
    """Return True if the process group exists, and was not destroyed by `destroy_process_group`."""
    try:
        dist.get_backend(group)
    except ValueError:
        return False
    return True


def _thread_group(group: Any) -> Any:
    """Return a group of the same processes; made once, by all of them."""
    thread_group = _thread_groups.get(group.group_name)
    if thread_group is None or not _is_alive(thread_group):
        ranks = dist.get_process_group_ranks(group)
        thread_group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True, group_desc="async_save")
        _thread_groups[group.group_name] = thread_group
    return thread_group
