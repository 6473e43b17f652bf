"""Functions of the Array API standard as source: views and writes keep their meaning, names are the program's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as ax
from tensorgraft.codegen.frameworks import framework_of

RNG = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def softmax(x: Any, axis: int = -1) -> Any:
    """Numbers that sum to one."""
    xp = x.__array_namespace__()
    shifted = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return shifted / xp.sum(shifted, axis=axis, keepdims=True)


def attention(q: Any, k: Any, v: Any, causal: bool = True) -> Any:
    """Softmax of products. Of one head."""
    xp = q.__array_namespace__()
    n = q.shape[-2]
    scores = q @ xp.matrix_transpose(k) / q.shape[-1] ** 0.5
    if causal:
        seen = xp.tril(xp.ones((n, n), dtype=xp.bool))
        scores = xp.where(seen, scores, -xp.inf)
    return softmax(scores) @ v


def writes(x: Any, y: Any) -> Any:
    xp = x.__array_namespace__()
    out = xp.zeros_like(x)
    rows = out[1:, :]
    rows[:, ::2] = y[1:, ::2]
    rows *= 2
    out[0, ...] += x[0, ...]
    flat = xp.reshape(out, (-1,))
    return {"out": out, "last": xp.cumulative_sum(flat)[-1], "order": xp.argsort(out, axis=0, stable=True)}


def normalised(x: Any, scale: Any) -> Any:
    xp = x.__array_namespace__()
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    return centred * scale / xp.std(x, axis=-1, keepdims=True)


def network(params: Any, x: Any) -> Any:
    xp = x.__array_namespace__()
    for layer in params["layers"]:
        hidden = normalised(x, layer["scale"]) @ layer["w"]
        x = xp.where(hidden > 0, hidden, 0.1 * hidden)
    return x @ params["out"]


def test_names_sizes_and_words() -> None:
    written = tg.source(attention, *[numbers(2, 5, 4) for _ in range(3)], onto="numpy")
    assert written.report.ok, written.report
    assert [row.sizes for row in written.report.rows] == [
        "as the example", "batch of 4", "axis 1 of 10", "axis 2 of 8"]  # fmt: skip
    for line in ("def attention(", "Softmax of products.", "seen = np.tril(np.ones((length, length)", "softmax(scores"):
        assert line in written.text, line


@pytest.mark.parametrize("onto", ["numpy", "torch"])
def test_views_and_writes(onto: str) -> None:
    written = tg.source(writes, numbers(4, 6), numbers(4, 6), onto=onto, dynamic=onto == "numpy")
    assert written.report.ok, written.report


def test_parameters_and_functions_that_are_called() -> None:
    params = {"layers": [{"w": numbers(4, 4), "scale": numbers(4)} for _ in range(2)], "out": numbers(4, 3)}
    written = tg.source(network, params, numbers(3, 4), onto="torch")
    assert written.report.ok, written.report
    assert {row.what for row in written.report.rows} == {"results", "gradients"}
    assert set(written.weights) == {"layers.0.w", "layers.0.scale", "layers.1.w", "layers.1.scale", "out"}
    assert written.text.count("def normalised(") == 1


def test_arrays_from_around_are_weights() -> None:
    w = ax.asarray(numbers(4, 2), device="numpy")

    def closed(x: Any) -> Any:
        return ax.tanh(x @ w)

    written = tg.source(closed, ax.asarray(numbers(3, 4), device="numpy"), onto="numpy")
    assert written.report.ok, written.report
    assert list(written.weights) == ["w"] and 'params["w"]' in written.text


def test_functions_of_numpy() -> None:
    def program(x: Any) -> Any:
        return np.sum(np.sqrt(x**2 + 1), axis=0)

    written = tg.source(program, numbers(3, 4), onto="numpy")
    assert written.report.ok and "np.sqrt" in written.text


def test_a_written_argument_is_noted() -> None:
    def program(x: Any) -> Any:
        x[0] = 1
        return x * 2

    written = tg.source(program, numbers(3), onto="numpy")
    assert written.report.ok, written.report
    assert any("writes its argument x" in note for note in written.report.notes)


def test_a_value_that_is_asked_for_is_an_error() -> None:
    def program(x: Any) -> Any:
        return x if x[0] > 0 else -x

    with pytest.raises(tg.errors.TracedValueError):
        tg.source(program, numbers(3), onto="numpy")


def test_of_which_framework_a_function_is() -> None:
    assert framework_of(attention, (numbers(2),)) == "array_api"
    assert framework_of(lambda x: np.sin(x), (numbers(2),)) == "array_api"
    assert framework_of(len, (ax.asarray([1.0]),)) == "array_api"
    jax = pytest.importorskip("jax")
    assert framework_of(lambda x: jax.numpy.sin(np.pi * x), (numbers(2),)) == "jax"
    assert framework_of(jax.jit(lambda x: x), (numbers(2),)) == "jax"
    assert framework_of(lambda x: x + 1, (jax.numpy.ones(2),)) == "jax"
