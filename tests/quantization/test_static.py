"""Products in which the other operand is quantised by a fixed range."""

import copy
import pickle

import numpy as np
import pytest
import torch

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.quantization.input_ranges import InputRange
from tensorgraft.quantization.scheme import scheme_of

pytestmark = pytest.mark.sampled

RNG = np.random.default_rng(0)
W = RNG.standard_normal((24, 64)).astype(np.float32)
X = (RNG.standard_normal((40, 64)) + 0.7).astype(np.float32)
BEYOND = np.concatenate([X, 3 * X])  # of which some is beyond the range of X
KINDS = ["int8_static", "int8_static_asymmetric", "int8_static_per_tensor"]
BACKENDS = ["numpy", "torch", "jax", "tensorflow"]


def on(backend, a):
    return xp.asarray(a, device=backend)


def rounded(q, x, grad=None):
    """What PyTorch's fake quantisation makes of `x`, or of the gradient of what comes after it."""
    scale, zero = float(q.input_scale), 0 if q.input_zero is None else int(q.input_zero)
    t = torch.tensor(x, requires_grad=True)
    y = torch.fake_quantize_per_tensor_affine(t, scale, zero, -128, 127)
    if grad is None:
        return y.detach().numpy()
    y.backward(torch.tensor(grad))
    return t.grad.numpy()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", KINDS)
