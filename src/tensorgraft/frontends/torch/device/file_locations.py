"""Locations of storages in files, recorded in addition to the file's own tags, so that any PyTorch can load it.

PyTorch tags every storage in a file with the device to which `torch.load` brings it back, and refuses a tag that it
does not know, or whose device is not there. Storages of ours are tagged "cpu": a PyTorch without tensorgraft, or
without CUDA, loads such a file, without `map_location`, onto the CPU. Their devices ("graft:1"; "cuda:0" in a program
that said CUDA, under `tensorgraft run`) are in a record of its own in the file, which `torch.load` here substitutes for
the tags before `map_location` sees them. Locations on CUDA are the CPU where there is no CUDA.
"""

from __future__ import annotations

import copyreg
import functools
import io
import json
from collections import ChainMap
from collections.abc import Callable, MutableMapping
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorgraft.frontends.torch.core import devices
from tensorgraft.frontends.torch_entry.late_loading import ENTRY, RECORD

_MAGIC = torch.serialization.MAGIC_NUMBER.to_bytes(10, "little")  # in pickled form


class Location(str):
    """A tag out of a file's record."""


def location_name(device: torch.device) -> str:
    """Return the name of a device of ours in files; `tensorgraft run` replaces this function."""
    return str(device)


def restored(storage: Any, location: Any) -> Any:
    """Return the storage on a device of ours, or a former one of CUDA on the CPU; None for other locations."""
    if isinstance(location, Location) and location.startswith("cuda") and not torch.cuda.is_available():
        return storage
    if str(location).partition(":")[0] != devices.TYPE:  # a table of the program's may name a `torch.device`
        return None
    device = torch.device(location)
    try:
        devices.slot_of(device)
    except RuntimeError as error:
        raise RuntimeError(
            f"Attempting to deserialize object on the device {location}: {error}. Please use torch.load with"
            " map_location to map your storages to an existing device."
        ) from None
    return storage.to(device=device)


# ---- saving ----------------------------------------------------------------------------------------------------------


class _Marking:
    """The pickle module of a `torch.save`, whose picklers tag storages on the device with "cpu" and record their
    locations. PyTorch derives a class of `Pickler` and calls `dump`."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.locations: dict[str, str] = {}
        mark = self._mark
        own_table: Any = getattr(module.Pickler, "dispatch_table", None)
        table = own_table if isinstance(own_table, MutableMapping) else copyreg.dispatch_table

        class Pickler(module.Pickler):
            dispatch_table: ClassVar = ChainMap({torch.device: _reduce_device}, table)

            def __init_subclass__(cls) -> None:
                original = cls.persistent_id
                cls.persistent_id = lambda self, x: mark(x, original(self, x))

        self.Pickler = Pickler

    def _mark(self, x: Any, tag: Any) -> Any:
        if isinstance(tag, tuple) and tag[0] == "storage":
            storage = x._untyped_storage if isinstance(x, torch.TypedStorage) else x
            device = getattr(storage, "saved_from", None) or torch.device(tag[3])
            if device.type == devices.TYPE:
                self.locations[tag[2]] = location_name(device)
                return (*tag[:3], "cpu", *tag[4:])
        return tag

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def _reduce_device(device: torch.device) -> Any:
    if device.type != devices.TYPE or device.index is None:
        return device.__reduce__()
    name = torch.device(location_name(device))
    return torch.device, (name.type, name.index)


def _save(original: Callable[..., None]) -> Callable[..., None]:
    def save(obj: Any, zip_file: Any, pickle_module: Any, *rest: Any, **options: Any) -> None:
        marking = _Marking(pickle_module)
        original(obj, zip_file, marking, *rest, **options)
        if marking.locations:
            content = json.dumps(marking.locations).encode()
            zip_file.write_record(RECORD, content, len(content))

    return functools.wraps(original)(save)


class _LegacyMarking(_Marking):
    """The pickle module of a legacy `torch.save`: the table of the machine, which precedes the object in the file,
    waits until the object is pickled."""

    def __init__(self, module: Any, saved: Any) -> None:
        super().__init__(module)
        self.saved = saved
        self._saved_objects: list[tuple[Any, int]] = []
        pickled = self._pickled = io.BytesIO()

        class Pickler(self.Pickler):  # type: ignore[name-defined]
            def __init__(self, file: Any, *args: Any, **options: Any) -> None:
                super().__init__(pickled, *args, **options)

        self.Pickler = Pickler

    def dump(self, x: Any, file: Any, protocol: int) -> None:
        if isinstance(x, dict):
            self._saved_objects.append((x, protocol))
            return
        if isinstance(x, list):  # the keys of the storages, when the object is pickled
            for table, version in self._saved_objects:
                marks = {ENTRY: self.locations} if self.locations else {}
                self.module.dump({**table, **marks}, file, protocol=version)
            file.write(self._pickled.getvalue())
        self.module.dump(x, file, protocol=protocol)

    def _mark(self, x: Any, tag: Any) -> Any:
        if tag is not None and x is not self.saved and hasattr(getattr(x, "_untyped_storage", None), "saved_from"):
            raise NotImplementedError(
                "quantised tensors cannot be saved in the legacy format of torch.save: leave out"
                " _use_new_zipfile_serialization=False"
            )
        return super()._mark(x, tag)


def _legacy_save(original: Callable[..., None]) -> Callable[..., None]:
    def legacy_save(obj: Any, f: Any, pickle_module: Any, pickle_protocol: int) -> None:
        original(obj, f, _LegacyMarking(pickle_module, obj), pickle_protocol)

    return functools.wraps(original)(legacy_save)


# ---- loading ---------------------------------------------------------------------------------------------------------


class _Marked:
    """The pickle module of a `torch.load`, whose unpicklers find the record's locations in the place of the tags."""

    def __init__(self, module: Any, locations: dict[str, str]) -> None:
        self._module = module

        class Unpickler(module.Unpickler):
            def _load(self, tag: Any) -> Any:
                if type(tag) is tuple and len(tag) > 3 and tag[0] in ("storage", b"storage") and tag[2] in locations:
                    tag = (*tag[:3], _as_location(locations[tag[2]]), *tag[4:])
                return vars(self)["_persistent_load"](tag)

            # PyTorch assigns it
            persistent_load = property(
                lambda self: self._load, lambda self, load: vars(self).update(_persistent_load=load)
            )

        self.Unpickler = Unpickler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _tensors_are_fake() -> bool:
    modes = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
    return any(isinstance(mode, FakeTensorMode) for mode in modes)


