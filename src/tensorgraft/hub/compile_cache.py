"""The cache of compiled programs, kept from process to process: a directory of the user's cache, bounded, on by
default.

`TENSORGRAFT_CACHE=0` turns it off, `TENSORGRAFT_CACHE_DIR` moves it. Its files are written and read by the backends.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LIMIT = 2 << 30  # bytes: above, the least recently used files are removed
_DAY = 86400.0
_MARK = ".pruned"

changed: list[Callable[[], None]] = []  # called for backends that have a directory, when it may have changed
_chosen: Path | None = None
_off = False


def set_compile_cache(path: str | os.PathLike[str] | None) -> None:
    """Keep compiled programs in the directory `path`, for later processes, too; None: do not keep them.

    Without this call they are kept in the user's cache directory, unless `TENSORGRAFT_CACHE` is 0. In a directory that
    is not writable, nothing is kept. Raises TypeError for anything but a path.
    """
    global _chosen, _off
    _chosen, _off = (None, True) if path is None else (Path(path).expanduser().absolute(), False)
    for listener in changed:
        listener()


def root() -> Path | None:
    """Return the directory of all backends, or None if the cache is off."""
    if _off:
        return None
    if _chosen is not None:
        return _chosen
    if os.environ.get("TENSORGRAFT_CACHE", "").lower() in ("0", "off", "false", "no"):
        return None
    return default_root()


def default_root() -> Path | None:
    """Return the directory of all backends where a program has chosen no other, also if the cache is off. None for a
    user without a home directory."""
    folder = os.environ.get("TENSORGRAFT_CACHE_DIR")
    if folder:
        return Path(folder).expanduser().absolute()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) / "tensorgraft" / "cache" if local else None
    try:
        home_directory = Path.home()
    except RuntimeError:  # a user without one
        return None
    if sys.platform == "darwin":
        return home_directory / "Library" / "Caches" / "tensorgraft"
    return Path(os.environ.get("XDG_CACHE_HOME") or home_directory / ".cache") / "tensorgraft"


def directory(kind: str) -> Path | None:
    """Return the directory for programs of one kind ("jax-0.10.2"), on processors such as this one. None if programs
    are not to be kept, or the directory is not writable."""
    base = root()
    if base is None:
        return None
    path = base / f"{kind}-{processor()}"
    try:
        # other users must not write there: the files are run as code
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(exist_ok=True)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            return None
        _prune_daily(base)
    except OSError:
        return None
    return path


def writable(path: Path) -> bool:
    """Return True if a file can be written there, once missing directories are made."""
    existing = next((p for p in (path, *path.parents) if p.exists()), None)
    return existing is not None and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def processor() -> str:
    """Return a name that differs for processors which cannot run each other's programs: homes are shared between
    machines."""
    features = None
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:  # other systems than Linux have none
        features = next((line for line in file if line.startswith(("flags", "Features"))), None)
    if features is None:
        features = platform.processor()  # starts a process
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"


# ---- its size --------------------------------------------------------------------------------------------------------


def contents(base: Path) -> tuple[int, int]:
    """Return (number of files, their total bytes)."""
    sizes = [stat.st_size for _, stat in _files(base)]
    return len(sizes), sum(sizes)


def prune(base: Path, limit: int = LIMIT) -> None:
    """Delete the least recently used files, if there are more than `limit` bytes, down to three quarters of it."""
    entries = sorted(_files(base), key=lambda item: max(item[1].st_atime, item[1].st_mtime))
    excess = sum(stat.st_size for _, stat in entries) - limit
    if excess <= 0:
        return
    excess += limit // 4
    for path, stat in entries:
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= stat.st_size


def _files(base: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for folder, _, names in os.walk(base):
        for name in names:
            path = Path(folder, name)
            try:
                if name != _MARK:
                    yield path, path.stat()
            except OSError:  # another process has just deleted it
                continue


def _prune_daily(base: Path) -> None:
    mark = base / _MARK
    if not mark.exists() or time.time() - mark.stat().st_mtime > _DAY:
        mark.touch()
        prune(base)
