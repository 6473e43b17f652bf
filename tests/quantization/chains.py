"""Random schemes, and random chains of views, of the Array API and of PyTorch.

What is drawn is text, an expression in `w`, so that the tests of chains (hypothesis chooses) and the fuzzer's programs
(`tests/fuzz/kinds/quantized.py`, a seed chooses) are one generator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.quantization import Scheme

Pair = tuple[Any, Any]  # a quantised array, and the dense one that it stands for
ENCODINGS = [*(f"int{n}" for n in range(1, 9)), *(f"uint{n}" for n in range(1, 9)), "float8_e4m3", "float8_e5m2", "nf4"]


class Draw:
    """Choices, of hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def one(self, items: Sequence[Any]) -> Any:
        return self._draw(st.sampled_from(items))

    def boolean(self) -> bool:
        return self._draw(st.booleans())

    def order(self, items: Sequence[Any]) -> list[Any]:
        return self._draw(st.permutations(items))


class Seeded(Draw):
    """Choices of a random generator."""

    def __init__(self, rng: random.Random) -> None:
        self.integer, self.one = rng.randint, rng.choice  # type: ignore[method-assign]
        self._rng = rng

    def boolean(self) -> bool:
        return self._rng.random() < 0.5

    def order(self, items: Sequence[Any]) -> list[Any]:
        return self._rng.sample(list(items), len(items))


def draw_scheme(draw: Draw) -> tuple[Scheme, tuple[int, ...]]:
    """A scheme and a shape that divides into its blocks."""
    encoding = draw.one(ENCODINGS)
    symmetric = not encoding.startswith("uint") and (encoding[:3] != "int" or draw.boolean())
    granularity = draw.one(["tensor", "channel", "group", "block"])
    ndim = draw.integer(1, 4)
    shape = [draw.integer(1, 5) for _ in range(ndim)]
    block: tuple[int, ...] = ()
    if granularity in ("group", "block"):
        cut = 1 if granularity == "group" else draw.integer(1, ndim)
        block = tuple(draw.integer(1, 4) for _ in range(cut))
        shape[ndim - cut :] = [b * draw.integer(1, 3) for b in block]
    return (
        Scheme(
            encoding,
            granularity,
            group=block[0] if granularity == "group" else 32,
            block=block if granularity == "block" else (),
            axis=draw.integer(-ndim, ndim - 1),
            symmetric=symmetric,
        ),
        tuple(shape),
    )


def array_of(shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_normal(shape) * rng.choice([0.0, 0.1, 3.0], shape), np.float32)


def draw_array(draw: Draw, shape: tuple[int, ...]) -> np.ndarray:
    return array_of(shape, draw.integer(0, 1000))


def made(values: np.ndarray, front: str, dtype: str = "float32", backend: str = "numpy") -> Any:
    """On a backend, of a front end."""
    if front == "torch":
        return torch.from_numpy(values).to(tg.device(backend), getattr(torch, dtype))
    return xp.astype(xp.asarray(values, device=backend), getattr(xp, dtype))


def pair(draw: Draw, scheme: Scheme, shape: tuple[int, ...], front: str, dtype: str = "float32") -> Pair:
    q = tg.quantize(made(draw_array(draw, shape), front, dtype), scheme)
    return q, tg.dequantize(q)


def draw_dtype(draw: Draw, front: str) -> str:
    return draw.one(["float32", "float64", *(["bfloat16", "float16"] if front == "torch" else [])])


def applied(text: str, found: Pair) -> Pair:
    """An expression in `w`, of both; `other(scheme, shape, seed, front, dtype)` in it is quantised in one of them."""
    q, dense = (
        eval(text, {"torch": torch, "xp": xp, "Scheme": Scheme, "w": w, "other": other})
        for w, other in zip(found, (other_quantised, other_dense), strict=True)
    )
    return q, dense


def other_quantised(
    scheme: Any, shape: tuple[int, ...], seed: int, front: str, dtype: str, backend: str = "numpy"
) -> Any:
    return tg.quantize(made(array_of(shape, seed), front, dtype, backend), tg.quantization.scheme.scheme_of(scheme))


def other_dense(*args: Any) -> Any:
    return tg.dequantize(other_quantised(*args))


def _split_of(draw: Draw, size: int) -> tuple[int, ...]:
    """A shape of so many elements."""
    shape = []
    while size > 1 and draw.boolean():
        shape.append(draw.one([d for d in range(1, size + 1) if size % d == 0]))
        size //= shape[-1]
    return (*shape, size)


def _slice(draw: Draw, n: int, backwards: bool) -> str:
    a, b = sorted((draw.integer(0, n), draw.integer(0, n)))
    step = draw.integer(1, 3)
    if backwards and draw.boolean():
        return f"{b}:{a - 1 if a else ''}:-{step}"
    return f"{a}:{b}:{step}"


def draw_view(draw: Draw, shape: tuple[int, ...], front: str) -> tuple[str, str]:
    """A view that writes go through: its name, and an expression in `w`."""
    tensors = front == "torch"
    kinds = ["index", "reshape", "new axis"]
    if shape:
        kinds += ["permute", "permute", "index"]
    if 1 in shape:
        kinds += ["squeeze", "expand"]
    if tensors and shape and min(shape):
        kinds += ["unfold", "diagonal"] if len(shape) > 1 else ["unfold"]
    if shape and max(shape) > 0:
        kinds += ["unbind", "chunk"] if tensors else ["unstack", "flip"]
    kind = draw.one(kinds)
    return kind, _view(draw, kind, shape, tensors)