def _as_location(location: str) -> str:
    if location.startswith("cuda") and _tensors_are_fake() and not torch.cuda.is_available():
        return "cpu"  # a fake tensor may say that it is on CUDA anywhere
    return Location(location)


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(zip_file: Any, map_location: Any, pickle_module: Any, *rest: Any, **options: Any) -> Any:
        if zip_file.has_record(RECORD):
            pickle_module = _Marked(pickle_module, _checked(_read(zip_file)))
        return original(zip_file, map_location, pickle_module, *rest, **options)

    return functools.wraps(original)(load)


def _read(zip_file: Any) -> Any:
    try:
        return json.loads(zip_file.get_record(RECORD))
    except (ValueError, RecursionError) as error:
        raise RuntimeError(f"torch.load: the record {RECORD} of the file is broken: {error}") from None


def _checked(locations: Any) -> dict[str, str]:
    """Names of storages and of devices, out of a file."""
    if not isinstance(locations, dict) or not all(type(x) is str for pair in locations.items() for x in pair):
        raise RuntimeError(f"torch.load: the record {RECORD} of the file does not contain the locations of storages")
    return locations


def _legacy_load(original: Callable[..., Any]) -> Callable[..., Any]:
    def legacy_load(f: Any, map_location: Any, pickle_module: Any, **options: Any) -> Any:
        locations = _legacy_locations(f, pickle_module, options)
        if locations:
            pickle_module = _Marked(pickle_module, locations)
        return original(f, map_location, pickle_module, **options)

    return functools.wraps(original)(legacy_load)


def _legacy_locations(f: Any, pickle_module: Any, options: dict[str, Any]) -> dict[str, str]:
    """Out of the three values with which a file of the legacy format begins; `f` stays where it is."""
    if not (hasattr(f, "seek") and hasattr(f, "tell")):
        return {}
    start = f.tell()
    try:
        if _MAGIC not in f.read(32):
            return {}
        f.seek(start)
        for _ in range(2):
            pickle_module.load(f, **options)
        return _checked(pickle_module.load(f, **options).get(ENTRY, {}))
    except Exception:  # a file of another kind, for which PyTorch raises the error
        return {}
    finally:
        f.seek(start)


FILES = {"_save": _save, "_legacy_save": _legacy_save, "_load": _load, "_legacy_load": _legacy_load}
