"""Storage: reads and writes through arbitrary geometries, on every backend, against NumPy's own strided memory."""

import math

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

from tensorgraft.hub import dtypes, registry
from tensorgraft.storage import Geometry, Storage, contiguous_geometry, contiguous_strides, is_dense, read, write

BACKENDS = registry.backends()


def strided(memory, geometry):
    """The oracle: NumPy's strided view of the bytes of a flat array."""
    size = geometry.dtype.itemsize
    raw = memory.view(np.uint8)
    return np.ndarray(geometry.shape, geometry.dtype, raw, geometry.offset * size, [s * size for s in geometry.strides])


@st.composite
def geometries(draw, size=24, negative=True):
    """Any shape, strides and offset that stay inside a flat storage of `size` elements."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    strides, low, high = [], 0, 0
    for n in shape:
        room = (size - 1 - (high - low)) // max(n - 1, 1)
        stride = draw(st.integers(0, max(min(room, 12), 0)))
        stride *= draw(st.sampled_from([1, -1])) if negative else 1
        span = max(n - 1, 0) * stride
        low, high = low + min(span, 0), high + max(span, 0)
        strides.append(stride)
    offset = draw(st.integers(-low, size - 1 - high))
    return Geometry(shape, tuple(strides), offset, dtypes.float32)


def distinct(geometry):
    """No two elements in one place."""
    at = np.asarray(geometry.offset)
    for n, s in zip(geometry.shape, geometry.strides, strict=True):
        at = at[..., None] + np.arange(n) * s
    return len(np.unique(at)) == at.size


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=60)
@given(geometry=geometries(), natural=st.sampled_from([(24,), (4, 6), (2, 3, 4), (1, 24)]))
def test_read(name, geometry, natural):
    xp = registry.get(name)
    memory = np.arange(24, dtype=np.float32)
    with xp.scope():
        got = read(xp, xp.asarray(memory.reshape(natural)), geometry)
        np.testing.assert_array_equal(xp.to_numpy(got), strided(memory, geometry))


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=60)
@given(geometry=geometries().filter(distinct), natural=st.sampled_from([(24,), (4, 6), (2, 3, 4)]))
def test_write(name, geometry, natural):
    xp = registry.get(name)
    memory = np.arange(24, dtype=np.float32)
    value = -1 - np.arange(math.prod(geometry.shape), dtype=np.float32).reshape(geometry.shape)
    with xp.scope():
        array = xp.asarray(memory.reshape(natural))
        got = write(xp, array, geometry, xp.asarray(value))
        assert xp.shape(got) == natural
        strided(memory, geometry)[...] = value
        np.testing.assert_array_equal(xp.to_numpy(got).reshape(-1), memory)


@settings(max_examples=25)
@given(geometry=geometries().filter(distinct))
def test_in_a_trace(geometry):
    if "jax" not in BACKENDS:
        pytest.skip("JAX is not installed")
    xp = registry.get("jax")
    memory = np.arange(24, dtype=np.float32)

    def program(array):
        seen = read(xp, array, geometry)
        return (write(xp, array, geometry, xp.multiply(seen, 2.0)),)

    with xp.scope():
        (got,) = jax.jit(program)(xp.asarray(memory.reshape(4, 6)))
    view = strided(memory, geometry)
    view[...] = view * 2
    np.testing.assert_array_equal(np.asarray(got).reshape(-1), memory)


def test_gradients_flow_through_writes_and_views():
    xp = registry.get("jax")
    column = Geometry((4,), (6,), 1, dtypes.float32)
    row = Geometry((6,), (1,), 12, dtypes.float32)

    def loss(memory, value):
        memory = write(xp, memory, column, xp.multiply(value, 3.0))
        return read(xp, memory, row).sum()

    memory, value = jax.numpy.ones((4, 6)), jax.numpy.ones(4)
    to_memory, to_value = jax.grad(loss, argnums=(0, 1))(memory, value)
    np.testing.assert_array_equal(to_value, [0, 0, 3, 0])
    np.testing.assert_array_equal(to_memory[2], [1, 0, 1, 1, 1, 1])


REINTERPRET = [
    ("float32", "int32", [1.5, -2.0]),
    ("float32", "uint8", [1.5, -2.0]),
    ("uint8", "float32", [0, 0, 128, 63, 0, 0, 0, 64]),
    ("int16", "bfloat16", [16256, -16384]),
    ("bool", "uint8", [True, False, True]),
    ("complex64", "float32", [1 + 2j, 3 - 4j]),
    ("float64", "complex128", [1.0, 2.0, 3.0, 4.0]),
    ("int64", "int32", [2**40 + 3, -1]),
]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("held", "seen", "values"), REINTERPRET)
def test_reinterpreted(name, held, seen, values):
    xp = registry.get(name)
    named = {"bfloat16": dtypes.bfloat16}
    held, seen = (named.get(d) or np.dtype(d) for d in (held, seen))
    memory = np.array(values, dtype=held)
    n = memory.nbytes // seen.itemsize
    every_other = Geometry(((n + 1) // 2,), (2,), 0, seen)
    with xp.scope():
        array = xp.asarray(memory)
        np.testing.assert_array_equal(xp.to_numpy(read(xp, array, contiguous_geometry((n,), seen))), memory.view(seen))
        value = xp.full(every_other.shape, 1, seen)
        got = xp.to_numpy(write(xp, array, every_other, value))
    memory.view(seen)[::2] = 1
    np.testing.assert_array_equal(got, memory)


def test_numpy_reads_are_views_and_writes_are_in_place():
    xp = registry.get("numpy")
    memory = np.arange(24, dtype=np.float32)
    part = Geometry((2, 3), (6, 2), 1, dtypes.float32)
    seen = read(xp, memory, part)
    assert np.shares_memory(seen, memory)
    assert write(xp, memory, part, np.zeros((2, 3), np.float32)) is memory
    assert memory[1] == memory[3] == memory[7] == 0


def test_all_who_share_a_storage_see_a_write():
    for name in BACKENDS:
        xp = registry.get(name)
        with xp.scope():
            storage = Storage(xp.asarray(np.zeros((2, 3), np.float32)), xp)
            storage.array = write(
                xp, storage.array, Geometry((2,), (3,), 2, dtypes.float32), xp.asarray(np.ones(2, np.float32))
            )
            seen = xp.to_numpy(read(xp, storage.array, Geometry((3, 2), (1, 3), 0, dtypes.float32)))
        np.testing.assert_array_equal(seen, [[0, 0], [0, 0], [1, 1]])


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [((2, 3), (3, 1), True), ((3, 2), (1, 3), True), ((2, 3), (4, 1), False), ((2, 3), (0, 1), False), ((), (), True),
     ((1, 3), (77, 1), True), ((0, 3), (5, 5), True)],
)  # fmt: skip
def test_is_dense(shape, strides, dense):
    assert is_dense(shape, strides) is dense


def test_contiguous_strides():
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert contiguous_strides((2, 0, 4)) == (4, 4, 1)