def _view(draw: Draw, kind: str, shape: tuple[int, ...], tensors: bool) -> str:
    axis = draw.integer(0, len(shape) - 1) if shape else 0
    if kind == "index":
        key = [
            str(draw.integer(-n, n - 1)) if n and draw.integer(0, 3) == 0 else _slice(draw, n, not tensors)
            for n in shape
        ]
        key = key[: draw.integer(0, len(key))]
        if draw.boolean():
            key.insert(draw.integer(0, len(key)), "None")
        return f"w[{', '.join([*key, '...'])}]"
    if kind == "reshape":
        to = _split_of(draw, math.prod(shape)) if 0 not in shape else shape
        return f"w.reshape({to})" if tensors else f"xp.reshape(w, {to})"
    if kind == "new axis":
        place = draw.integer(0, len(shape))
        return f"w.unsqueeze({place})" if tensors else f"xp.expand_dims(w, axis={place})"
    if kind == "permute":
        order = tuple(draw.order(range(len(shape))))
        return f"w.permute({order})" if tensors else f"xp.permute_dims(w, {order})"
    if kind == "squeeze":
        one = shape.index(1)
        return f"w.squeeze({one})" if tensors else f"xp.squeeze(w, axis={one})"
    if kind == "expand":
        to = (draw.integer(1, 2), *(draw.integer(1, 3) if n == 1 else n for n in shape))
        return f"w.expand({to})" if tensors else f"xp.broadcast_to(w, {to})"
    if kind == "unfold":
        return f"w.unfold({axis}, {draw.integer(1, shape[axis])}, {draw.integer(1, 3)})"
    if kind == "diagonal":
        a, b = draw.order(range(len(shape)))[:2]
        return f"w.diagonal({draw.integer(-1, 1)}, {a}, {b})"
    if kind in ("unbind", "unstack"):
        axis = max(range(len(shape)), key=lambda i: (shape[i] > 0, -abs(i - axis)))
        n = draw.integer(0, shape[axis] - 1)
        return f"w.unbind({axis})[{n}]" if tensors else f"xp.unstack(w, axis={axis})[{n}]"
    if kind == "flip":
        return f"xp.flip(w, axis={axis})"
    return f"w.chunk({draw.integer(1, 4)}, {axis})[-1]"


def draw_copy(draw: Draw, shape: tuple[int, ...], scheme: Scheme, front: str, dtype: str) -> tuple[str, str]:
    """What moves elements into a new array; of a shape with axes and elements."""
    tensors = front == "torch"
    axis = draw.integer(0, len(shape) - 1)
    kinds = ["rows", "concat", "concat others", "stack", "roll", "copy", "mask", "points"]
    kind = draw.one(kinds + (["flip", "tile", "take along"] if tensors else ["repeat", "tile"]))
    n, ndim = shape[axis], len(shape)
    if kind == "rows":
        rows = [draw.integer(0, n - 1) for _ in range(draw.integer(0, 4))]
        if tensors:
            return kind, f"w.index_select({axis}, torch.tensor({rows}, dtype=torch.int64, device=w.device))"
        return kind, f"xp.take(w, xp.asarray({rows}, dtype=xp.int64, device=w.device), axis={axis})"
    if kind == "points":
        count = draw.integer(1, ndim)
        points = [[draw.integer(-m, m - 1) for _ in range(3)] for m in shape[:count]]
        array = "torch.tensor" if tensors else "xp.asarray"
        return kind, f"w[{', '.join(f'{array}({r}, device=w.device)' for r in points)}]"
    if kind == "mask":
        return kind, f"w[{'torch' if tensors else 'xp'}.arange({shape[0]}, device=w.device) % 2 == 0]"
    if kind == "take along":
        rows = [draw.integer(0, n - 1) for _ in range(draw.integer(1, 3))]
        along = tuple(-1 if i == axis else 1 for i in range(ndim))
        return kind, f"torch.take_along_dim(w, torch.tensor({rows}, device=w.device).reshape({along}), {axis})"
    if kind == "concat others":
        other: Any = draw.one(["int8_per_tensor", scheme if scheme.granularity == "tensor" else "nf4_per_tensor"])
        said = f"other({other!r}, {shape}, {draw.integer(0, 1000)}, {front!r}, {dtype!r})"
        return kind, f"torch.cat([w, {said}], {axis})" if tensors else f"xp.concat([w, {said}], axis={axis})"
    some = ", ".join([":"] * axis + [_slice(draw, n, False)])
    shift = draw.integer(-3, 3)
    if tensors:
        texts = {
            "concat": f"torch.cat([w[{some}], w], {axis})",
            "stack": f"torch.stack([w, w, w], {axis})",
            "roll": f"w.roll({shift}, {axis})",
            "copy": "w.clone()",
            "flip": f"w.flip({axis})",
            "tile": f"w.repeat({(2, *(1,) * (ndim - 1))})",
        }
    else:
        texts = {
            "concat": f"xp.concat([w[{some}], w], axis={axis})",
            "stack": f"xp.stack([w, w, w], axis={axis})",
            "roll": f"xp.roll(w, {shift}, axis={axis})",
            "copy": "xp.asarray(w, copy=True)",
            "repeat": f"xp.repeat(w, 2, axis={axis})",
            "tile": f"xp.tile(w, {(2,) * ndim})",
        }
    return kind, texts[kind]


def numbers(w: Any) -> np.ndarray:
    """Of an array or a tensor, in float64, which has all of them."""
    w = tg.dequantize(w)
    return w.detach().cpu().double().numpy() if isinstance(w, torch.Tensor) else np.asarray(w).astype(np.float64)
