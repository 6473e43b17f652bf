"""The files of JAX's compilation cache: each file is complete, or counts as missing.

JAX writes a file in place. If the process is killed or the disk is full, a partial file remains, which every later
process reads, cannot use, and does not remove; and with the `zstandard` package, changed bits are not detected, and
would be run.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

from jax._src import compilation_cache
from jax.experimental.compilation_cache.compilation_cache import reset_cache

_MARK = b"tensorgraft"
_END = len(_MARK) + 4


class Entries:
    """A cache for JAX. Each file ends with a mark and a checksum of its name and content, and is written under another
    name and renamed."""

    def __init__(self, path: str) -> None:
        self.path = self._path = Path(path)  # the second for JAX's log
        self.path.mkdir(parents=True, exist_ok=True)

    def _file(self, key: str) -> Path:
        return self.path / f"{key}-cache"  # another library may have written it

    def get(self, key: str) -> bytes | None:
        """Return the content of an entry, or None if it does not exist. An incomplete file is deleted."""
        file = self._file(key)
        try:
            content = file.read_bytes()
        except OSError:  # not there, or not to be read
            return None
        value, mark, checksum = content[:-_END], content[-_END:-4], content[-4:]
        if mark == _MARK and _checksum(key, value) == checksum:
            return value
        with contextlib.suppress(OSError):
            file.unlink()
        return None

    def put(self, key: str, value: bytes) -> None:
        """Raises OSError, which JAX turns into a warning, if the entry cannot be written; no partial entry remains."""
        file = self._file(key)
        if file.exists():
            return
        temporary = file.with_name(f"{key}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(b"".join((value, _MARK, _checksum(key, value))))
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)


def _checksum(key: str, value: bytes) -> bytes:
    """Return a checksum of name and content, which is wrong for a file that was copied over another one."""
    return zlib.crc32(value, zlib.crc32(key.encode())).to_bytes(4, "little")


def use(path: str) -> None:
    """Let JAX keep programs there, in such files, from now on."""
    reset_cache()
    entries = Entries(path)
    with compilation_cache._cache_initialized_mutex:
        compilation_cache._cache, compilation_cache._cache_initialized = entries, True  # type: ignore[assignment]
