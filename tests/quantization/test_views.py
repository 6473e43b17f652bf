"""A view of a quantised array dequantises, bit for bit, to that view of the dequantised array, and stays quantised."""

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp

BACKENDS = ["numpy", "torch", "jax", "tensorflow"]
SCHEMES = [
    "int8_per_channel",
    "int8_per_tensor",
    "int8_dynamic",
    "int4_per_group_32",
    "uint4_asymmetric_per_group_32",
    "int3_per_group_32",
    "int1",
    "int8_per_block_3x16",
    "float8_e4m3",
    "float8_e5m2_per_group_32",
    "nf4_per_group_32",
    "float4_e2m1_per_group_32",
    "int4_offset_per_group_32",
]
VIEWS = {
    "T": lambda w: w.T,
    "T.T": lambda w: w.T.T,
    "rows": lambda w: w[2:9],
    "steps": lambda w: w[1::2, ::3],
    "backwards": lambda w: w[::-1, 64:0:-1],
    "groups": lambda w: w[:, 32:64],
    "across groups": lambda w: w[:, 5:50],
    "row": lambda w: w[3],
    "column": lambda w: w[:, 7],
    "element": lambda w: w[3, 5],
    "none": lambda w: w[:, 3:3],
    "newaxis": lambda w: w[..., None],
    "flat": lambda w: xp.reshape(w, (-1,)),
    "of a transposed one, flat": lambda w: xp.reshape(w.T, (-1,)),
    "split axes": lambda w: xp.reshape(w, (3, 4, 2, 48)),
    "broadcast": lambda w: xp.broadcast_to(w, (2, 12, 96)),
    "take rows": lambda w: xp.take(w, xp.asarray([5, 0, 5], device=w.device), axis=0),
    "take columns": lambda w: xp.take(w, xp.asarray([40, 2], device=w.device), axis=1),
    "mask": lambda w: w[xp.arange(12, device=w.device) % 3 == 0],
    "concat rows": lambda w: xp.concat([w, w[:3]], axis=0),
    "concat columns": lambda w: xp.concat([w[:, 3:40], w], axis=1),
    "stack": lambda w: xp.stack([w.T, w.T]),
    "unstack": lambda w: xp.unstack(w, axis=1)[9],
    "roll": lambda w: xp.roll(w, 5, axis=1),
    "copy": lambda w: xp.asarray(w[1:, 5:], copy=True),
    "view of views": lambda w: xp.reshape(w[2:10, 8:72].T[::2], (4, -1))[1:, ::2],
}


def array(backend, shape=(12, 96), seed=0):
    return xp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), device=backend)


def cases():
    for backend in BACKENDS:
        for scheme in SCHEMES if backend == "numpy" else SCHEMES[:1] + SCHEMES[4:5]:
            yield pytest.param(backend, scheme, id=f"{backend}-{scheme}")


