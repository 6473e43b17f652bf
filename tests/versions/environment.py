"""Fresh environments, made by uv: it resolves and installs in seconds what it has in its cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.versions.cells import FRAMEWORKS, ROOT, Cell

FREE = 14 << 30  # bytes: PyTorch's wheels for CUDA, which some releases have alone, take 8 GB and as much in the cache
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "expecttest")
# what tests of the sample import, where there is one that goes with the rest
WITH = ("equinox", "einops")


class Impossible(Exception):
    """There is no such environment here; the message says why."""


class Contradictory(Impossible):
    """There is no such environment anywhere: what is asked for excludes each other."""


def uv(*arguments: str, **variables: str) -> str:
    """Raises Impossible with what uv says."""
    environ = os.environ | {"UV_PYTHON_DOWNLOADS": "never"} | _where_pip_looks() | variables
    command = [_executable(), "--quiet", *arguments]
    process = subprocess.run(command, env=environ, capture_output=True, text=True)
    if process.returncode:
        nowhere = "No solution found" in process.stderr
        raise (Contradictory if nowhere else Impossible)(_reason(process.stderr))
    return process.stdout


def _executable() -> str:
    from uv import find_uv_bin

    return find_uv_bin()


def _where_pip_looks() -> dict[str, str]:
    """uv reads no configuration of pip's: folders of wheels and indexes that a machine has count for it, too."""
    folders, indexes = os.environ.get("PIP_FIND_LINKS"), os.environ.get("PIP_EXTRA_INDEX_URL")
    found = {"UV_FIND_LINKS": ",".join(folders.split())} if folders else {}
    return found | ({"UV_INDEX": indexes, "UV_INDEX_STRATEGY": "unsafe-best-match"} if indexes else {})


def _reason(said: str) -> str:
    """The sentence that tells why, of what uv writes."""
    text = re.sub(r"\s+", " ", said).strip()
    because = re.search(r"[Bb]ecause .*?(?=, we can conclude| hint:|$)", text)
    return because[0] if because else text[-300:]


def make(
    cell: Cell, place: Path, wheel: Path, cache: Path, beside: tuple[str, ...] = WITH
) -> tuple[Path, dict[str, str]]:
    """(its Python, {distribution: version} of what was installed). `beside`: what else the tests import."""
    interpreter = find(cell.python)
    if (free := shutil.disk_usage(place.parent).free) < FREE:
        raise Impossible(f"needs {FREE >> 30} GB of disk, {free >> 30} are free")
    shutil.rmtree(place, ignore_errors=True)
    uv("venv", "--python", str(interpreter), str(place))
    python = place / "bin" / "python"
    variables = {"UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(cache))}
    unwanted = place / "overrides.txt"  # it comes with CUDA, and TensorFlow aborts a process that has it
    unwanted.write_text("triton; sys_platform == 'never'\n" if "tensorflow" in cell.extras else "")
    wanted = [f"tensorgraft[{','.join((*cell.extras, 'source'))}] @ {wheel.as_uri()}", *TOOLS, *beside]
    wanted += [f"{name}=={version}" for name, version in cell.pins.items()]
    uv("pip", "install", "--python", str(python), "--overrides", str(unwanted), *wanted, **variables)
    listed = json.loads(uv("pip", "list", "--format=json", "--python", str(python), **variables))
    installed = {one["name"]: one["version"] for one in listed}
    return python, {name: installed[name] for name in FRAMEWORKS if name in installed}


def distributions(folder: Path) -> tuple[Path, Path]:
    """(the wheel, the unpacked source distribution it is built from, without the package)"""
    dist, tests = folder / "dist", folder / "tests"
    shutil.rmtree(dist, ignore_errors=True)
    shutil.rmtree(tests, ignore_errors=True)
    uv("build", "--out-dir", str(dist), str(ROOT))
    (archive,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    with tarfile.open(archive) as files:
        files.extractall(tests, filter="data")
    (unpacked,) = tests.iterdir()
    shutil.rmtree(unpacked / "src")  # the wheel is what is tested
    return wheel.absolute(), unpacked.absolute()


def find(version: str) -> Path:
    """An interpreter on the path, or one that pyenv or uv has installed. Raises Impossible where there is none."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    folders += sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin"))
    for path in (folder / f"python{version}" for folder in folders):
        if path.exists() and "shims" not in path.parts:  # pyenv's shims answer for versions that are not chosen
            return path
    try:
        return Path(uv("python", "find", version, UV_PROJECT=str(ROOT)).strip())
    except Impossible as problem:
        raise Impossible(f"no Python {version} here") from problem
