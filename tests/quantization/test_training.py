"""Rounding that is trained through."""

import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("scheme", ["int4_per_group_32", "float8_e4m3"])
def test_rounding_has_the_derivative_one(backend, scheme):
    key = tg.random.key(0, backend)
    x, c = tg.random.normal(key, (4, 64)), tg.random.normal(tg.random.key(1, backend), (4, 64))

    def fake(x):
        return tg.quantization.fake_quantize(x, scheme)

    want = tg.dequantize(tg.quantize(x, scheme))
    assert xp.all(fake(x) == want) and not tg.quantization.is_quantized(fake(x))
    g = tg.grad(lambda x: xp.sum(c * fake(x) ** 2))
    near = 2 * c * want
    assert xp.max(xp.abs(g(x) - near)) < 1e-6 and xp.max(xp.abs(tg.jit(g)(x) - near)) < 1e-6
    out, moved = tg.jvp(fake, (x,), (c,))
    assert xp.all(out == want) and xp.all(moved == c)


def test_what_cannot_be_rounded():
    x = xp.full((2, 30), float("nan"), device="numpy")
    with pytest.raises(ValueError, match=r"fake_quantize: .*has NaN"):
        tg.quantization.fake_quantize(x, "int8_per_channel")
    with pytest.raises(ValueError, match="does not divide into groups of 32"):
        tg.quantization.fake_quantize(x, "int4_per_group_32")
    with pytest.raises(TypeError, match=r"fake_quantize: expected an array .* got a builtins\.list"):
        tg.quantization.fake_quantize([1.0], "int8_per_channel")
    with pytest.raises(TypeError, match=r"prepare_qat_: expected a torch\.nn\.Module, got a builtins\.dict"):
        tg.quantization.prepare_qat_({}, "int8_per_channel")