def test_products_are_those_of_fake_quantisation(backend, scheme):
    q = tg.quantize(on(backend, W), scheme, inputs=on(backend, X))
    assert str(q.scheme).startswith(scheme) and scheme_of(str(q.scheme)) == q.scheme
    assert q.input_scale.shape == () and (q.input_zero is None) == ("asymmetric" not in scheme)
    w, x = np.asarray(tg.dequantize(q)), rounded(q, BEYOND)
    products = {
        "x @ w.T": (lambda a, q: a @ q.T, x @ w.T),
        "w @ x.T": (lambda a, q: q @ a.T, w @ x.T),
        "view": (lambda a, q: a[:, 5:50] @ q[3:9, 5:50].T, x[:, 5:50] @ w[3:9, 5:50].T),
        "batched": (lambda a, q: xp.reshape(a, (2, 40, 64)) @ q.T, (x @ w.T).reshape(2, 40, 24)),
        "tensordot": (lambda a, q: xp.tensordot(q, a, axes=((1,), (1,))), w @ x.T),
    }
    for name, (product, want) in products.items():
        got = np.asarray(product(on(backend, BEYOND), q).to_device("numpy"))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=name)
    got = tg.jit(lambda a, q: a @ q.T)(on(backend, BEYOND), q)
    np.testing.assert_allclose(np.asarray(got.to_device("numpy")), x @ w.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("scheme", KINDS[:2])
def test_derivatives_are_those_of_fake_quantisation(backend, scheme):
    """1 where a number is rounded, 0 where it is beyond the range."""
    q = tg.quantize(on(backend, W), scheme, inputs=on(backend, X))
    c = RNG.standard_normal((80, 24)).astype(np.float32)
    got = tg.grad(lambda a: xp.sum(on(backend, c) * (a @ q.T)))(on(backend, BEYOND))
    want = rounded(q, BEYOND, c @ np.asarray(tg.dequantize(q)))
    assert 0 < np.mean(want == 0) < 0.5
    np.testing.assert_allclose(np.asarray(got.to_device("numpy")), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scheme", KINDS[:2])
def test_ranges_stay_with_views_copies_and_files(scheme):
    q = tg.quantize(on("numpy", W), scheme, inputs=[X[:20], on("numpy", X[20:])])
    want = np.asarray(on("numpy", X) @ q.T)
    for name, kept in {
        "view": q[::-1].T[:, ::-1].T,
        "copy": copy.deepcopy(q),
        "pickle": pickle.loads(pickle.dumps(q)),
        "reshape": xp.reshape(xp.reshape(q, (3, 8, 64)), (24, 64)),
    }.items():
        assert kept.scheme == q.scheme, name
        assert np.array_equal(np.asarray(on("numpy", X) @ kept.T), want), name
    written = copy.deepcopy(q)
    written[2:4] = 1.0
    assert float(written.input_scale) == float(q.input_scale)
    q = copy.deepcopy(q)
    wide = tg.quantize(on("numpy", W), scheme, inputs=on("numpy", 3 * X - 1))
    both = xp.concat([q, wide])
    low, high = (
        f((np.array([-128, 127]) - float(0 if r.input_zero is None else r.input_zero)) * float(r.input_scale))
        for f, r in ((np.min, both), (np.max, both))
    )
    assert low <= (3 * X - 1).min() + float(both.input_scale) and high >= (3 * X - 1).max() - float(both.input_scale)
    got = np.asarray(on("numpy", X) @ both.T)
    assert got.shape == (40, 48) and np.abs(got[:, :24] - X @ W.T).max() < 0.05 * np.abs(got).max()


def test_what_is_observed():
    x = RNG.standard_normal(100_000).astype(np.float32)
    x[7] = 40.0  # an outlier

    def found(observer, with_zero=False, x=x):
        r = InputRange(observer, with_zero)
        for part in np.array_split(x, 7):
            r.update(part)
        scale, zero = r.scale_and_zero()
        return float(scale), None if zero is None else float(zero)

    assert found("minmax") == (np.float32(40 / 127), None)
    magnitudes = np.sort(np.abs(x))
    for percent in (99.0, 99.9):
        want = magnitudes[int(np.ceil(percent / 100 * (len(x) - 1)))] / 127
        assert np.isclose(found(f"percentile_{percent}")[0], want, rtol=0.01)
    relu = np.maximum(x, 0)
    scale, zero = found("percentile_99.9", True, relu)
    assert zero == -128 and np.isclose(scale * 255, np.quantile(relu, 0.999), rtol=0.01)

    def error(scale):
        return np.mean((np.clip(np.round(x / scale), -128, 127) * scale - x) ** 2)

    best = min(error(40 / 127 * share) for share in np.geomspace(0.01, 1, 300))
    assert error(found("mse")[0]) < 1.02 * best
    assert found("mse", x=np.zeros(5, np.float32)) == (1.0, None)
    low, high = x.min(), x.max()
    scale, zero = found("minmax", True)
    assert np.isclose(scale, (high - low) / 255) and zero == np.round(-128 - low / scale)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_bad_input(backend):
    w = on(backend, W)
    with pytest.raises(ValueError, match=r"quantize: int8_static_per_channel stores the range .*: pass inputs="):
        tg.quantize(w, "int8_static")
    with pytest.raises(
        ValueError,
        match="inputs are used only by schemes such as int8_static, but int8_per_channel does not measure any",
    ):
        tg.quantize(w, "int8_per_channel", inputs=w)
    with pytest.raises(ValueError, match=r"batch 1 of the inputs, of shape \(40, 64\), has NaN"):
        tg.quantize(w, "int8_static", inputs=[X, X * np.nan])
    with pytest.raises(ValueError, match="inputs is empty"):
        tg.quantize(w, "int8_static", inputs=[])
    with pytest.raises(ValueError, match="expected activation_observer to be 'minmax'"):
        tg.quantize(w, "int8_static", inputs=X, activation_observer="median")
    with pytest.raises(ValueError, match=r"expected activation to be one of None, 'int8', 'int8_static'"):
        tg.quantization.Scheme("int8", activation="int4")
    with pytest.raises(
        ValueError, match="requires symmetric int8 codes with one scale for each channel or tensor, got int4"
    ):
        tg.quantize(w, "int4_static", inputs=X)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_scales_that_scale_nothing(value):
    q = tg.quantize(on("numpy", W), "int8_per_channel")
    scale = np.asarray(q.scale).copy()
    scale[3] = value
    with pytest.raises(ValueError, match=r"a QuantizedArray: 1 of 24 numbers of scale, of shape \(24, 1\), are NaN"):
        tg.QuantizedArray(q.codes, on("numpy", scale), None, q.base, q._geometry, q.scheme)
    q.scale[3] = value
    with pytest.raises(ValueError, match="1 of 24 numbers of scale"):
        pickle.loads(pickle.dumps(q))


def test_numbers_that_no_scale_fits():
    for x, problem in (
        (np.array([[1.0, np.inf]]), "NaN or infinite"),
        (np.array([[1.0, 1e300]]), "values beyond those of float32"),
        (np.array([[-3e38, 3e38]], np.float32), "values further from each other than float32 has numbers"),
    ):
        with pytest.raises(ValueError, match=rf"quantize: the {x.dtype} tensor of shape \(1, 2\) has {problem}"):
            tg.quantize(on("numpy", x), "uint8_per_channel")


@pytest.mark.parametrize("encoding", ["int1", "uint1", "int1_asymmetric", "int1_offset"])
@pytest.mark.parametrize("granularity", ["channel", "tensor", "group_32"])
def test_one_bit_is_not_nothing(encoding, granularity):
    """Two levels, at the mean plus and minus the mean deviation: 4.4 dB for normal numbers. Two at the extremes, or at
    zero and an extreme, would have 0 dB and less."""
    for shift in (0.0, 5.0) if encoding != "int1" else (0.0,):
        x = W + np.float32(shift)
        error = np.asarray(tg.dequantize(tg.quantize(on("numpy", x), f"{encoding}_per_{granularity}"))) - x
        assert 10 * np.log10(W.var() / (error**2).mean()) > 4.2
    same = on("numpy", np.full((2, 32), 3.25, np.float32))
    assert xp.all(tg.dequantize(tg.quantize(same, f"{encoding}_per_{granularity}")) == same)
