"""Checkpoints, read and written one array at a time: memory holds the largest array, not the file.

The format is safetensors' (https://github.com/huggingface/safetensors): a JSON header with dtype, shape and place of
each array, then their bytes. Its library writes arrays that are all in memory; `write` takes them one after the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tensorgraft import files

_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I64": np.int64,
    "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32,
    "U64": np.uint64, "BOOL": np.bool_, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
_NAMES = {np.dtype(v): k for k, v in _DTYPES.items()}
_CHUNK = 1 << 24  # elements that are copied at once
_LARGEST_HEADER = 100_000_000  # bytes, as in the library


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: where its bytes are."""

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int

    def __call__(self) -> np.ndarray:
        count = int(np.prod(self.shape, dtype=np.int64))
        with self.path.open("rb") as file:
            x = np.fromfile(file, self.dtype, count, offset=self.start)
        if x.size != count:
            raise ValueError(f"{self.path} is cut short: an array of shape {self.shape} has {x.size} elements")
        return x.reshape(self.shape)


class Checkpoint(Mapping[str, Callable[[], np.ndarray]]):
    """Names of arrays -> functions that read them. Takes a mapping of arrays, a safetensors file, a folder of such
    files (an index is not needed), or a PyTorch file."""

    def __init__(self, source: Any) -> None:
        self.title = "the checkpoint" if isinstance(source, Mapping) else str(source)
        self._arrays: dict[str, Callable[[], np.ndarray]] = {}
        if isinstance(source, Mapping):
            self._arrays = {name: lambda x=x: _array(x) for name, x in source.items()}  # type: ignore[misc]
            return
        path = Path(source)
        if path.is_dir():
            shards = sorted(path.glob("*.safetensors"))
            if not shards:
                raise FileNotFoundError(f"{path} has no file *.safetensors")
            for shard in shards:
                self._arrays |= _slots(shard)
        elif path.suffix in (".pt", ".pth", ".bin"):
            import torch

            state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            self._arrays = {name: lambda x=x: _array(x) for name, x in state.items()}  # type: ignore[misc]
        else:
            self._arrays = dict(_slots(path))

    def __getitem__(self, name: str) -> Callable[[], np.ndarray]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _array(x: Any) -> np.ndarray:
    """An array of any framework, in the memory of the host."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        if str(x.dtype) == "torch.bfloat16":
            import torch

            return np.asarray(x.contiguous().view(torch.uint16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(x.numpy() if hasattr(x, "numpy") and not isinstance(x, np.ndarray) else x)


def _slots(path: Path) -> dict[str, StoredArray]:
    """The arrays of a safetensors file. Raises ValueError for what is none."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        total = path.stat().st_size
        if not 2 <= size <= min(_LARGEST_HEADER, total - 8):
            raise ValueError(f"{path} is no safetensors file")
        try:
            header = json.loads(file.read(size))
        except ValueError:
            raise ValueError(f"{path} is no safetensors file: its header is no JSON") from None
    slots = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{name} in {path} has the dtype {entry['dtype']}, which is not known here")
        dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
        start, stop = entry["data_offsets"]
        if stop - start != int(np.prod(shape, dtype=np.int64)) * dtype.itemsize or 8 + size + stop > total:
            raise ValueError(f"{name} in {path} is not whole: {stop - start} bytes for {dtype}{list(shape)}")
        slots[name] = StoredArray(path, dtype, shape, 8 + size + start)
    return slots


def write(
    path: str | os.PathLike[str],
    entries: Sequence[tuple[str, np.dtype, tuple[int, ...]]],
    arrays: Callable[[str], Iterator[np.ndarray]],
) -> None:
    """Write a safetensors file; `arrays` yields the parts of each array in order. A file that was there stays as it is
    until the new one is whole."""
    header: dict[str, Any] = {}
    at = 0
    for name, dtype, shape in entries:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        header[name] = {"dtype": _NAMES[np.dtype(dtype)], "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with files.replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, dtype, _ in entries:
            for part in arrays(name):
                for piece in _pieces(part):
                    file.write(np.ascontiguousarray(piece, dtype).reshape(-1).view(np.uint8).data)


def _pieces(x: np.ndarray) -> Iterator[np.ndarray]:
    """Parts of an array along its first axis that are small enough to copy."""
    if x.ndim == 0 or x.size <= _CHUNK:
        yield x
        return
    rows = max(_CHUNK * len(x) // x.size, 1)
    for start in range(0, len(x), rows):
        yield from _pieces(x[start]) if rows == 1 and x[start].size > _CHUNK else (x[start : start + rows],)
