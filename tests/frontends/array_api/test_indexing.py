"""Indexing with arrays reads and writes what NumPy's does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontends.array_api.conftest import BACKENDS, EXAMPLES

import tensorgraft.array_api as xp

SHAPE = (3, 4, 2)


def ours(key: Any, device: str) -> Any:
    if isinstance(key, tuple):
        return tuple(ours(k, device) for k in key)
    return xp.asarray(key, device=device, copy=True) if isinstance(key, np.ndarray) else key


@st.composite
def keys(draw: st.DrawFn) -> Any:
    """Keys of NumPy for an array of `SHAPE`, with arrays in them."""
    if draw(st.booleans()) and draw(st.booleans()):
        axes = draw(st.integers(0, 3))
        size = int(np.prod(SHAPE[:axes]))
        return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool).reshape(SHAPE[:axes])
    shapes = draw(st.sampled_from([[(2,)] * 3, [(2, 1), (3,), ()], [(), (2,), (2,)], [(0,)] * 3]))
    key: list[Any] = []
    for n, shape in zip(SHAPE, shapes, strict=True):
        kind = draw(st.sampled_from(["slice", "int", "array", "mask", "none"]))
        if kind == "slice":
            key.append(draw(st.slices(n)))
        elif kind == "int":
            key.append(draw(st.integers(-n, n - 1)))
        elif kind == "array":
            size = int(np.prod(shape))
            values = draw(st.lists(st.integers(-n, n - 1), min_size=size, max_size=size))
            key.append(np.array(values, draw(st.sampled_from([np.int64, np.int8]))).reshape(shape))
        elif kind == "mask":
            key.append(np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool))
        else:
            key += [None, slice(None)]
    cut = draw(st.integers(1, len(key)))
    return (Ellipsis, *key) if cut == len(key) and draw(st.booleans()) else tuple(key[:cut])


@pytest.mark.parametrize("device", BACKENDS)
def test_as_numpy(device: str) -> None:
    @settings(max_examples=EXAMPLES[device])
    @given(key=keys(), data=st.data())
    def check(key: Any, data: st.DataObject) -> None:
        compare(device, key, data)

    check()


def compare(device: str, key: Any, data: st.DataObject) -> None:
    values = np.arange(24, dtype=np.float64).reshape(SHAPE)
    x = xp.asarray(values, device=device, copy=True)
    try:
        expected = values[key]
    except IndexError:  # masks and index arrays that do not broadcast
        with pytest.raises((IndexError, ValueError)):
            x[ours(key, device)]
        return
    found = x[ours(key, device)]
    assert found.shape == np.shape(expected)
    np.testing.assert_array_equal(np.asarray(found), expected)
    whole = data.draw(st.booleans())
    new = np.arange(100.0, 100.0 + np.size(expected)).reshape(np.shape(expected)) if whole else np.float64(-1)
    if whole:  # of places named twice NumPy keeps the last value, backends one of them
        places = np.arange(24).reshape(SHAPE)[key]
        if np.unique(places).size != np.size(places):
            return
    values[key] = new
    x[ours(key, device)] = xp.asarray(new, device=device, copy=True) if whole else -1.0
    np.testing.assert_array_equal(np.asarray(x), values)


def test_through_views(device: str) -> None:
    x = xp.reshape(xp.arange(12), (3, 4))
    view = x.T[1:]
    view[xp.asarray([0, 2]), xp.asarray([1, 0])] = xp.asarray([-1, -2])
    view[view > 8] = 0
    assert x.tolist() == [[0, 1, 2, -2], [4, -1, 6, 7], [8, 0, 0, 0]]
    x[xp.asarray([True, False, True])] = x[1]
    assert x.tolist() == [[4, -1, 6, 7]] * 3
    x[1:, 0] = xp.asarray([[[9]]])[0, 0]
    assert x[:, 0].tolist() == [4, 9, 9]


def test_scalars_and_dtypes(device: str) -> None:
    x = xp.zeros(3, dtype=xp.float32)
    x[0], x[1] = 1, 2.5
    x[2] = xp.asarray(7, dtype=xp.int16)
    assert x.tolist() == [1.0, 2.5, 7.0] and x.dtype == xp.float32
    x[...] = np.asarray([3, 4, 5])
    assert x.tolist() == [3, 4, 5]
    z = xp.zeros((), dtype=xp.int64)
    z[()] = 4
    z[True] = 5
    empty = xp.zeros((0, 0), dtype=xp.bool)
    m = xp.ones((2, 3))
    m[empty] = 7.0
    assert m[empty].shape == (0,) and m.tolist() == [[1, 1, 1]] * 2
    assert int(z) == 5 and z[None].shape == (1,) and z[False].shape == (0,)


def test_take(device: str) -> None:
    x = xp.reshape(xp.arange(6), (2, 3))
    assert xp.take(x, xp.asarray([-1, 0]), axis=1).tolist() == [[2, 0], [5, 3]]
    assert xp.take_along_axis(x, xp.asarray([[-1]]), axis=1).tolist() == [[2], [5]]
    assert xp.take(x[0], xp.asarray([1])).tolist() == [1]
    for bad in (lambda: xp.take(x, xp.asarray([3]), axis=1), lambda: xp.take_along_axis(x, xp.asarray([[-4]]))):
        with pytest.raises(IndexError, match="out of bounds for axis 1 of size 3"):
            bad()
