"""What range codes cover."""

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp

X = np.random.default_rng(0).standard_normal((8, 512)).astype(np.float32)
X[:, ::100] *= 8


def error(observer, scheme, backend="numpy"):
    x = xp.asarray(X, device=backend)
    return float(xp.mean((tg.dequantize(tg.quantize(x, scheme, observer=observer)) - x) ** 2))


@pytest.mark.parametrize(
    "scheme",
    ["int4_per_channel", "int3_per_group_64", "uint4_per_channel", "int4_per_tensor", "nf4", "int4_per_block_4x32"],
)
def test_mse_is_the_least(scheme):
    least = error("mse", scheme)
    assert least < 0.95 * error("minmax", scheme)
    assert all(least < 1.02 * error(f"percentile_{p}", scheme) for p in (95, 99, 99.9))


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_on_backends(backend):
    for observer in ("mse", "percentile_99"):
        assert np.isclose(error(observer, "int4_per_channel", backend), error(observer, "int4_per_channel"), rtol=1e-4)


def test_percentiles_are_of_numbers():
    x = xp.asarray(np.arange(-30, 71, dtype=np.float32)[None], device="numpy")
    q = tg.quantize(x, "int8_per_channel", observer="percentile_90")  # of magnitudes: 0 to 70, those up to 30 twice
    assert float(xp.max(xp.abs(tg.dequantize(q)))) == 60
    q = tg.quantize(x, "uint8_per_channel", observer="percentile_90")
    assert np.isclose(float(xp.max(tg.dequantize(q))), 60, atol=0.2)
    assert np.isclose(float(xp.min(tg.dequantize(q))), -20, atol=0.2)
    same = tg.quantize(x, "int8_per_channel", observer="percentile_100")
    assert xp.all(tg.dequantize(same) == tg.dequantize(tg.quantize(x, "int8_per_channel")))


def test_others_are_errors():
    x = xp.ones((2, 3), device="numpy")
    for observer in ("median", "percentile_40", None):
        with pytest.raises(ValueError, match=r"observer to be 'minmax', 'mse', 'percentile'"):
            tg.quantize(x, "int8_per_channel", observer=observer)
    with pytest.raises(ValueError, match="has NaN"):
        tg.quantize(x * float("nan"), "int8_per_channel", observer="mse")
