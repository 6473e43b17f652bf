"""Rounding by what goes into a Linear."""

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.quantization import gptq

RNG = np.random.default_rng(0)
W = (RNG.standard_normal((48, 256)) * 0.1).astype(np.float32)
MIX = RNG.standard_normal((32, 256))
X = (RNG.standard_normal((600, 32)) @ MIX + 0.1 * RNG.standard_normal((600, 256))).astype(np.float32)
FRESH = (RNG.standard_normal((200, 32)) @ MIX + 0.1 * RNG.standard_normal((200, 256))).astype(np.float32)


def sqnr(q, x=FRESH):
    """Of the product, in dB."""
    got, want = x @ np.asarray(tg.dequantize(q)), x @ W.T
    return 10 * np.log10((want**2).mean() / ((got - want) ** 2).mean())


def on(backend, a):
    return xp.asarray(a, device=backend)


@pytest.mark.parametrize(
    "scheme",
    ["int4_per_group_32", "int4_per_channel", "uint4_per_group_64", "int3_per_tensor", "nf4", "int4_per_block_16x64"],
)
def test_products_are_nearer_than_by_rounding_to_the_nearest(scheme):
    q = gptq(on("numpy", W), on("numpy", X), scheme)
    plain = tg.quantize(on("numpy", W), scheme)
    assert isinstance(q, tg.QuantizedArray) and (q.shape, q.dtype, q.nbytes) == (plain.shape, plain.dtype, plain.nbytes)
    assert sqnr(q.T) > sqnr(plain.T) + 4  # dB, on inputs that it has not seen


def test_inputs_that_do_not_correlate_are_rounded_to_the_nearest():
    q = gptq(on("numpy", W), np.eye(256, dtype=np.float32), "int4_per_group_32")
    assert xp.all(tg.dequantize(q) == tg.dequantize(tg.quantize(on("numpy", W), "int4_per_group_32")))


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_on_backends_and_in_batches(backend):
    want = tg.dequantize(gptq(on("numpy", W), on("numpy", X), "int4_per_group_32"))
    q = gptq(on(backend, W), [on(backend, X[:100].reshape(2, 50, 256)), on(backend, X[100:])], "int4_per_group_32")
    assert q.device == on(backend, W).device
    assert np.mean(np.asarray(tg.dequantize(q)) == np.asarray(want)) > 0.99


@pytest.mark.parametrize("backend", ["cpu", "jax"])
def test_of_torch(backend):
    import torch

    device = torch.device("cpu") if backend == "cpu" else tg.device(backend)
    w, x = (torch.from_numpy(a).to(device) for a in (W, X))
    q = gptq(w, x, "int4_per_group_32")
    assert q.is_graft_quantized and q.device == w.device
    want = gptq(on("numpy", W), on("numpy", X), "int4_per_group_32")
    assert np.array_equal(tg.dequantize(q).cpu().numpy(), np.asarray(tg.dequantize(want)))


def test_an_input_that_is_always_zero():
    x = X.copy()
    x[:, 7] = 0
    assert sqnr(gptq(on("numpy", W), x, "int4_per_channel").T, x) > 20


def test_errors():
    w = on("numpy", W)
    with pytest.raises(ValueError, match=r"expected inputs of shape \(\.\.\., 256\), batch 0 has shape \(3, 4\)"):
        gptq(w, [np.ones((3, 4))], "int4_per_channel")
    with pytest.raises(ValueError, match=r"batch 0 of the inputs, of shape .* has NaN"):
        gptq(w, on("numpy", X * np.nan), "int4_per_channel")
    with pytest.raises(ValueError, match="inputs is empty"):
        gptq(w, [], "int4_per_channel")
    with pytest.raises(ValueError, match=r"of shape \(N, K\), got \(256,\)"):
        gptq(w[0], X, "int4_per_channel")
    with pytest.raises(ValueError, match="does not divide into groups of 100"):
        gptq(w, X, "int4_per_group_100")
