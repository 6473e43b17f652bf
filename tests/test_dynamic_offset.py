"""Reads and writes at an offset that is an operand, against NumPy's own strided memory."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tensorgraft import dynamic_offset
from tensorgraft.hub import dtypes, registry
from tensorgraft.storage import Geometry, contiguous_strides

BACKENDS = [name for name in registry.backends() if not registry.get(name).mutable]
NATURAL = [(24,), (4, 6), (2, 3, 4), (1, 24), (6, 1, 4)]


def strided(memory, geometry):
    size = geometry.dtype.itemsize
    raw = memory.view(np.uint8)
    return np.ndarray(geometry.shape, geometry.dtype, raw, geometry.offset * size, [s * size for s in geometry.strides])


@st.composite
def windows(draw):
    """Shape and strides, and all offsets at which they fit into 24 float32 or 48 int16; strides that lie along the rows
    of some array more often than others."""
    dtype = draw(st.sampled_from([dtypes.float32, dtypes.float32, dtypes.int16]))
    size = 96 // dtype.itemsize
    shape, strides, low, high = [], [], 0, 0
    for _ in range(draw(st.integers(0, 3))):
        n = draw(st.integers(0, 4))
        stride = draw(st.sampled_from([1, 1, 2, 4, 6, 12, 5, 0])) * draw(st.sampled_from([1, 1, -1]))
        span = max(n - 1, 0) * stride
        if high - low + abs(span) < size:
            low, high = low + min(span, 0), high + max(span, 0)
            shape.append(n)
            strides.append(stride)
    return Geometry(tuple(shape), tuple(strides), 0, dtype), range(-low, size - high)


def form_at(geometry, natural):
    return dynamic_offset.form_of(*geometry, natural, dtypes.float32)


def distinct(geometry):
    at = np.zeros((), np.int64)
    for n, s in zip(geometry.shape, geometry.strides, strict=True):
        at = at[..., None] + np.arange(n) * s
    return len(np.unique(at)) == at.size


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=25)
@given(window=windows(), natural=st.sampled_from(NATURAL), data=st.data())
def test_one_program_reads_and_writes_at_every_offset_of_its_form(name, window, natural, data):
    xp = registry.get(name)
    geometry, offsets = window
    first = geometry._replace(offset=data.draw(st.sampled_from(offsets)))
    form = form_at(first, natural)
    others = [n for n in offsets if form_at(geometry._replace(offset=n), natural) == form]
    memory = np.arange(24, dtype=np.float32)
    value = -1 - np.arange(math.prod(geometry.shape), dtype=geometry.dtype).reshape(geometry.shape)
    writes = distinct(geometry)

    def program(array, value, offset):
        seen = dynamic_offset.read(xp, array, first, form, offset)
        return seen, dynamic_offset.write(xp, array, first, value, form, offset) if writes else seen

    run = xp.compile(program)
    for offset in {first.offset, others[0], others[-1], others[len(others) // 2]}:
        here = geometry._replace(offset=offset)
        with xp.scope():
            seen, after = run(xp.asarray(memory.reshape(natural)), xp.asarray(value), xp.place(offset))
            np.testing.assert_array_equal(xp.to_numpy(seen), strided(memory, here))
        if writes:
            expected = memory.copy()
            strided(expected, here)[...] = value
            assert xp.shape(after) == natural
            np.testing.assert_array_equal(np.asarray(xp.to_numpy(after)).reshape(-1), expected)


@pytest.mark.parametrize("natural", NATURAL)
def test_a_view_has_few_forms(natural):
    """Rows, columns, elements and blocks of an array have one form wherever they are, whatever shape the array of the
    storage has; where the storage ends first, another."""
    for shape, strides in (((6,), (1,)), ((4,), (6,)), ((), ()), ((2, 6), (6, 1)), ((3, 2), (6, 1)), ((2, 2), (12, 2))):
        span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        rows = contiguous_strides((4, 6))[0]
        inside = [
            n
            for n in range(24 - span)
            if n % rows + sum((k - 1) * s for k, s in zip(shape, strides, strict=True) if s < rows) < rows
        ]
        forms = {form_at(Geometry(shape, strides, n, dtypes.float32), natural) for n in inside}
        assert len(forms) <= 3 and (natural != (4, 6) or forms == {dynamic_offset.Form("slice")})
