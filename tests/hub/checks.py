"""How results of a backend are compared with a reference, and with the abstract rule."""

from __future__ import annotations

import functools
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import optree

from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.abstract import AbstractBackend, ShapeDtype
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.operations.elementwise import kinds_of

ABSTRACT = AbstractBackend()


def _usable(name: str) -> bool:
    try:
        registry.get(name)
    except ImportError:
        return False
    return True


BACKENDS = [name for name in registry.backends() if _usable(name)]


@functools.cache
def backend(name: str) -> Backend:
    return registry.get(name)


def one_of_each_kind(of: str, dtypes: Iterable[np.dtype]) -> list[np.dtype]:
    """What `make test` has of the dtypes of a row, which `of` names: a floating one, an integer, a complex one, bool;
    of each kind another one for other backends and operations. `make conformance` and `make test-all` have them all."""
    kinds: dict[str, list[np.dtype]] = defaultdict(list)
    for dtype in dtypes:
        kinds[kinds_of(dtype)].append(dtype)
    return [kind[zlib.crc32(f"{of} {letter}".encode()) % len(kind)] for letter, kind in kinds.items()]


def to_backend(xp: Backend, tree: Any) -> Any:
    """Every host array in the tuples and lists of `tree`, on the backend."""
    if isinstance(tree, tuple | list):
        return type(tree)(to_backend(xp, leaf) for leaf in tree)
    return xp.asarray(tree) if isinstance(tree, np.ndarray) else tree


def to_host(xp: Backend, tree: Any) -> Any:
    return optree.tree_map(lambda leaf: xp.to_numpy(leaf) if xp.is_array(leaf) else leaf, tree)


def wide(tree: Any) -> Any:
    """Floating arrays in float64, complex ones in complex128: operands of a reference."""
    if isinstance(tree, tuple | list):
        return type(tree)(wide(leaf) for leaf in tree)
    if isinstance(tree, np.ndarray) and dtypes.is_floating(tree.dtype):
        return tree.astype(np.float64)
    if isinstance(tree, np.ndarray) and dtypes.is_complex(tree.dtype):
        return tree.astype(np.complex128)
    return tree


def shapes(tree: Any) -> Any:
    """Shapes and dtypes of the arrays of `tree`."""
    if isinstance(tree, tuple | list):
        return type(tree)(shapes(leaf) for leaf in tree)
    return ShapeDtype(tree.shape, tree.dtype) if isinstance(tree, np.ndarray) else tree


def assert_close(found: np.ndarray, wanted: Any, units: float) -> None:
    """Equal in dtype's own precision: `units` epsilons, relative and absolute. Integers and bools are equal."""
    dtype = found.dtype
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape, f"shape {found.shape}, expected {wanted.shape}"
    with np.errstate(all="ignore"):
        if not dtypes.is_inexact(dtype):
            assert not dtypes.is_inexact(wanted.dtype), f"{dtype} of a {wanted.dtype} reference"
            np.testing.assert_array_equal(found, wanted.astype(dtype))
            return
        tolerance = units * float(ml_dtypes.finfo(dtypes.real_dtype(dtype)).eps)
        wanted = wide(wanted.astype(dtype))  # the reference, rounded: overflows where the dtype does
        np.testing.assert_allclose(wide(found), wanted, rtol=tolerance, atol=tolerance)
