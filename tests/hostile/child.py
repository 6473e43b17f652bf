"""A process that loads mutants, thousands, under a limit of memory and with an eye on what it does.

`python -m tests.hostile.child FORMAT SEED FIRST COUNT FOLDER` prints a JSON object. The number of the mutant that
is being loaded stands in `FOLDER/at`, so that one that ends the process can be named.
"""

from __future__ import annotations

import collections
import json
import mmap
import os
import re
import resource
import shutil
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile import canary
from tests.hostile.formats import Format, digest, formats, mutant, read_folder

ROOM = 64 << 20  # bytes beyond what the process has when it begins
ROOM_OF_COMPILERS = 1 << 30  # of TensorFlow and XLA, whose threads have stacks, and allocators arenas
# parts of these may be imported where they are needed for the first time: a file may name the device of any backend
PACKAGES = {
    *["numpy", "torch", "tensorgraft", "safetensors", "tensorflow", "keras", "jax", "jaxlib", "google", "optree"]
}
WATCHED = [
    "exec",
    "compile",
    "import",
    "open",
    "os.",
    "subprocess.",
    "socket.",
    "shutil.",
    "ctypes.",
    "tempfile.",
    "urllib.",
    "marshal.",
    "code.",
]
HARMLESS = {
    "os.listdir",
    "os.scandir",
    "os.walk",
    "ctypes.addressof",
    "ctypes.create_string_buffer",
    "ctypes.get_errno",
    "ctypes.cdata",
    "ctypes.cdata/buffer",
}
OWN_CODE = "<tensorgraft program"  # what a recorded program runs as, of which every word has been checked
# modules that compile what they write of a program of PyTorch, whose texts have been checked, and PyTorch's own types
WRITERS = ("sympy.parsing.sympy_parser", "torch.fx.graph_module", "torch.export._unlift", "typing")
_PREFIXES = tuple(WATCHED)
# of the installed packages, and of this one, of which tracebacks show lines
_READ = (
    *map(os.path.realpath, (sys.prefix, sys.base_prefix, Path(__file__).parents[2] / "src", Path(__file__).parent)),
    "/proc/self",
)
_IMPORTING = "<frozen importlib"
_NAMED_TUPLE = ("namedtuple", collections.namedtuple.__code__.co_filename)


