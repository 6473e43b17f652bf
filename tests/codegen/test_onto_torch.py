"""What PyTorch has not: names and dtypes of JAX programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tensorgraft as tg

jax = pytest.importorskip("jax")
jnp = jax.numpy


def made(written: Any, tmp_path: Any) -> dict[str, Any]:
    """What is in the file, its weights beside it."""
    written.save(tmp_path / "model.py")
    names: dict[str, Any] = {}
    exec(written.text, names)
    return names


def test_parameters_that_are_called_as_keywords(tmp_path: Any) -> None:
    def gate(params: Any, x: Any) -> Any:
        return jax.nn.sigmoid(x @ params["cell"]["if"]["kernel"]) + params["cell"]["class"]

    rng = np.random.default_rng(0)
    params = {"cell": {"if": {"kernel": jnp.asarray(rng.standard_normal((3, 2)))}, "class": jnp.ones(2)}}
    x = jnp.asarray(rng.standard_normal((4, 3)))
    written = tg.source(gate, params, x, onto="torch", check=False, dynamic=False)
    names = made(written, tmp_path)
    model = names["load_weights"](tmp_path / "model.safetensors")
    np.testing.assert_allclose(model(torch.from_numpy(np.array(x))).detach(), gate(params, x), 1e-5)
    names["save_weights"](model, tmp_path / "back.safetensors")
    assert set(names["load_file"](tmp_path / "back.safetensors")) == set(written.weights)


def test_arithmetic_of_unsigned_integers(tmp_path: Any) -> None:
    def mixed(x: Any, y: Any) -> Any:
        i = jnp.arange(4, dtype=x.dtype) + 1
        z = (x * y + i) ^ (x >> 3) | (y << 5)
        return z, ~x, -x, x - y, x // i, x % i, jnp.maximum(x, y), jnp.minimum(x, 5), x < y, x * x, jnp.clip(x, 2, 9)

    for dtype in (np.uint16, np.uint32):
        x = jnp.asarray(np.random.default_rng(0).integers(0, np.iinfo(dtype).max, 4, dtype=dtype))
        y = x[::-1] + 7
        names = made(tg.source(mixed, x, y, onto="torch", check=False, dynamic=False), tmp_path)
        got = names["mixed"](*[torch.from_numpy(np.array(a)) for a in (x, y)])
        for g, w in zip(got, mixed(x, y), strict=True):
            assert g.numpy().dtype == w.dtype
            np.testing.assert_array_equal(g, w)


@pytest.mark.slow
def test_loops_in_loops_keep_the_names_that_they_read() -> None:
    lineax = pytest.importorskip("lineax")
    rng = np.random.default_rng(1)
    matrix = jnp.asarray(rng.standard_normal((6, 6)) + 6 * np.eye(6), jnp.float32)

    def solved(a: Any, b: Any) -> Any:
        solver = lineax.GMRES(rtol=1e-5, atol=1e-5)
        return lineax.linear_solve(lineax.MatrixLinearOperator(a), b, solver).value

    written = tg.source(solved, matrix, jnp.asarray(rng.standard_normal(6), jnp.float32), onto="torch", dynamic=False)
    assert written.report.ok, written.report


def test_a_class_outside_is_a_row_of_zeros() -> None:
    written = tg.source(lambda i: jax.nn.one_hot(i, 3), jnp.array([0, 2, 3, -1]), onto="torch")
    assert written.report.ok, written.report
