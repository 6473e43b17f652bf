"""Random chains of views of random schemes: the law of views bit for bit, writes through them, products of them."""

import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.quantization.chains import (
    Draw,
    applied,
    draw_array,
    draw_copy,
    draw_dtype,
    draw_scheme,
    draw_view,
    made,
    numbers,
    pair,
)

import tensorgraft as tg

EXAMPLES = int(os.environ.get("TENSORGRAFT_CHAINS", "40"))
checked = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="TENSORGRAFT_CHAINS" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)
each_front = pytest.mark.parametrize("front", ["array_api", "torch"])


def same(q, dense):
    assert (tuple(q.shape), q.dtype) == (tuple(dense.shape), dense.dtype)
    if isinstance(q, torch.Tensor):
        assert q.stride() == dense.stride()
    np.testing.assert_array_equal(numbers(q).view(np.int64), numbers(dense).view(np.int64))


@each_front
@checked
@given(data=st.data())
def test_views_of_views(front, data):
    draw = Draw(data)
    scheme, shape = draw_scheme(draw)
    dtype = draw_dtype(draw, front)
    found = pair(draw, scheme, shape, front, dtype)
    note(f"{scheme} {shape} axis {scheme.axis} {dtype}")
    for _ in range(draw.integer(1, 6)):
        here = tuple(found[0].shape)
        copied = here and 0 not in here and draw.integer(0, 2) == 0
        _, text = draw_copy(draw, here, scheme, front, dtype) if copied else draw_view(draw, here, front)
        note(text)
        before, found = found, applied(text, found)
        same(*found)
        if not copied and tg.quantization.is_quantized(before[0]):
            assert tg.quantization.is_quantized(found[0])


@each_front
@checked
@given(data=st.data())
def test_writes_into_views(front, data):
    draw = Draw(data)
    scheme, shape = draw_scheme(draw)
    dtype = draw_dtype(draw, front)
    q, dense = pair(draw, scheme, shape, front, dtype)
    note(f"{scheme} {shape} axis {scheme.axis} {dtype}")
    found, views = (q, dense), []
    for _ in range(draw.integer(0, 4)):
        name, text = draw_view(draw, tuple(found[0].shape), front)
        if name not in ("expand", "unfold", "reshape"):  # several elements at one place; perhaps a copy
            note(text)
            views.append(text)
            found = applied(text, found)
    value = draw_array(draw, tuple(found[0].shape))
    for target in found:
        target[...] = made(value, front)
    assert tg.quantization.is_quantized(q)
    same(q, tg.quantize(dense, scheme))
    again = q, tg.dequantize(q)
    for text in views:
        again = applied(text, again)
    same(found[0], again[1])


@each_front
@checked
@given(data=st.data())
def test_products_of_views(front, data):
    draw = Draw(data)
    scheme, shape = draw_scheme(draw)
    found = pair(draw, scheme, shape, front)
    note(f"{scheme} {shape} axis {scheme.axis}")
    for _ in range(draw.integer(0, 4)):
        _, text = draw_view(draw, tuple(found[0].shape), front)
        note(text)
        found = applied(text, found)
    here = tuple(found[0].shape)
    if not here:
        return
    x = draw_array(draw, (*here[:-2], 3, here[-2]) if len(here) > 1 else here)
    y = draw_array(draw, (*here[:-2], here[-1], 3))
    x, y = made(x, front), made(y, front)
    q, dense = found
    for a, b in ((x @ q, x @ dense), (q @ y, dense @ y)):
        assert not tg.quantization.is_quantized(a) and (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(
            numbers(a), numbers(b), rtol=1e-4, atol=1e-5 * max(1.0, np.abs(numbers(b)).max(initial=0))
        )
