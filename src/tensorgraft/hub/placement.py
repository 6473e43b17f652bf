"""Placements of arrays: a mesh of devices, and along which of its axes each dimension is split.

The words are JAX's (`jax.sharding.Mesh`, `PartitionSpec`; GSPMD, Xu et al., arXiv 2105.04663): a dimension that names
no axis is whole on every device, one that names axes is cut into as many equal parts as these have devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mesh:
    """Devices of one backend in a grid with named axes. Made by `tg.parallel.mesh`.

    Arguments:
        shape: how many devices along each axis.
        names: of the axes.
        backend: the backend's name, as in `tg.device(name)`.
        ids: the devices by their numbers, row-major.
        abstract: the devices need not be there: programs are planned for them (`tg.parallel.plan`), never run.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    backend: str
    ids: tuple[int, ...]
    abstract: bool = False

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    @functools.cached_property
    def extents(self) -> dict[str, int]:
        """The number of devices along each axis, by its name."""
        return dict(zip(self.names, self.shape, strict=True))

    def __str__(self) -> str:
        axes = ", ".join(f"{name}: {n}" for name, n in self.extents.items())
        imagined = " that need not be there" if self.abstract else ""
        return f"mesh of {self.size} devices of {self.backend}{imagined} ({axes})"


@dataclass(frozen=True)
class Placement:
    """The placement of an array: `spec` has for each dimension the names of the mesh's axes along which it is split, ()
    for none.

    `free`: dimensions that a constraint leaves as they are, split or not; an array at rest has none.
    """

    mesh: Mesh
    spec: tuple[tuple[str, ...], ...]
    free: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:  # once: every write of a placed array looks something up by it
        return hash((self.mesh, self.spec, self.free))

    @property
    def is_replicated(self) -> bool:
        """Return True if every device has the whole array."""
        return not any(self.spec)

    def parts(self, dim: int) -> int:
        """Return the number of pieces into which a dimension is cut."""
        return math.prod(self.mesh.extents[name] for name in self.spec[dim])

    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the piece that one device has."""
        return tuple(n // self.parts(d) for d, n in enumerate(shape))

    def permuted(self, axes: Sequence[int]) -> Placement:
        """Return the placement of an array whose dimension i is the dimension `axes[i]` of this one's."""
        free = tuple(i for i, a in enumerate(axes) if a in self.free)
        return Placement(self.mesh, tuple(self.spec[a] for a in axes), free)

    def fitted(self, shape: Sequence[int]) -> Placement:
        """Return the placement of an array which belongs to this one's, of another shape (scales, codes that are packed
        into one dimension): the same axes where they divide, else whole."""
        spec = self.spec if len(shape) == len(self.spec) else (tuple(n for names in self.spec for n in names),)
        spec = (*spec, *((),) * (len(shape) - len(spec)))
        like = Placement(self.mesh, spec[: len(shape)])
        return Placement(self.mesh, tuple(() if n % like.parts(d) else spec[d] for d, n in enumerate(shape)))

    def settled(self, at: Placement | None) -> Placement:
        """Return it without free dimensions, for an array at `at`: those stay split along axes that are left."""
        if not self.free:
            return self
        used = {name for names in self.spec for name in names}
        same_mesh = at is not None and at.mesh == self.mesh
        spec = list(self.spec)
        for d in self.free:
            spec[d] = tuple(name for name in at.spec[d] if name not in used) if at is not None and same_mesh else ()
        return Placement(self.mesh, tuple(spec))

    def check(self, shape: Sequence[int], label: str) -> None:
        """Raises ValueError for a dimension that does not divide; `label` is the array's name in the message."""
        for dim, n in enumerate(shape):
            if n % self.parts(dim):
                fit = [name for name, k in self.mesh.extents.items() if k > 1 and n % k == 0]
                by = " x ".join(f"{name!r} ({self.mesh.extents[name]})" for name in self.spec[dim])
                raise ValueError(
                    f"{label}: dimension {dim} of shape {tuple(shape)} is {n}, which is not divisible by {by}, and"
                    " arrays are not padded. Leave the dimension whole"
                    f" (None){', or take ' + ' or '.join(map(repr, fit)) if fit else ''}."
                )

    def __str__(self) -> str:
        return f"({', '.join(_entry(names) for names in self.spec)}) on a {self.mesh}"


def _entry(names: tuple[str, ...]) -> str:
    if not names:
        return "None"
    return repr(names[0]) if len(names) == 1 else f"({', '.join(map(repr, names))})"


def placement(mesh: Mesh, spec: Sequence[Any], ndim: int, label: str) -> Placement:
    """Return the placement that a specification describes for an array of `ndim` dimensions: for each dimension None,
    the name of an axis, or a sequence of names; further dimensions are whole.

    Raises ValueError for more entries than dimensions, unknown axes, and a repeated axis; TypeError for other entries.
    """
    entries = tuple(_names(entry, label) for entry in spec)
    while len(entries) > ndim and not entries[-1]:
        entries = entries[:-1]
    if len(entries) > ndim:
        raise ValueError(
            f"{label}: spec {tuple(spec)!r} has {len(entries)} entries, but the array has {ndim} dimensions"
        )
    used = [name for names in entries for name in names]
    for name in used:
        if name not in mesh.extents:
            raise ValueError(f"{label}: spec {tuple(spec)!r} names the axis {name!r}, which the {mesh} does not have")
        if used.count(name) > 1:
            raise ValueError(
                f"{label}: spec {tuple(spec)!r} splits along {name!r} twice, but an axis can split only one dimension"
            )
    return Placement(mesh, (*entries, *((),) * (ndim - len(entries))))


def _names(entry: Any, label: str) -> tuple[str, ...]:
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, list | tuple) and all(isinstance(name, str) for name in entry):
        return tuple(entry)
    raise TypeError(
        f"{label}: expected None, the name of an axis or a tuple of names as an entry of a spec, got {entry!r}"
    )
