"""`tg.parallel.visualize`: which device has which piece, in the terminal."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.parallel.placing import bytes_by_device, placement


def visualize(x: Any) -> str:
    """Print, and return, a picture of where the pieces of an array lie: a cell for each piece of its first two
    dimensions that are split, with the devices that hold it.

    Raises TypeError for what is no array.

    >>> import tensorgraft as tg, torch
    >>> mesh = tg.parallel.mesh(1, "data", device="jax")
    >>> _ = tg.parallel.visualize(tg.parallel.shard(torch.ones(2, 2), mesh, ("data",)))
    (2, 2) ('data', None) on a mesh of 1 devices of jax (data: 1): 16 bytes on a device
    +---+
    | 0 |
    +---+
    """
    current = placement(x)
    bytes_each = max(bytes_by_device(x).values(), default=0)
    if current is None:
        text = f"{tuple(x.shape)} on one device, {bytes_each} bytes"
        print(text)
        return text
    mesh = current.mesh
    dims = [d for d, names in enumerate(current.spec) if names][:2]
    rows, columns = ([current.parts(d) for d in dims] + [1, 1])[:2]
    ids = np.array(mesh.ids).reshape(mesh.shape)
    cells: dict[tuple[int, int], list[int]] = {}
    for at in np.ndindex(*mesh.shape):
        where = dict(zip(mesh.names, at, strict=True))
        cell_position = [0, 0]
        for k, d in enumerate(dims):
            for name in current.spec[d]:
                cell_position[k] = cell_position[k] * mesh.extents[name] + where[name]
        cells.setdefault((cell_position[0], cell_position[1]), []).append(int(ids[at]))
    texts = [[_devices(cells[r, c]) for c in range(columns)] for r in range(rows)]
    width = max(len(t) for row in texts for t in row)
    line = "+" + "+".join("-" * (width + 2) for _ in range(columns)) + "+"
    lines = [f"{tuple(x.shape)} {current}: {bytes_each} bytes on a device", line]
    for row in texts:
        lines += ["| " + " | ".join(t.center(width) for t in row) + " |", line]
    text = "\n".join(lines)
    print(text)
    return text


def _devices(ids: list[int]) -> str:
    ids = sorted(ids)
    runs = len(ids) > 2 and ids == list(range(ids[0], ids[-1] + 1))
    return f"{ids[0]}-{ids[-1]}" if runs else ",".join(map(str, ids))
