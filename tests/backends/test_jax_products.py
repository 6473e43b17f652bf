"""Products of few rows, which are computed the other way round on the CPU."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tensorgraft.hub import registry


@pytest.mark.parametrize("shape", [(2, 512), (64, 512), (4, 3, 512), (1, 512), (65, 512)])
def test_values_and_derivatives(shape: tuple[int, ...]) -> None:
    xp, rng = registry.get("jax"), np.random.default_rng(0)
    x, w, dx, dw = (rng.normal(size=s).astype(np.float32) for s in (shape, (256, 512), shape, (256, 512)))
    g = rng.normal(size=(*shape[:-1], 256)).astype(np.float32)
    with xp.scope():
        y, dy = jax.jvp(xp.linear, (x, w), (dx, dw))
        pulled = jax.vjp(xp.linear, x, w)[1](g)
        batched = jax.vmap(xp.linear, (0, None))(np.stack([x, dx]), w)
        second = jax.jit(jax.grad(lambda x: jax.grad(lambda x: (xp.linear(x, w) ** 3).sum())(x).sum()))(x)
    want = x @ w.T
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dy, dx @ w.T + x @ dw.T, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(pulled[0], g @ w, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pulled[1], np.tensordot(g, x, (range(g.ndim - 1),) * 2), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(batched, np.stack([x, dx]) @ w.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second, 6 * (want * w.sum(1)) @ w, rtol=1e-3, atol=1e-1)


def test_the_weights_are_the_left_factor() -> None:
    xp = registry.get("jax")

    def left_factor(rows: int) -> tuple[int, ...]:
        program = jax.make_jaxpr(xp.linear)(np.ones((rows, 512), np.float32), np.ones((256, 512), np.float32))
        text = jax.jit(jax.extend.core.jaxpr_as_fun(program)).lower(*program.in_avals).as_text()
        product = next(line for line in text.splitlines() if "stablehlo.dot_general" in line)
        return tuple(map(int, product.partition("(tensor<")[2].partition("xf32>")[0].split("x")))

    with xp.scope():
        assert left_factor(16) == (256, 512)
        assert left_factor(128) == (128, 512)


def test_of_a_number_of_rows_that_is_open() -> None:
    xp, (rows,) = registry.get("jax"), jax.export.symbolic_shape("rows")
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((rows, 512), (256, 512))]
    exported = jax.export.export(jax.jit(xp.linear))(*shapes)
    assert exported.call(np.ones((3, 512), np.float32), np.ones((256, 512), np.float32)).shape == (3, 256)
