"""Random schemes, and random chains of views, of the Array API and of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.quantization import Scheme

Pair = tuple[Any, Any]  # a quantised array, and the dense one that it stands for
Draw = Callable[[st.SearchStrategy], Any]
ENCODINGS = [*(f"int{n}" for n in range(1, 9)), *(f"uint{n}" for n in range(1, 9)), "float8_e4m3", "float8_e5m2", "nf4"]


def draw_scheme(draw: Draw) -> tuple[Scheme, tuple[int, ...]]:
    """A scheme and a shape that divides into its blocks."""
    encoding = draw(st.sampled_from(ENCODINGS))
    symmetric = not encoding.startswith("uint") and (encoding[:3] != "int" or draw(st.booleans()))
    granularity = draw(st.sampled_from(["tensor", "channel", "group", "block"]))
    ndim = draw(st.integers(1, 4))
    shape = [draw(st.integers(1, 5)) for _ in range(ndim)]
    block: tuple[int, ...] = ()
    if granularity in ("group", "block"):
        cut = 1 if granularity == "group" else draw(st.integers(1, ndim))
        block = tuple(draw(st.integers(1, 4)) for _ in range(cut))
        shape[ndim - cut :] = [b * draw(st.integers(1, 3)) for b in block]
    return (
        Scheme(
            encoding,
            granularity,
            group=block[0] if granularity == "group" else 32,
            block=block if granularity == "block" else (),
            axis=draw(st.integers(-ndim, ndim - 1)),
            symmetric=symmetric,
        ),
        tuple(shape),
    )


def draw_array(draw: Draw, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    return np.asarray(rng.standard_normal(shape) * rng.choice([0.0, 0.1, 3.0], shape), np.float32)


def pair(draw: Draw, scheme: Scheme, shape: tuple[int, ...], front: str, dtype: str = "float32") -> Pair:
    values = draw_array(draw, shape)
    if front == "torch":
        q = tg.quantize(torch.from_numpy(values).to(tg.device("numpy"), getattr(torch, dtype)), scheme)
    else:
        q = tg.quantize(xp.astype(xp.asarray(values, device="numpy"), getattr(xp, dtype)), scheme)
    return q, tg.dequantize(q)


def draw_dtype(draw: Draw, front: str) -> str:
    return draw(st.sampled_from(["float32", "float64", *(["bfloat16", "float16"] if front == "torch" else [])]))


def _both(f: Callable[[Any], Any]) -> Callable[[Pair], Pair]:
    return lambda p: (f(p[0]), f(p[1]))


def _split_of(draw: Draw, size: int) -> tuple[int, ...]:
    """A shape of so many elements."""
    shape = []
    while size > 1 and draw(st.booleans()):
        shape.append(draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0])))
        size //= shape[-1]
    return (*shape, size)


def _slice(draw: Draw, n: int, backwards: bool) -> slice:
    a, b = sorted((draw(st.integers(0, n)), draw(st.integers(0, n))))
    step = draw(st.integers(1, 3))
    if backwards and draw(st.booleans()):
        return slice(b, a - 1 if a else None, -step)
    return slice(a, b, step)


def draw_view(draw: Draw, shape: tuple[int, ...], front: str) -> tuple[str, Callable[[Pair], Pair]]:
    """A view that writes go through: its name, and what does it to both."""
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
    kind = draw(st.sampled_from(kinds))
    axis = draw(st.integers(0, len(shape) - 1)) if shape else 0
    if kind == "index":
        key: list[Any] = []
        for n in shape:
            key.append(
                draw(st.integers(-n, n - 1)) if n and draw(st.integers(0, 3)) == 0 else _slice(draw, n, not tensors)
            )
        key = key[: draw(st.integers(0, len(key)))]
        if draw(st.booleans()):
            key.insert(draw(st.integers(0, len(key))), None)
        at = (*key, ...)
        return f"[{at}]", _both(lambda w: w[at])
    if kind == "reshape":
        to = _split_of(draw, math.prod(shape)) if 0 not in shape else shape
        return f"reshape {to}", _both((lambda w: w.reshape(to)) if tensors else lambda w: xp.reshape(w, to))
    if kind == "new axis":
        place = draw(st.integers(0, len(shape)))
        return f"new axis {place}", _both(
            (lambda w: w.unsqueeze(place)) if tensors else lambda w: xp.expand_dims(w, axis=place)
        )
    if kind == "permute":
        order = tuple(draw(st.permutations(range(len(shape)))))
        return f"permute {order}", _both(
            (lambda w: w.permute(order)) if tensors else lambda w: xp.permute_dims(w, order)
        )
    if kind == "squeeze":
        one = shape.index(1)
        return f"squeeze {one}", _both((lambda w: w.squeeze(one)) if tensors else lambda w: xp.squeeze(w, axis=one))
    if kind == "expand":
        to = (draw(st.integers(1, 2)), *(draw(st.integers(1, 3)) if n == 1 else n for n in shape))
        return f"expand {to}", _both((lambda w: w.expand(to)) if tensors else lambda w: xp.broadcast_to(w, to))
    if kind == "unfold":
        size = draw(st.integers(1, shape[axis]))
        step = draw(st.integers(1, 3))
        return f"unfold {axis, size, step}", _both(lambda w: w.unfold(axis, size, step))
    if kind == "diagonal":
        a, b = draw(st.permutations(range(len(shape))))[:2]
        k = draw(st.integers(-1, 1))
        return f"diagonal {k, a, b}", _both(lambda w: w.diagonal(k, a, b))
    if kind in ("unbind", "unstack"):
        axis = max(range(len(shape)), key=lambda i: (shape[i] > 0, -abs(i - axis)))
        n = draw(st.integers(0, shape[axis] - 1))
        return f"unbind {axis, n}", _both(
            (lambda w: w.unbind(axis)[n]) if tensors else lambda w: xp.unstack(w, axis=axis)[n]
        )
    if kind == "flip":
        return f"flip {axis}", _both(lambda w: xp.flip(w, axis=axis))
    parts = draw(st.integers(1, 4))
    return f"chunk {parts, axis}", _both(lambda w: w.chunk(parts, axis)[-1])


def draw_copy(
    draw: Draw, shape: tuple[int, ...], scheme: Scheme, front: str, dtype: str
) -> tuple[str, Callable[[Pair], Pair]]:
    """What moves elements into a new array; of a shape with axes and elements."""
    tensors = front == "torch"
    axis = draw(st.integers(0, len(shape) - 1))
    kinds = ["rows", "concat", "concat others", "stack", "roll", "copy", "mask", "points"]
    kind = draw(st.sampled_from(kinds + (["flip", "tile", "take along"] if tensors else ["repeat", "tile"])))
    n = shape[axis]
    if kind == "rows":
        rows = draw(st.lists(st.integers(0, n - 1), max_size=4))
        if tensors:
            return f"rows {rows, axis}", _both(
                lambda w: w.index_select(axis, torch.tensor(rows, dtype=torch.int64, device=w.device))
            )
        return f"rows {rows, axis}", _both(
            lambda w: xp.take(w, xp.asarray(rows, dtype=xp.int64, device=w.device), axis=axis)
        )
    if kind == "points":
        count = draw(st.integers(1, len(shape)))
        rows = [draw(st.lists(st.integers(-m, m - 1), min_size=3, max_size=3)) for m in shape[:count]]
        if tensors:
            return f"points {rows}", _both(lambda w: w[tuple(torch.tensor(r, device=w.device) for r in rows)])
        return f"points {rows}", _both(lambda w: w[tuple(xp.asarray(r, device=w.device) for r in rows)])
    if kind == "mask":
        if tensors:
            return "mask", _both(lambda w: w[torch.arange(shape[0], device=w.device) % 2 == 0])
        return "mask", _both(lambda w: w[xp.arange(shape[0], device=w.device) % 2 == 0])
    if kind == "take along":
        rows = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=3))

        def along(w: Any) -> Any:
            at = torch.tensor(rows, device=w.device).reshape([-1 if i == axis else 1 for i in range(len(shape))])
            return torch.take_along_dim(w, at, axis)

        return f"take along {rows, axis}", _both(along)
    if kind == "concat others":
        other = draw(
            st.sampled_from(["int8_per_tensor", scheme if scheme.granularity == "tensor" else "nf4_per_tensor"])
        )
        q, d = pair(draw, tg.quantization.scheme.scheme_of(other), shape, front, dtype)
        join = (lambda a, b: torch.cat([a, b], axis)) if tensors else lambda a, b: xp.concat([a, b], axis=axis)
        return f"concat with {other} {axis}", lambda p: (join(p[0], q), join(p[1], d))
    cut = _slice(draw, n, False)
    some = (*(slice(None),) * axis, cut)
    shift = draw(st.integers(-3, 3))
    if tensors:
        made = {
            "concat": lambda w: torch.cat([w[some], w], axis),
            "stack": lambda w: torch.stack([w, w, w], axis),
            "roll": lambda w: w.roll(shift, axis),
            "copy": lambda w: w.clone(),
            "flip": lambda w: w.flip(axis),
            "tile": lambda w: w.repeat(2, *(1,) * (len(shape) - 1)),
        }
    else:
        made = {
            "concat": lambda w: xp.concat([w[some], w], axis=axis),
            "stack": lambda w: xp.stack([w, w, w], axis=axis),
            "roll": lambda w: xp.roll(w, shift, axis=axis),
            "copy": lambda w: xp.asarray(w, copy=True),
            "repeat": lambda w: xp.repeat(w, 2, axis=axis),
            "tile": lambda w: xp.tile(w, (2,) * len(shape)),
        }
    return f"{kind} {axis, some, shift}", _both(made[kind])


def numbers(w: Any) -> np.ndarray:
    """Of an array or a tensor, in float64, which has all of them."""
    w = tg.dequantize(w)
    return w.detach().cpu().double().numpy() if isinstance(w, torch.Tensor) else np.asarray(w).astype(np.float64)