@pytest.mark.parametrize(("backend", "scheme"), list(cases()))
def test_views(backend, scheme):
    w = tg.quantize(array(backend), scheme)
    dense = np.asarray(tg.dequantize(w))
    host = xp.asarray(dense, device="numpy")
    for name, view in VIEWS.items():
        got, want = view(w), np.asarray(view(host))
        assert isinstance(got, tg.QuantizedArray), name
        assert (got.shape, got.dtype) == (want.shape, want.dtype), name
        np.testing.assert_array_equal(np.asarray(tg.dequantize(got)), want, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_show_in_every_view_and_are_quantised(backend):
    w = tg.quantize(array(backend), "int8_per_channel")
    column, transposed = w[:, 5], w.T
    w[2:4] = 1.0
    assert isinstance(w, tg.QuantizedArray)
    for got in (np.asarray(w)[2:4], np.asarray(transposed)[:, 2:4].T):
        np.testing.assert_allclose(got, 1.0, atol=0.01)
    np.testing.assert_allclose(np.asarray(column)[2:4], 1.0, atol=0.01)
    dense = xp.zeros((12, 96), dtype=xp.float32, device=backend)
    dense[...] = w
    np.testing.assert_array_equal(np.asarray(dense), np.asarray(w))
    assert not isinstance(dense, tg.QuantizedArray)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_has_no_rule_is_dense_and_counted(backend):
    w = tg.quantize(array(backend), "int4_per_group_32")
    tg.quantization.reset()
    out = w + 1.0
    assert not isinstance(out, tg.QuantizedArray)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(tg.dequantize(w)) + 1)
    assert tg.quantization.report()["dequantized"] == {"add": 1}
    with tg.quantization.on_missing("error"), pytest.raises(NotImplementedError, match=r"add of int4\[12, 96\]"):
        w + 1.0
    with tg.quantization.on_missing("warn"), pytest.warns(UserWarning, match="has no rule for quantised"):
        w + 1.0
    with pytest.raises(ValueError, match="expected one of dequantize, warn, error"), tg.quantization.on_missing("x"):
        pass


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_functions_are_counted_at_every_call(backend):
    w = tg.quantize(array(backend), "int8_per_channel")
    run = tg.jit(lambda w: w.T + 1.0)
    tg.quantization.reset()
    for times in (1, 2, 3):
        run(w)
        assert tg.quantization.report()["dequantized"] == {"add": times}
    with tg.quantization.on_missing("error"), pytest.raises(NotImplementedError, match=r"add of int8\[96, 12\]"):
        run(w)


def test_memory():
    w = array("numpy", (64, 2048))
    for scheme, most in (("int8_per_channel", 0.26), ("int4_per_group_32", 0.16), ("nf4", 0.145), ("int2", 0.065)):
        assert tg.quantize(w, scheme).nbytes <= most * w.nbytes, scheme


def test_exactness_of_codes():
    """What lies on the grid of a scale comes back as it was; zeros are exact in every scheme."""
    codes = np.arange(-128, 128, dtype=np.float32).reshape(1, 256) * 0.5
    np.testing.assert_array_equal(np.asarray(tg.quantize(xp.asarray(codes, device="numpy"), "int8_per_channel")), codes)
    for scheme in SCHEMES:
        if scheme != "int1":
            zeros = tg.quantize(xp.zeros((3, 96), dtype=xp.float32, device="numpy"), scheme)
            assert not np.asarray(zeros).any(), scheme


@pytest.mark.parametrize(
    ("shape", "scheme", "error", "match"),
    [
        ((4, 10), "int4_per_group_32", ValueError, "does not divide into groups of 32 along axis 1, which has 10"),
        ((4, 10), "int9", ValueError, "unknown scheme 'int9'"),
        ((4, 10), "int4_dynamic", ValueError, "requires symmetric int8 codes"),
        ((), "int8_per_channel", ValueError, "no channels"),
        ((4, 10), "nf4_asymmetric", ValueError, "has no zero points"),
    ],
)
def test_bad_schemes(shape, scheme, error, match):
    x = xp.ones(shape, dtype=xp.float32, device="numpy")
    with pytest.raises(error, match=match):
        tg.quantize(x, scheme)


def test_bad_values():
    x = array("numpy")
    x[3, 4] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinite"):
        tg.quantize(x, "int8_per_channel")
    with pytest.raises(TypeError, match="expected a floating-point dtype to quantise, got int64"):
        tg.quantize(xp.ones((3, 3), dtype=xp.int64, device="numpy"), "int8_per_channel")
    with pytest.raises(TypeError, match="expected an array of tensorgraft"):
        tg.quantize(np.ones((3, 3)), "int8_per_channel")


def test_an_array_goes_to_another_backend_as_codes():
    q = tg.quantize(xp.asarray(np.arange(12, dtype=np.float32).reshape(3, 4), device="numpy"), "int4_per_channel")
    there = q[1:].T.to_device("torch")
    assert tg.quantization.is_quantized(there) and there.device == xp.asarray(1, device="torch").device
    np.testing.assert_array_equal(np.asarray(there), np.asarray(q)[1:].T)
    assert q.to_device(q.device) is q
