"""Private names of frameworks: which ones are used, by which features, and the handling of missing ones.

A table for each framework (`torch`, `jax`, `tensorflow`; none of NumPy) lists the names that each feature needs. A
feature is a set of modules. When the first of them is imported, its names are checked, as far as the framework's
modules are imported; where one is missing, the feature is off: its modules cannot be imported, with an error that names
it, and what is put together of several features (the front end of PyTorch) does without it.
`tests/test_private_names.py` compares the tables with the code.
"""

from __future__ import annotations

import sys
from typing import Any

from tensorgraft import warning_filters
from tensorgraft.errors import MissingNameError
from tensorgraft.private import jax, tensorflow, torch
from tensorgraft.private.feature import Feature, Names, absent

TABLES: tuple[Names, ...] = (torch.NAMES, jax.NAMES, tensorflow.NAMES)
_PACKAGE = f"{__package__.partition('.')[0]}."

_by_module: dict[str, tuple[Names, Feature]] = {
    f"{_PACKAGE}{module.removesuffix('.*')}": (names, feature)
    for names in TABLES
    for feature in names.features
    for module in feature.modules.split()
}
_open = {name for name, (_, feature) in _by_module.items() if f"{name.removeprefix(_PACKAGE)}.*" in feature.modules}
_present: dict[tuple[str, str], bool] = {}  # {feature without missing names: True if all names were checked}
_off: dict[tuple[str, str], str] = {}


def of_module(module: str) -> tuple[Names, Feature] | None:
    """Return the feature of a module of ours: the one that names it, or the package that it is in, most closely."""
    while module:
        if module in _by_module:
            return _by_module[module]
        module = module.rpartition(".")[0]
    return None


def why_off(module: str) -> str:
    """Return why the feature of a module is off; "" where it is not."""
    features = of_module(module)
    return _checked(*features) if features is not None else ""


def require(module: str) -> None:
    """Raises MissingNameError where the framework lacks a name that a module of ours needs, also among those which had
    to wait for an import."""
    features = of_module(module)
    if features is not None and (why := _checked(*features, importing=True)):
        raise MissingNameError(why)


def off() -> list[str]:
    """Return the features that are off in this process, with the reasons: a line for each."""
    return [*_off.values()]


def _checked(names: Names, feature: Feature, importing: bool = False) -> str:
    key = names.package, feature.name
    if key in _off:
        return _off[key]
    if names.package not in sys.modules:  # the modules import it
        return ""
    if key in _present and (_present[key] or not importing):
        return ""
    version = getattr(sys.modules[names.package], "__version__", "?")
    if names.is_too_old(version):
        first = not any(package == names.package for package, _ in _off)  # one warning is enough
        _off[key] = (
            f"tensorgraft: {feature.what}: off, since {names.title} {version} is older than {names.oldest}."
            f' Install a newer one: `pip install -U "{names.package}>={names.oldest}"`.'
        )
        if first:
            warning_filters.show_warning(_off[key])
        return _off[key]
    importing = importing or feature.imports
    missing = [name for name in feature.every_name() if absent(name, importing=importing)]
    if not missing:
        _present[key] = importing
        return ""
    text = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
    _off[key] = (
        f"tensorgraft: {feature.what}: off, since {names.title} {version} lacks {text}"
        f" (tested: {names.title} {', '.join(names.tested)}). Install one of these versions,"
        f' `pip install "{names.package}=={names.tested[-1]}"`, or another tensorgraft: `pip install -U tensorgraft`.'
    )
    warning_filters.show_warning(_off[key])
    return _off[key]


class _Gate:
    """A finder of modules which refuses those of a feature that is off. It finds nothing."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name.startswith(_PACKAGE) and name not in _open and (why := why_off(name)):
            raise MissingNameError(why, name=name)


def watch() -> None:
    """Check names from now on, whenever a module of a feature is imported."""
    if _Gate not in sys.meta_path:
        sys.meta_path.insert(0, _Gate)
