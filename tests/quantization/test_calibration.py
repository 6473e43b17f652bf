"""Pytrees of arrays whose inputs are measured."""

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.array_api import Array

MIX = np.random.default_rng(0).standard_normal((12, 64))


def inputs(n, backend="numpy", seed=1):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 12)) @ MIX + 0.1 * rng.standard_normal((n, 64))
    return xp.asarray(x.astype(np.float32), device=backend)


class Mlp(tg.Module):
    up: dict
    down: dict

    def __init__(self, backend):
        rng = np.random.default_rng(1)
        self.up, self.down = (
            {"weight": xp.asarray(rng.standard_normal(s).astype(np.float32) * 0.1, device=backend)}
            for s in ((96, 64), (96, 32))
        )

    def __call__(self, x: Array, shift: float = 0.0) -> Array:
        hidden = x @ self.up["weight"].T + shift
        return xp.where(hidden > 0, hidden, 0.0) @ self.down["weight"]  # the one transposed, the other not


def sqnr(got, want):
    got, want = (np.asarray(a.to_device("numpy")) for a in (got, want))
    return 10 * np.log10((want**2).mean() / ((got - want) ** 2).mean())


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_static_activations(backend):
    model, x = Mlp(backend), inputs(50, backend)
    before = np.asarray(model.up["weight"].to_device("numpy"))
    channels = {"up*": "int8_static", "*": tg.quantization.Scheme("int8", axis=1, activation="int8_static_asymmetric")}
    made = tg.quantize_(model, channels, calibrate=[inputs(50, backend, seed) for seed in range(4)])
    assert not tg.quantization.is_quantized(model.up["weight"])
    assert np.array_equal(np.asarray(model.up["weight"].to_device("numpy")), before)
    assert made.up["weight"].input_scale.shape == () and made.down["weight"].input_zero.shape == ()
    assert sqnr(made(x), model(x)) > 35
    compiled = tg.jit(lambda m, x: m(x))(made, x)
    np.testing.assert_allclose(
        np.asarray(compiled.to_device("numpy")), np.asarray(made(x).to_device("numpy")), rtol=1e-3, atol=1e-3
    )


def test_gptq_rounds_along_either_axis():
    model, x = Mlp("numpy"), inputs(100)
    batches = [inputs(100, seed=seed) for seed in range(2, 7)]
    scheme = {"up*": "int4_per_group_32", "*": "int4_per_block_32x1"}
    nearest = tg.quantize_(model, scheme)
    good = tg.quantize_(model, scheme, calibrate=lambda m: [m(b) for b in batches], rounding="gptq")
    assert sqnr(good(x), model(x)) > sqnr(nearest(x), model(x)) + 3
    w = xp.asarray(np.asarray(model.down["weight"]).T.copy(), device="numpy")
    hidden = [np.maximum(np.asarray(b @ good.up["weight"].T), 0) for b in batches]
    same = tg.dequantize(tg.quantization.gptq(w, hidden, "int4_per_group_32"))
    np.testing.assert_allclose(np.asarray(tg.dequantize(good.down["weight"])).T, np.asarray(same), atol=1e-6)


def test_bad_input():
    model, x = Mlp("numpy"), inputs(4)
    with pytest.raises(ValueError, match=r"batch 1: what multiplies down.weight, of shape \(4, 96\), has NaN"):
        tg.quantize_(model, "int8_per_tensor", calibrate=[x, (x, float("inf"))], rounding="gptq")
    with pytest.raises(ValueError, match=r"up.weight: int8_static_per_tensor measures .* pass calibrate="):
        tg.quantize_(model, "int8_static_per_tensor")
    with pytest.raises(TypeError, match="a dict cannot be called with batches: pass a function that takes"):
        tg.quantize_({"weight": model.up["weight"]}, "int8_static", calibrate=[x])
    tree = {"a": {"weight": model.up["weight"]}, "b": {"weight": model.down["weight"]}}
    with pytest.raises(ValueError, match=r"no input reached b.weight in the run: .* exclude it .*\{'b': None"):
        tg.quantize_(tree, "int8_static", calibrate=lambda t: x @ t["a"]["weight"].T)
    with pytest.raises(ValueError, match=r"a.weight: products add up along the one and along the other axis"):
        tg.quantize_(
            {"a": {"weight": model.down["weight"]}},
            "int4_per_tensor",
            calibrate=lambda t: (x[:, :32] @ t["a"]["weight"].T) @ t["a"]["weight"],
            rounding="gptq",
        )
    with pytest.raises(ValueError, match=r"weight: GPTQ rounds weights of two axes, .*; this one is \(2, 32, 64\)"):
        tg.quantize_(
            {"weight": xp.reshape(xp.asarray(np.ones((64, 64), np.float32), device="numpy"), (2, 32, 64))},
            "int4_per_group_32",
            filter="weight",
            calibrate=lambda t: t["weight"] @ x.T,
            rounding="gptq",
        )
