"""Files of TorchScript: any PyTorch can load a file that `torch.jit.save` has written with tensors of the device, on
the CPU, and `torch.jit.load` here loads it on the original device.

A file names devices in pickles, beside each storage, and in code (`torch.device("graft:1")`). No PyTorch without this
package can read that name. Where a file would say it, it says `cpu:0`, which PyTorch itself does not write, and the
record `extra/tensorgraft.device` has the name of the device.
"""

from __future__ import annotations

import functools
import io
import os
import pickletools
import re
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft import files
from tensorgraft.frontends.torch.core.devices import TYPE, slot_at, slot_named, slot_of

Rename = Callable[[str], str]

_MARK = "extra/tensorgraft.device"
_HERE = "cpu:0"
_IN_CODE = re.compile(rb'torch\.device\("([^"]+)" *\)')
_WRITTEN = re.compile(r"\.data/|version$|byteorder$")  # records that the writer creates

# `tensorgraft run`: what a device of the script's is here
translate: Callable[[Any], Any] | None = None


def _save(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(self: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, f, *args, **kwargs)
        portable = _portable(os.fspath(f))
        if portable is not None:
            files.write(f, portable)
        return result

    return save


def _save_to_buffer(original: Callable[..., bytes]) -> Callable[..., bytes]:
    @functools.wraps(original)
    def save_to_buffer(self: Any, *args: Any, **kwargs: Any) -> bytes:
        content = original(self, *args, **kwargs)
        return _portable(io.BytesIO(content)) or content

    return save_to_buffer


SAVING = {"save": _save, "save_to_buffer": _save_to_buffer}


def load(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if translate is not None:
            map_location = translate(map_location)
        if isinstance(f, str | os.PathLike):
            content = None
            source: Any = os.fspath(f)
        else:
            content = f.read()
            source = io.BytesIO(content)
        try:
            reader = torch.PyTorchFileReader(source)
        except RuntimeError:  # no file, or no archive: PyTorch says so
            reader = None
        if reader is not None:
            content = _relocated(reader, map_location) or content
        return original(f if content is None else io.BytesIO(content), map_location, *args, **kwargs)

    return call


def _portable(source: Any) -> bytes | None:
    """Return the archive with other names for the device. None: it has none."""
    reader = torch.PyTorchFileReader(source)
    seen_devices: list[str] = []

    def rename(device: str) -> str:
        if device.partition(":")[0] != TYPE:
            return device
        seen_devices.append(device)
        return _HERE

    records = _renamed(reader, rename, rename)
    if not seen_devices:
        return None
    slot = slot_at(torch.device(seen_devices[0]).index)
    return _archive(reader, {**records, _MARK: slot.name.encode()})


def _relocated(reader: Any, location: Any) -> bytes | None:
    """Return the archive with the device in the places where it is to be: all that was on the device, and under
    `tensorgraft run` all that was on CUDA. None: as it is."""
    mark = reader.get_record(_MARK).decode() if reader.has_record(_MARK) else None
    if location is not None and torch.device(location).type == TYPE:
        new_device = str(slot_of(torch.device(location)).device)
    elif location is None and mark is not None:
        new_device = str(slot_named(mark).device)
    else:
        new_device = _HERE

    def rename(device: str) -> str:
        if translate is not None and device.partition(":")[0] == "cuda":
            return str(translate(device)) if location is None else new_device
        return new_device if device == _HERE and mark is not None else device

    records = _renamed(reader, rename if location is None else str, rename)
    return _archive(reader, records) if records else None


def _renamed(reader: Any, in_pickles: Rename, in_code: Rename) -> dict[str, bytes]:
    """Return the records that have other devices, with these."""
    records = {}
    for name in reader.get_all_records():
        if name.endswith(".pkl"):
            before = reader.get_record(name)
            renamed = _pickle(before, in_pickles)
        elif name.startswith("code/") and name.endswith(".py"):
            before = reader.get_record(name)
            renamed = _IN_CODE.sub(functools.partial(_constant, in_code), before)
        else:
            continue
        if renamed != before:
            records[name] = renamed
    return records


def _constant(rename: Rename, match: re.Match[bytes]) -> bytes:
    """Return a renamed device constant, padded to its old length if it fits: error messages count letters of the
    code."""
    text = b'torch.device("' + rename(match[1].decode()).encode() + b'"'
    return text.ljust(len(match[0]) - 1) + b")"


def _pickle(content: bytes, rename: Rename) -> bytes:
    """Return a pickle with other strings where it names devices of storages."""
    parts, at = [], 0
    for code, value, start in pickletools.genops(content):
        if code.name == "BINUNICODE" and isinstance(value, str) and start is not None and value.isascii():
            new = rename(value) if re.fullmatch(r"[a-z]+:\d+", value) else value
            if new != value:
                parts += [content[at:start], b"X", len(new).to_bytes(4, "little"), new.encode()]
                at = start + 5 + len(value)
    return b"".join([*parts, content[at:]])


def _archive(reader: Any, records: dict[str, bytes]) -> bytes:
    """Return the archive of `reader` with other records."""
    out = io.BytesIO()
    writer = torch.PyTorchFileWriter(out)
    for name in {**dict.fromkeys(reader.get_all_records()), **records}:
        if not _WRITTEN.match(name):
            content = records[name] if name in records else reader.get_record(name)
            writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return out.getvalue()
