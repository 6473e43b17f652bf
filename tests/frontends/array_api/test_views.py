"""Views and writes: chains of them do to an `Array` what they do to an array of NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontends.array_api.conftest import BACKENDS, EXAMPLES

import tensorgraft.array_api as xp


def same(x: xp.Array, expected: np.ndarray) -> None:
    assert x.shape == expected.shape
    assert x.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(x), expected)


def same_strides(x: xp.Array, expected: np.ndarray) -> None:
    """Strides of axes with one element, and of arrays without, mean nothing."""
    if expected.size:
        assert [s for s, n in zip(x.strides, x.shape, strict=True) if n > 1] == [
            s for s, n in zip(expected.strides, expected.shape, strict=True) if n > 1
        ]


def draw_view(data: st.DataObject, shape: tuple[int, ...]) -> tuple[str, Any]:
    kinds = ["index", "flip", "expand", "broadcast", "reshape"]
    if len(shape) > 1:
        kinds += ["permute", "mT"]
    if 1 in shape:
        kinds.append("squeeze")
    kind = data.draw(st.sampled_from(kinds))
    if kind == "index":
        key: list[Any] = []
        for n in shape:
            choices = [st.slices(n)]
            if n:
                choices.append(st.integers(-n, n - 1))
            key.append(data.draw(st.one_of(choices)))
        return kind, tuple(key[: data.draw(st.integers(0, len(key)))])
    if kind == "flip":
        return kind, data.draw(st.one_of(st.none(), st.integers(0, len(shape) - 1) if shape else st.none()))
    if kind == "expand":
        return kind, data.draw(st.integers(-len(shape) - 1, len(shape)))
    if kind == "broadcast":
        grown = tuple(data.draw(st.integers(1, 3)) if n == 1 else n for n in shape)
        return kind, (data.draw(st.integers(1, 2)), *grown)
    if kind == "reshape":
        size = math.prod(shape)
        if not size:
            return kind, shape
        divisor = data.draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        return kind, (divisor, size // divisor)
    if kind == "permute":
        return kind, tuple(data.draw(st.permutations(range(len(shape)))))
    if kind == "squeeze":
        return kind, shape.index(1)
    return kind, None


OURS = {
    "index": lambda x, a: x[a],
    "flip": lambda x, a: xp.flip(x, axis=a),
    "expand": lambda x, a: xp.expand_dims(x, a),
    "broadcast": xp.broadcast_to,
    "reshape": xp.reshape,
    "permute": xp.permute_dims,
    "mT": lambda x, a: x.mT,
    "squeeze": xp.squeeze,
}
NUMPYS = {
    "index": lambda x, a: x[a],
    "flip": lambda x, a: np.flip(x, a),
    "expand": np.expand_dims,
    "broadcast": np.broadcast_to,
    "reshape": np.reshape,
    "permute": np.transpose,
    "mT": lambda x, a: np.swapaxes(x, -1, -2),
    "squeeze": np.squeeze,
}


@pytest.mark.parametrize("device", BACKENDS)
def test_chains_of_views_and_writes(device: str) -> None:
    @settings(max_examples=EXAMPLES[device])
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        compare(device, data)

    check()


def compare(device: str, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(6,), (3, 4), (2, 3, 4), (1, 5), (4, 1, 2), ()]))
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    pairs = [(xp.asarray(values, device=device, copy=True), values.copy())]
    for step in range(data.draw(st.integers(1, 6))):
        ours, expected = data.draw(st.sampled_from(pairs))
        kind, argument = draw_view(data, ours.shape)
        try:
            view = NUMPYS[kind](expected, argument)
        except ValueError:
            with pytest.raises(ValueError):
                OURS[kind](ours, argument)
            continue
        mine = OURS[kind](ours, argument)
        same(mine, view)
        if isinstance(view, np.ndarray) and np.shares_memory(view, expected):
            same_strides(mine, view)
            pairs.append((mine, view))
        overlapping = 0 in [s for s, n in zip(mine.strides, mine.shape, strict=True) if n > 1]
        if overlapping:
            with pytest.raises(ValueError, match="cannot be written"):
                mine[...] = 0
        elif isinstance(view, np.ndarray) and view.flags.writeable:
            new = float(100 * (step + 1))
            mine[...] = new
            view[...] = new
        for a, b in pairs:
            same(a, b)


def test_every_view_sees_a_write(device: str) -> None:
    x = xp.reshape(xp.arange(12), (3, 4))
    row, column, flat, turned = x[1], x[:, 2], xp.reshape(x, (12,)), x.T
    turned[2, 1] = -1
    assert [int(v) for v in (x[1, 2], row[2], column[1], flat[6])] == [-1] * 4
    flat += 10
    assert x.tolist() == [[10, 11, 12, 13], [14, 15, 9, 17], [18, 19, 20, 21]]
    row[1:3] = row[2:4]  # of its own memory
    assert x[1].tolist() == [14, 9, 17, 17]
    assert column.tolist() == [12, 17, 20]


def test_what_is_no_view(device: str) -> None:
    x = xp.reshape(xp.arange(6), (2, 3))
    for other in (xp.reshape(x.T, (6,)), xp.reshape(x, (6,), copy=True), x[x > 0], x[xp.asarray([0, 1])], +x):
        other[...] = -1
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match=r"reshape\(int64\[3, 2\]\): expected strides"):
        xp.reshape(x.T, (6,), copy=False)
    for same in (
        xp.astype(x, xp.int64),
        xp.clip(x),
        xp.roll(x, 0),
        xp.tile(x, (1, 1)),
        xp.concat([x]),
        xp.sum(x, axis=()),
    ):
        same += 1
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert xp.astype(x, xp.int64, copy=False) is x


def test_parts(device: str) -> None:
    x = xp.reshape(xp.arange(9.0), (3, 3))
    xp.linalg.diagonal(x, offset=1)[...] = 0.0
    xp.unstack(x, axis=1)[0][2] = 7.0
    xp.moveaxis(x, 0, 1)[2, 0] = 5.0
    a, b = xp.broadcast_arrays(x, x[0])
    assert x.tolist() == [[0, 0, 5], [3, 4, 0], [7, 7, 8]]
    assert b.tolist() == [[0, 0, 5]] * 3 and a.tolist() == x.tolist()


def test_strides_and_sizes() -> None:
    x = xp.zeros((2, 3), dtype=xp.float32, device="numpy")
    assert (x.strides, x.itemsize, x.nbytes, x.size, x.ndim) == ((12, 4), 4, 24, 6, 2)
    assert x.T.strides == (4, 12) and x[:, ::-2].strides == (12, -8)


POSITIONS = {
    "row": lambda x, i: x[i, ...] + 1,
    "rows": lambda x, i: xp.sum(x[i : i + 5, ...]),
    "column": lambda x, i: x[:, i] * 2,
    "element": lambda x, i: float(x[i, 1]),
    "writes": lambda x, i: x.__setitem__((i, ...), 1.0),
    "roll": lambda x, i: xp.roll(x, i, axis=0),
}


@pytest.mark.skipif("jax" not in BACKENDS, reason="what XLA compiles is counted")
@pytest.mark.parametrize("name", POSITIONS)
def test_no_program_for_every_position(name: str) -> None:
    import jax

    compiled: list[str] = []
    x = xp.reshape(xp.arange(1600.0, device="jax"), (40, 40))
    jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: compiled.append(event))
    for i in range(1, 17):
        POSITIONS[name](x, i)
    assert sum("backend_compile" in event for event in compiled) <= 6