class Watch:
    """What happens while it is on, by the interpreter's own reports (PEP 578)."""

    def __init__(self, folder: Path, writes: bool, compiles: bool = False) -> None:
        self.compiles = compiles
        self.on = False
        self.seen: list[str] = []
        self.folder, self.writes = os.path.realpath(folder), writes
        sys.addaudithook(self.hook)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or not event.startswith(_PREFIXES) or event in HARMLESS:
            return
        self.on = False  # what follows is not to be told of
        try:
            if not self.is_harmless(event, arguments):
                self.seen.append(f"{event} {arguments!r:.100}")
        finally:
            self.on = True

    def is_harmless(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "import":
            package = arguments[0].partition(".")[0]
            return package in PACKAGES or package in sys.stdlib_module_names or _imports()
        if event == "exec" and arguments[0].co_filename.startswith(OWN_CODE):
            return True
        # "<unknown>": a traceback parses the line that it shows
        if event == "compile" and (str(arguments[1]) == "<unknown>" or str(arguments[1]).startswith(OWN_CODE)):
            return True
        if self.compiles and event in ("compile", "exec") and _is_written():
            return True
        if event == "open" and not isinstance(arguments[0], int):
            path, mode, flags = os.path.realpath(os.fsdecode(arguments[0])), arguments[1] or "", arguments[2] or 0
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or set(mode) & set("wax+")
            if not writes and path.startswith((self.folder, *_READ)):
                return True
        return _imports() or (self.writes and event.startswith(("os.", "open", "tempfile.")))


def _imports() -> bool:
    """A module is being executed that is installed: its own import has been told of. Or a class of named tuples
    is made, of which Python's library writes a line."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_IMPORTING) or (code.co_name, code.co_filename) == _NAMED_TUPLE:
            return True
        frame = frame.f_back
    return False


def _is_written() -> bool:
    """Return whether one of `WRITERS` compiles or executes, itself."""
    return sys._getframe(3).f_globals.get("__name__") in WRITERS


def limit(room: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


_CARELESS = (TypeError, KeyError, IndexError, AttributeError, AssertionError, StopIteration, ZeroDivisionError)
# TypeErrors that say what is wrong: dtypes that a backend lacks, a graph that takes other arrays than it is given
_REFUSED = re.compile("cannot be on the device|got .* of shape")


def of_ours(error: BaseException) -> bool:
    """Raised by tensorgraft's own lines."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and f"{os.sep}tensorgraft{os.sep}" in frames[-1].filename


def outcome(form: Format, folder: Path, valid: str, watch: Watch) -> tuple[str, str]:
    """(class, what was said): "equal", "other values", "error", or one of failures."""
    watch.seen.clear()
    called = canary.calls
    try:
        watch.on = True
        try:
            found = form.load(folder)
        finally:
            watch.on = False
        if canary.calls != called or watch.seen:
            return "ran code", "; ".join(watch.seen) or "the canary was called"
        if digest(found) == valid:
            return "equal", ""
        return ("another result" if form.checked else "other values"), ""
    except Exception as error:
        if canary.calls != called or watch.seen:
            return "ran code", "; ".join(watch.seen) or "the canary was called"
        said = f"{type(error).__name__}: {error}"
        told = "\n".join([str(error), *getattr(error, "__notes__", ())])
        is_memory = isinstance(error, MemoryError) or any(
            x in said for x in ("allocate memory", "bad_alloc", "MemoryError")
        )
        if is_memory and not (isinstance(error, form.errors) and told != str(error)):
            return "memory", said
        careless = type(error) in _CARELESS and type(error) not in form.errors
        own = of_ours(error) and careless and not _REFUSED.search(said)
        if own or not isinstance(error, form.errors):
            return "undocumented error", said
        if form.named and os.fspath(folder) not in told:
            return "error without the file's name", said
        return "error", type(error).__name__


def main(name: str, seed: str, first: int, count: int, place: str) -> None:
    form = formats()[name]
    base = Path(place)
    folder = base / "file"
    if any(word in name for word in ("SavedModel", "frozen", "LiteRT")):
        import tensorflow  # noqa: F401
    else:
        import torch

        torch.ones(1, device="graft:1")
        torch.set_num_threads(1)
    (base / "valid").mkdir(exist_ok=True)
    form.make(base / "valid")
    files = read_folder(base / "valid")
    shutil.copytree(base / "valid", folder)
    warnings.simplefilter("ignore")
    valid = digest(form.load(folder))
    assert digest(form.load(folder)) == valid
    compiles = form.reads == "TensorFlow" or "compile cache" in name
    watch = Watch(base, compiles, name in (".pt2", "inspect"))
    limit(ROOM_OF_COMPILERS if compiles or "JAX" in form.reads else ROOM)
    counts: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    with open(base / "at", "w+b") as file:
        file.write(bytes(8))
        file.flush()
        at = mmap.mmap(file.fileno(), 8)
    started = time.process_time()
    for index in range(first, first + count):
        at[:8] = index.to_bytes(8, "little")
        changed = mutant(form, files, Random(f"{seed}/{name}/{index}"))
        for key, content in changed.items():
            if content is not files[key]:
                (folder / key).write_bytes(content)
        kind, said = outcome(form, folder, valid, watch)
        counts[kind] += 1
        if kind == "error":
            errors[said] += 1
        elif kind not in ("equal", "other values") and len(failures) < 200:
            failures.append({"index": index, "kind": kind, "said": said[:300]})
        for key, content in changed.items():
            if content is not files[key]:
                (folder / key).write_bytes(files[key])
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"counts": counts, "errors": errors, "failures": failures, "seconds": seconds, "peak": peak}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
