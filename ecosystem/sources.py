"""Where other projects' test files come from. None is kept here: they are fetched into `out/ecosystem/suites`.

Each function returns the folder of a package's files, and raises `Unavailable` where they are not to be had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from ecosystem.outcome import OUT

HOME = OUT / "suites"
RELEASE = "trixie"  # of Debian, which has the versions that the suites name
Source = Callable[[str, str], Path]


class Unavailable(Exception):
    """The files are not to be had here; the message says why, and the way out."""


def sdist(package: str, version: str) -> Path:
    """Fetch the source distribution."""
    target = HOME / f"{package}-{version}"
    with _made(target) as folder:
        if folder is not None:
            pip("download", "--no-deps", "--no-binary", ":all:", "-d", str(folder), f"{package}=={version}")
            with tarfile.open(folder / f"{package}-{version}.tar.gz") as archive:
                archive.extractall(folder, filter="data")
    return target / target.name


def wheel(package: str, version: str) -> Path:
    """Fetch the wheel, which has the tests of some projects."""
    target = HOME / f"{package}-{version}-wheel"
    with _made(target) as folder:
        if folder is not None:
            pip("install", "--no-deps", "--target", str(folder), f"{package}=={version}")
    return target


def installed(package: str, version: str) -> Path:
    """Find the installed package, whose tests lie beside its modules or in its docstrings."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise Unavailable(f"{package} is not installed: pip install {package}=={version}")
    return Path(spec.origin).parent


def debian(package: str, version: str) -> Path:
    """Fetch the `test` folder of Debian's source package."""
    target = HOME / f"{package}-{version}-debian"
    with _made(target) as folder:
        if folder is not None:
            _apt_source(package, folder)
            archives = list(folder.glob(f"{package}_{version}*.orig.tar.*"))
            if not archives:
                there = ", ".join(path.name for path in folder.glob("*.orig.tar.*")) or "nothing"
                raise Unavailable(f"Debian's source package of {package} {version}: the archive has {there}")
            with tarfile.open(archives[0]) as archive:
                for member in archive:
                    member.name = member.name.partition("/")[2]
                    if member.name.startswith("test/"):
                        archive.extract(member, folder, filter="data")
            for path in folder.glob("*.tar.*"):
                path.unlink()
    return target


def checkout(package: str, version: str) -> Path:
    """Find a checkout of the project's repository, whose tests no package has."""
    variable = f"ECOSYSTEM_{package.upper()}"
    folder = os.environ.get(variable)
    if folder is None:
        raise Unavailable(f"no package has {package}'s tests: set {variable} to a checkout of {package} {version}")
    if not Path(folder).is_dir():
        raise Unavailable(f"{variable}: there is no folder {folder}")
    return Path(folder)


def pip(*arguments: str) -> None:
    _done([sys.executable, "-m", "pip", "--quiet", *arguments], f"pip {' '.join(arguments)}")


def _done(command: list[str], what: str, folder: Path | None = None) -> None:
    """Run a command to its end; raises `Unavailable` with the last line that it has said where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise Unavailable(f"{what}: {last[0]}")


@contextmanager
def _made(target: Path) -> Iterator[Path | None]:
    """Yield a folder that becomes `target` once it is full, or None where that is there.

    Processes may do so at the same time.
    """
    if target.is_dir():
        yield None
        return
    HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as parent:
        folder = Path(parent, "files")
        folder.mkdir()
        yield folder
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first
                raise


def _apt_source(package: str, folder: Path) -> None:
    """Download a source package of the release in which this version lies, whatever release the machine has."""
    if shutil.which("apt-get") is None:
        raise Unavailable(f"the files lie in Debian's source package of {package}, and this system has no apt-get")
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    if not sources.exists():
        raise Unavailable(f"Debian's source package of {package}: there is no {sources}, which names an archive")
    stanza = [line for line in sources.read_text().partition("\n\n")[0].splitlines() if not line.startswith("#")]
    changed = {"Types": "deb-src", "Suites": RELEASE}
    lines = [f"{key}: {changed.get(key, rest.strip())}" for key, _, rest in (line.partition(":") for line in stanza)]
    parts, lists = folder / "apt" / "parts", folder / "apt" / "lists"
    parts.mkdir(parents=True)
    (lists / "partial").mkdir(parents=True)
    (parts / "source.sources").write_text("\n".join(lines) + "\n")
    options = {
        "Dir::Etc::sourcelist": "/dev/null", "Dir::Etc::sourceparts": parts, "Dir::State::Lists": lists,
        "APT::Sandbox::User": "root",
    }  # fmt: skip
    command = ["apt-get", *(f"-o{key}={value}" for key, value in options.items()), "--quiet=2"]
    for step in (["update"], ["source", "--download-only", package]):
        _done([*command, *step], f"Debian's source package of {package}", folder)
    shutil.rmtree(folder / "apt")
