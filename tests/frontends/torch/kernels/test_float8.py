"""Conversions to float8 are PyTorch's in PyTorch's programs, and JAX's and TensorFlow's in theirs, on every backend."""

import numpy as np
import pytest
import torch

import tensorgraft as tg
from tensorgraft.hub import dtypes, registry

KINDS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
VALUES = torch.tensor([464.0, 465.0, 500.0, 1e9, torch.inf, -1e4, torch.nan, 3.0])


@pytest.fixture(params=["jax", "numpy", "torch", "tensorflow"])
def backend(request):
    return request.param


def same(x, y):
    return torch.equal(x.float().cpu().nan_to_num(1e4), y.float().cpu().nan_to_num(1e4))


@pytest.mark.parametrize("mode", ["tiered", "compiled"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_conversions_saturate_where_pytorchs_do(backend, mode, kind):
    if backend == "tensorflow" and mode == "compiled" and "fnuz" in str(kind):
        pytest.skip("TensorFlow has no conversions to float8 without negative zero")
    device = tg.device(backend)
    with tg.eager(mode):
        for x in (VALUES, VALUES.double(), VALUES.bfloat16(), torch.tensor([500, -(10**6)])):
            there = x.to(device)
            assert same(there.to(kind), x.to(kind))
            assert same(torch.zeros(x.shape, dtype=kind, device=device).copy_(there), x.to(kind))


def test_compiled_functions_saturate(backend):
    def f(x):
        return x.to(torch.float8_e4m3fn).float()

    assert same(tg.jit(f, compile="first")(VALUES.to(tg.device(backend))), f(VALUES))


@pytest.mark.parametrize("value", [449.0, torch.inf])
def test_numbers_without_room_are_refused(backend, value):
    device = tg.device(backend)
    for mode in ("tiered", "compiled"):
        with tg.eager(mode), pytest.raises(RuntimeError, match="without overflow"):
            torch.full((2,), value, dtype=torch.float8_e4m3fn, device=device)


def test_the_hub_gives_nan(backend):
    xp = registry.get(backend)
    out = xp.astype(xp.asarray(np.array([464, 465, np.inf, -2], np.float32)), dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(xp.to_numpy(xp.astype(out, dtypes.float32)), [448, np.nan, np.nan, -2])


@pytest.mark.parametrize("mode", ["tiered", "compiled"])
def test_dtypes_that_no_backend_has_are_refused_in_both_modes(backend, mode):
    device = tg.device(backend)
    with tg.eager(mode):
        for make in (
            lambda: torch.tensor([3.0], device=device).to(torch.float8_e8m0fnu),
            lambda: torch.zeros(2, dtype=torch.float8_e8m0fnu, device=device),
            lambda: torch.zeros(2, dtype=torch.uint8, device=device).view(torch.float8_e8m0fnu),
        ):
            with pytest.raises(TypeError, match="cannot be on the device"):
                make()


def test_eager_operators_read_what_compiled_ones_have_read(backend):
    w = (torch.arange(24.0).view(4, 6) / 9).to(torch.float8_e4m3fn)
    there = w.to(tg.device(backend))
    tg.jit(lambda w: w.float() * 2, compile="first")(there)
    assert same(there[1:3].float(), w[1:3].float())
    assert same(there, w)
