"""Ways to write in place, and ways to run them: one program each, for `Array`s and for PyTorch, which is the judge.

`python -m tests.updates.cells` prints the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry

BACKENDS = [name for name in ("numpy", "jax", "torch", "tensorflow") if name in registry.backends()]
BASE = np.arange(24.0).reshape(4, 6) / 7 - 1.3
WEIGHTS = np.cos(np.arange(24.0)).reshape(4, 6)
WAYS = ("eager", "jit", "grad of value", "grad of x", "grads inside jit")


def _overlapping(x: Any, v: Any, at: Any) -> None:
    first, second = x[0:3], x[1:4]
    first[...] = v
    second *= 2.0
    first[1] = first[0]


def _through_a_view(x: Any, v: Any, at: Any) -> None:
    row = x[2]
    row[...] = v
    x[0] = row * 3.0  # sees the write


def _view_of_view(x: Any, v: Any, at: Any) -> None:
    part = x[1:]
    part[:, ::2][1] = v


# name -> (how it writes, the shape of the value)
PLACES: dict[str, tuple[Callable[[Any, Any, Any], Any], tuple[int, ...]]] = {
    "whole": (lambda x, v, at: tg.inplace_update(x, v), (4, 6)),
    "slice": (lambda x, v, at: x.__setitem__(slice(1, 3), v), (2, 6)),
    "strided slice": (lambda x, v, at: x.__setitem__((slice(None), slice(1, None, 2)), v), (4, 3)),
    "mask": (lambda x, v, at: x.__setitem__(at["mask"], v), ()),
    "index array": (lambda x, v, at: x.__setitem__(at["index"], v), (3, 6)),
    "through a view": (_through_a_view, (6,)),
    "view of a view": (_view_of_view, (3,)),
    "through transpose": (lambda x, v, at: x.T.__setitem__(slice(1, 3), v), (2, 4)),
    "overlapping views": (_overlapping, (6,)),
}


def value_of(place: str) -> np.ndarray:
    shape = PLACES[place][1]
    return np.sin(np.arange(1.0, 1 + np.prod(shape, dtype=int))).reshape(shape)


def expected(place: str, way: str) -> list[np.ndarray]:
    """PyTorch's own."""
    write, _ = PLACES[place]
    at = {"mask": torch.from_numpy(BASE > 0), "index": torch.tensor([3, 0, 2])}
    v = torch.from_numpy(value_of(place)).requires_grad_()
    s = torch.from_numpy(BASE.copy()).requires_grad_()
    x = s * 2.0
    write(x, v, at)
    if way in ("eager", "jit"):
        return [x.detach().numpy()]
    (x * torch.from_numpy(WEIGHTS) * x).sum().backward()
    found = {"grad of value": [v.grad], "grad of x": [s.grad], "grads inside jit": [s.grad, v.grad]}[way]
    return [torch.zeros_like(g).numpy() if g is None else g.numpy() for g in found]


def ours(place: str, way: str, backend: str) -> list[np.ndarray]:
    write, _ = PLACES[place]
    array = lambda a: xp.asarray(a, device=backend, copy=True)  # noqa: E731
    at = {"mask": array(BASE > 0), "index": array(np.array([3, 0, 2]))}
    s, v, weights = array(BASE), array(value_of(place)), array(WEIGHTS)

    def loss(s: Any, v: Any) -> Any:
        x = s * 2.0
        write(x, v, at)
        return xp.sum(x * weights * x)

    if way in ("eager", "jit"):
        x = s * 2.0
        run = tg.jit(lambda x, v: write(x, v, at)) if way == "jit" else lambda x, v: write(x, v, at)
        run(x, v)
        if way == "jit":  # the program that is there, on other values
            x[...] = s * 2.0
            run(x, v)
        return [np.asarray(x)]
    if way == "grads inside jit":
        run = tg.jit(tg.grad(loss, (0, 1)))
        run(s, v)
        return [np.asarray(g) for g in run(s, v)]
    return [np.asarray(tg.grad(loss, 1 if way == "grad of value" else 0)(s, v))]


def main() -> int:
    console = Console()
    table = Table("written", "run", *BACKENDS)
    wrong = 0
    for place in PLACES:
        for way in WAYS:
            row = []
            right = expected(place, way)
            for backend in BACKENDS:
                try:
                    found = ours(place, way, backend)
                    held = all(np.allclose(a, b, rtol=1e-12) for a, b in zip(found, right, strict=True))
                    row.append("right" if held else "WRONG")
                except Exception as error:  # a cell of the table, whatever it is
                    row.append(f"{type(error).__name__}")
                wrong += row[-1] != "right"
            table.add_row(place, way, *row)
    console.print(table)
    console.print(f"{wrong} of {len(PLACES) * len(WAYS) * len(BACKENDS)} cells are not PyTorch's", highlight=False)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
