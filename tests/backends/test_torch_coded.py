"""PyTorch's own ways of multiplying codes, against what they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from tests.hub.checks import assert_close, backend

import tensorgraft as tg
import tensorgraft.array_api as ns
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.encode import encode
from tensorgraft.quantization.scheme import scheme_of

torch = pytest.importorskip("torch")
coded = pytest.importorskip("tensorgraft.backends.torch.coded")
operators = pytest.importorskip("tensorgraft.backends.torch.operators")

pytestmark = pytest.mark.sampled

SCHEMES = (
    "int8_per_channel", "int8_per_tensor", "int8_asymmetric_per_group_16", "int8_per_block_16x16", "int4_per_group_32",
    "int4_per_channel", "uint4_per_group_32", "int2_per_group_32", "int1_per_channel", "int5_per_group_8", "nf4",
    "float8_e4m3", "float8_e5m2",
)  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.float16])
def test_blocks_of_rows(scheme: str, dtype: np.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of several blocks, the last of which is smaller, from few and from many rows, on either axis."""
    monkeypatch.setattr(coded, "_BLOCK", 20 * 64)
    xp, rng = backend("torch"), np.random.default_rng(0)
    q = encode(xp, xp.asarray(rng.standard_normal((48, 64)).astype(np.float32)), scheme_of(scheme))
    for m in (1, 3, 8, 9, 70):
        for axis in (0, 1):
            x = xp.asarray(rng.standard_normal((m, q.base[axis])).astype(dtype))
            operands = x, q.codes, q.scale, q.zero, q.encoding, q.base, axis
            found, wanted = xp.coded_matmul(*operands), Backend.coded_matmul(xp, *operands)
            assert found.dtype == x.dtype
            assert found.is_contiguous()
            assert_close(xp.to_numpy(found), xp.to_numpy(wanted), 64 if dtype == dtypes.float32 else 8)


@pytest.mark.parametrize("which", ["x", "codes"])
def test_memory_that_is_not_aligned(which: str) -> None:
    """PyTorch's kernel for few rows of bfloat16 reads registers at a time."""
    xp, q = backend("torch"), encode(backend("torch"), torch.randn(48, 64), scheme_of("int8_per_channel"))
    x, codes = torch.randn(4, 64).to(torch.bfloat16), q.codes
    wanted = xp.coded_matmul(x, codes, q.scale, None, q.encoding, q.base)
    if which == "x":
        x = torch.cat([torch.zeros(1, dtype=x.dtype), x.reshape(-1)])[1:].view(4, 64)
    else:
        codes = torch.cat([torch.zeros(3, dtype=torch.int8), codes.reshape(-1)])[3:].view(48, 64)
    found = xp.coded_matmul(x, codes, q.scale, None, q.encoding, q.base)
    assert_close(xp.to_numpy(found), xp.to_numpy(wanted), 8)


@pytest.mark.parametrize("k", [5, 12, 72])
def test_rows_that_are_no_whole_registers(k: int) -> None:
    xp, q = backend("torch"), encode(backend("torch"), torch.randn(3, k), scheme_of("int8_per_channel"))
    operands = torch.randn(2, k).to(torch.bfloat16), q.codes, q.scale, None, q.encoding, q.base
    wanted = Backend.coded_matmul(xp, *operands)
    assert_close(xp.to_numpy(xp.coded_matmul(*operands)), xp.to_numpy(wanted), 8)


def test_codes_that_are_not_finite() -> None:
    xp = backend("torch")
    codes = torch.tensor([[1.0, float("nan")], [2.0, -4.0]]).to(torch.float8_e4m3fn)
    scale, x = torch.ones(2, 1), torch.eye(2)
    found = xp.coded_matmul(x, codes, scale, None, scheme_of("float8_e4m3").codes, (2, 2))
    np.testing.assert_array_equal(found.numpy(), [[np.nan, 2.0], [np.nan, -4.0]])


@pytest.mark.parametrize("m", [1, 2, 5, 40])
def test_int8_products(m: int) -> None:
    """Exact, with operands of any strides: an axis of one element has what stride it likes."""
    rng = np.random.default_rng(m)
    a, b = rng.integers(-128, 128, (m, 64)), rng.integers(-128, 128, (64, 24))
    x, y = (torch.tensor(v, dtype=torch.int8) for v in (a, b))
    layouts = [x, x.t().contiguous().t(), torch.cat([x, x], 1)[:, :64]]
    if m == 1:
        layouts += [x.as_strided((1, 64), (stride, 1)) for stride in (0, 1, 5)]
    for left in layouts:
        for right in (y, y.t().contiguous().t()):
            assert np.array_equal(operators.int8_matmul(left, right).numpy(), a @ b)
            assert np.array_equal(operators.int8_matmul(right.t(), left.t()).numpy(), (a @ b).T)


def test_one_row_when_compiled() -> None:
    """PyTorch's kernel reads memory that is not its own where the compiler gives an axis of one element no stride."""
    rng = np.random.default_rng(0)
    x, w = (ns.asarray(rng.standard_normal((n, 64)).astype(np.float32), device="torch") for n in (1, 32))
    q = tg.quantize(w, "int8_dynamic")
    found = tg.jit(lambda x, q: x @ q.T)(x, q)
    np.testing.assert_allclose(found.native.numpy(), (x @ q.T).native.numpy(), rtol=1e-6)


def test_derivatives_of_coded_products() -> None:
    rng = np.random.default_rng(0)
    x, w = (ns.asarray(rng.standard_normal((n, 64)).astype(np.float32), device="torch") for n in (3, 32))
    q = tg.quantize(w, "int4_per_group_32")
    found = tg.grad(lambda x: ns.sum((x @ q.T) ** 2))(x)
    wanted = tg.grad(lambda x: ns.sum((x @ tg.dequantize(q).T) ** 2))(x)
    np.testing.assert_allclose(found.native.numpy(), wanted.native.numpy(), rtol=1e-4, atol=1e-3)
