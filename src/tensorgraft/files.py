"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A context with a new file that replaces `path` at its end, once it is on the disk. After an exception, or if the
    process ends before, the previous file remains."""
    path = os.fspath(path)
    part = f"{path}.{secrets.token_hex(4)}.part"
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            os.chmod(part, os.stat(path).st_mode & 0o7777)
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    sync_folder(os.path.dirname(path))


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as file:
        file.write(data)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Have the names of a folder on the disk, where the system can be asked for that."""
    with contextlib.suppress(OSError):  # Windows opens no folders, and some file systems do not synchronise them
        place = os.open(Path(folder or "."), os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
