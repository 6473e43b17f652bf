"""Structures of an operator's vectors: pytrees of `ShapeDtype`, and vectors as columns of one matrix."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import optree

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core.devices import Device, resolve
from tensorgraft.frontends.array_api.core.promotion import promote
from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract import ShapeDtype


class Structure:
    """A pytree of `ShapeDtype`, hashable."""

    __slots__ = ("dtype", "leaves", "size", "tree")

    def __init__(self, leaves: Sequence[ShapeDtype], tree: Any) -> None:
        self.leaves = tuple(leaves)
        self.tree = tree
        self.size = sum(s.size for s in leaves)
        self.dtype = functools.reduce(promote, [s.dtype for s in leaves]) if leaves else dtypes.float64

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self.leaves == other.leaves and self.tree == other.tree

    def __hash__(self) -> int:
        return hash((self.leaves, self.tree))

    def __str__(self) -> str:
        return str(optree.tree_unflatten(self.tree, list(map(_Plain, self.leaves))))

    @property
    def spec(self) -> Any:
        """The structure as a pytree."""
        return optree.tree_unflatten(self.tree, self.leaves)

    @property
    def is_vector(self) -> bool:
        """Return True for one array of one dimension."""
        return len(self.leaves) == 1 and len(self.leaves[0].shape) == 1 and optree.treespec_is_leaf(self.tree)

    # ---- vectors -----------------------------------------------------------------------------------------------------

    def zeros(self, device: Any, trailing: tuple[int, ...] = ()) -> Any:
        leaves = [xp.zeros((*s.shape, *trailing), dtype=s.dtype, device=device) for s in self.leaves]
        return optree.tree_unflatten(self.tree, leaves)

    def checked(self, name: str, x: Any, columns: bool = False) -> list[Array]:
        """Return the leaves of a vector (`columns`: of several, along a trailing axis). Raises TypeError,
        ValueError."""
        leaves: list[Any]
        leaves, tree = optree.tree_flatten(x)
        if tree != self.tree or not all(isinstance(v, Array) for v in leaves):
            self._refuse(name, x, columns)
        ends = set()
        for v, s in zip(leaves, self.leaves, strict=True):
            if columns:
                ends.add(v.shape[-1:])
            if (v.shape[:-1] if columns else v.shape) != s.shape or (columns and v.ndim == 0) or len(ends) > 1:
                self._refuse(name, x, columns)
        return leaves

    def _refuse(self, name: str, x: Any, columns: bool) -> None:
        expected = f"{self}, each with one trailing axis of the same extent k" if columns else str(self)
        spec = optree.tree_map(lambda v: _Plain(of(v).leaves[0]) if isinstance(v, Array) else _Plain(_type(v)), x)
        arrays = all(isinstance(v, Array) for v in optree.tree_leaves(x))
        note = "" if arrays else ": arrays are made by tensorgraft.array_api.asarray"
        raise (ValueError if arrays else TypeError)(f"{name}: expected {expected}, got {spec}{note}")

    def ravel(self, leaves: Sequence[Array], k: int | None = None) -> Array:
        """Leaves as one vector (n,), or those with a trailing axis of extent `k` as one matrix (n, k)."""
        tail = () if k is None else (k,)
        if len(leaves) == 1:
            flat = leaves[0]
            return flat if flat.ndim == 1 + len(tail) else xp.reshape(flat, (-1 if flat.size else 0, *tail))
        dtype = functools.reduce(promote, [v.dtype for v in leaves])
        rows = [
            xp.astype(xp.reshape(v, (s.size, *tail)), dtype, copy=False)
            for v, s in zip(leaves, self.leaves, strict=True)
        ]
        return xp.concat(rows, axis=0)

    def unravel(self, x: Array) -> Any:
        """Return a vector (n,), or the columns of a matrix (n, k), as the pytree; leaves get their dtypes, of complex
        numbers the complex one."""
        tail = x.shape[1:]
        is_complex = dtypes.is_complex(x.dtype)
        leaves, at = [], 0
        for s in self.leaves:
            part = x if len(self.leaves) == 1 else x[at : at + s.size, ...]
            dtype = dtypes.complex_dtype(s.dtype) if is_complex and not dtypes.is_complex(s.dtype) else s.dtype
            part = xp.astype(part, dtype, copy=False)
            leaves.append(part if len(s.shape) == 1 else xp.reshape(part, (*s.shape, *tail)))
            at += s.size
        return optree.tree_unflatten(self.tree, leaves)


class Memo:
    """A structure that is found out once, for all copies of an operator. All memos are equal: they make no difference
    between operators."""

    value: Structure | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Memo)

    def __hash__(self) -> int:
        return 0


class _Plain:
    """Shown in a pytree without quotes."""

    def __init__(self, leaf: Any) -> None:
        self.what = leaf

    def __repr__(self) -> str:
        return str(self.what)


def _type(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"


def of(x: Any) -> Structure:
    """Return the structure of a pytree of arrays."""
    leaves, tree = optree.tree_flatten(x)
    return Structure([ShapeDtype(tuple(v.shape), np.dtype(v.dtype)) for v in leaves], tree)


def _is_pair(x: Any) -> bool:
    return (
        isinstance(x, tuple)
        and len(x) == 2
        and isinstance(x[0], tuple | list)
        and all(isinstance(n, int) for n in x[0])
        and isinstance(x[1], str | np.dtype | type)
    )


def structure_of_spec(name: str, spec: Any) -> Structure:
    """Return the structure of a pytree of (shape, dtype) pairs, `ShapeDtype`s or arrays. Raises TypeError for other
    leaves."""
    leaves: list[Any]
    leaves, tree = optree.tree_flatten(spec, is_leaf=_is_pair)
    leaf_specs = []
    for x in leaves:
        if _is_pair(x):
            x = ShapeDtype(tuple(x[0]), np.dtype(x[1]) if not isinstance(x[1], np.dtype) else x[1])
        elif not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise TypeError(
                f"{name}: expected a structure, a pytree of (shape, dtype) pairs such as ((3, 4), 'float64'), got {x!r}"
            )
        leaf_specs.append(ShapeDtype(tuple(x.shape), np.dtype(x.dtype)))
        if not dtypes.is_inexact(leaf_specs[-1].dtype):
            raise TypeError(f"{name}: linear operators require floating-point or complex numbers, got {leaf_specs[-1]}")
    if not leaf_specs:
        raise TypeError(f"{name}: expected a structure with at least one array, got {spec!r}")
    return Structure(leaf_specs, tree)


@functools.lru_cache(maxsize=1024)
def vector(n: int, dtype: np.dtype) -> Structure:
    """Return the structure of arrays (n,)."""
    return structure_of_spec("vector", ((n,), dtype))


def device_of(spec: Any, device: Any) -> Device:
    """Return the device of a structure's vectors: `device`, or, where that is None, that of the arrays that describe
    it."""
    if device is None:
        devices = {str(v.device): v.device for v in optree.tree_leaves(spec) if isinstance(v, Array)}
        if len(devices) > 1:
            raise ValueError(f"the arrays that describe a structure are on several devices ({', '.join(devices)})")
        for device_found in devices.values():
            return device_found
    return resolve(device)
