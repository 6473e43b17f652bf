"""Encodings by tables of numbers, and zero points that are offsets."""

import ml_dtypes
import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.quantization import Scheme

BACKENDS = ["numpy", "torch", "jax"]


def numbers(shape=(16, 64), seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def host(x):
    return np.asarray(tg.dequantize(x).to_device("numpy"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["float4_e2m1", "float6_e2m3", "float6_e3m2"])
def test_small_floats(name, backend):
    """Rounded as ml_dtypes does, half way to the even code."""
    dtype = getattr(ml_dtypes, f"{name}fn")
    every = np.arange(2 ** (4 if "4" in name[5] else 6), dtype=np.uint8).view(dtype).astype(np.float32)
    ordered = np.unique(every)
    x = np.concatenate([every, (ordered[1:] + ordered[:-1]) / 2, numbers((1, 63))[0]])  # the scale is 1
    q = tg.quantize(xp.asarray(x, device=backend), f"{name}_per_tensor")
    np.testing.assert_array_equal(host(q), x.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tables(backend):
    table, x = (0.5, -1.0, 1.0, 0.0, -0.25), numbers()
    q = tg.quantize(xp.asarray(x, device=backend), Scheme("table", "channel", table=table))
    scale = np.abs(x).max(1, keepdims=True)
    choices = np.array(table, np.float32) * scale[..., None]
    nearest = np.take_along_axis(choices, np.abs(choices - x[..., None]).argmin(-1)[..., None], -1)[..., 0]
    np.testing.assert_array_equal(host(q), nearest)
    np.testing.assert_array_equal(host(q[3:7, 5:].T), nearest[3:7, 5:].T)
    other = numbers((8, 64), 1)
    np.testing.assert_allclose(host(xp.asarray(other, device=backend) @ q.T), other @ nearest.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["int4_offset_per_group_32", "uint8_offset_per_channel", "int2_offset_per_group_16"])
def test_offsets(name, backend):
    """A block's least and greatest numbers are met, far from zero, too."""
    x = numbers() + 50
    q = tg.quantize(xp.asarray(x, device=backend), name)
    columns = {"int4": 32, "uint8": 64, "int2": 16}[name.partition("_")[0]]
    blocks, found = x.reshape(16, -1, columns), host(q).reshape(16, -1, columns)
    levels = 2 ** int(name.partition("_")[0].removeprefix("u").removeprefix("int")) - 1
    step = (blocks.max(-1) - blocks.min(-1))[..., None] / levels
    np.testing.assert_allclose(found, blocks, rtol=1e-5, atol=0.51 * step.max())
    np.testing.assert_allclose(found.min(-1), blocks.min(-1), rtol=1e-6)
    np.testing.assert_allclose(found.max(-1), blocks.max(-1), rtol=1e-6)
    assert str(q.scheme) == name
    q[2:4] = xp.asarray(x[4:6], device=backend)
    np.testing.assert_array_equal(host(q)[2:4], host(q)[4:6])


def test_offsets_by_gptq():
    w, x = numbers() + 5, numbers((200, 64), 1) @ numbers((64, 64), 2)
    near = tg.quantization.gptq(xp.asarray(w, device="numpy"), x, "int4_offset_per_group_32")
    nearest = tg.quantize(xp.asarray(w, device="numpy"), "int4_offset_per_group_32")
    assert np.square(x @ (host(near) - w).T).sum() < 0.7 * np.square(x @ (host(nearest) - w).T).sum()


@pytest.mark.parametrize(
    "arguments",
    [{"encoding": "table"}, {"encoding": "table", "table": (0.0, 0.0)}, {"encoding": "int4", "table": (0.0, 1.0)}],
)
def test_bad_tables(arguments):
    with pytest.raises(ValueError, match=r"with a table of .* numbers: only the encoding 'table' has one"):
        Scheme(**arguments)


def test_offsets_of_symmetric_codes():
    with pytest.raises(ValueError, match="symmetric=False"):
        Scheme("int4", offset=True)
