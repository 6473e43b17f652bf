"""Sizes that stay open where a program computes with them: the steps of a loop, numbers and ranges of a length."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export

import tensorgraft as tg
from tensorgraft.exporting import api, verification
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.subject import identifier
from tensorgraft.frontends.jax.symbolic_shapes import ExportedFunction

X = np.random.default_rng(0).standard_normal((2, 6, 3)).astype(np.float32)


def _shape_in_file(program: object, x: object, to: str, folder: Path) -> list[int | str]:
    sizes = {"x": {0: "batch", 1: "length"}}
    report = tg.export(program, x, to=to, path=folder / f"program.{to}", dynamic=sizes)
    assert report.ok and len(report.rows) == 3, report  # the example, another batch, another length
    return report.inputs[0].shape


def test_a_loop_over_an_open_length(tmp_path: Path) -> None:
    def recurrent(x):
        zero = jnp.zeros((x.shape[0], 3))

        def step(state, row):
            a, b = state
            a, b = a + row, jnp.tanh(a * b + row + 1.0)
            return (a, b), b

        _, forward = jax.lax.scan(step, (zero, zero), x.swapaxes(0, 1))  # two states that start as one array
        _, backward = jax.lax.scan(step, (zero, zero), x.swapaxes(0, 1), reverse=True)
        return forward, backward

    assert _shape_in_file(recurrent, jnp.asarray(X), "pt2", tmp_path) == ["batch", "length", 3]


def test_numbers_in_the_body_of_a_loop(tmp_path: Path) -> None:
    @tf.function
    def total(x):
        n = tf.shape(x)[1]
        y, k = tf.zeros_like(x[:, 0]), tf.constant(0)
        while k < n:
            y, k = 0.5 * y + x[:, k], k + 1
        return y

    assert _shape_in_file(total, tf.constant(X), "pt2", tmp_path) == ["batch", "length", 3]


@pytest.mark.parametrize("to", ["onnx", "pt2", "stablehlo"])
def test_a_length_as_a_floating_point_number(to: str, tmp_path: Path) -> None:
    @tf.function
    def scaled(x):
        batch, length = tf.cast(tf.shape(x)[0], tf.float32), tf.cast(tf.shape(x)[1], tf.float32)
        return x / batch + tf.range(length)[:, None]

    assert _shape_in_file(scaled, tf.constant(X), to, tmp_path) == ["batch", "length", 3]


def test_a_size_that_only_a_format_fixes(tmp_path: Path) -> None:
    @tf.function
    def halves(x):
        return x + tf.range(0.5, tf.cast(tf.shape(x)[1], tf.float32) + 0.5)[:, None]

    with pytest.raises(ValueError, match="dynamic: a size cannot be left open"):
        _shape_in_file(halves, tf.constant(X), "onnx", tmp_path)


def test_a_random_key_beside_an_open_size() -> None:
    key, rows = jax.random.key(0), jax.ShapeDtypeStruct(export.symbolic_shape("n"), jnp.float32)
    specs = [jax.ShapeDtypeStruct((), key.dtype), rows]
    function = ExportedFunction(lambda key, x: [x, jax.random.split(key, 3)], specs, "f")
    assert function.results == [((None,), np.dtype("float32")), ((3, 2), np.dtype("uint32"))]


@pytest.mark.parametrize(("name", "expected"), [("<lambda>", "function"), ("class", "_class"), ("a b", "a_b")])
def test_names_of_programs_are_identifiers(name: str, expected: str) -> None:
    assert identifier(name) == expected


def test_a_batch_beside_axes_of_its_extent(tmp_path: Path) -> None:
    """The batch of the vector is 2, and so is the number of rows of a state."""

    def step(state, measured):
        return state @ jnp.ones((2, 2), jnp.float32) + measured[:, None]

    report = tg.export(step, jnp.ones((2, 2)), jnp.arange(2.0), to="stablehlo", path=tmp_path / "program.stablehlo")
    assert [x.shape for x in report.inputs] == [["batch", 2], ["batch"]]


@pytest.mark.parametrize("to", ["saved_model", "litert", "onnx"])
def test_greatest_values_and_slices(to: str, tmp_path: Path) -> None:
    """In the order of `lax.top_k`: zeros by their signs."""

    def program(x):
        values, places = jax.lax.top_k(x[..., 1:], 3)
        return values, places, x[:, 0, -1]

    x = X.repeat(3, axis=-1)
    x[0, 0, :6], x[0, 1, :6] = [0.0, -0.0, 0.0, -0.0, -1.0, -jnp.inf], [1.0, 2.0, 2.0, jnp.inf, 2.0, -0.0]
    assert _shape_in_file(program, jnp.asarray(x), to, tmp_path) == ["batch", "length", 9]


def test_greatest_values_of_integers() -> None:
    x = np.array([[3, -(2**31), 7, 7], [-(2**31)] * 4], np.int32)
    grafted = tg.graft(lambda x: jax.lax.top_k(x, 4), onto="tensorflow")
    found = tf.function(grafted, input_signature=[tf.TensorSpec((None, 4), tf.int32)])(x)
    for a, b in zip(jax.lax.top_k(x, 4), found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("to", ["onnx", "pt2"])
def test_equal_extents_with_names_of_their_own(to: str, tmp_path: Path) -> None:
    def nearest(x, y):
        _, places = jax.lax.top_k(-((x[:, None] - y[None]) ** 2).sum(-1), 2)
        return jnp.take_along_axis(y[None], places[..., None], axis=1)

    x = jnp.asarray(X[0])
    sizes = {"x": {0: "points"}, "y": {0: "others"}}
    report = tg.export(nearest, x, 2 * x, to=to, path=tmp_path / f"nearest.{to}", dynamic=sizes)
    assert report.ok and [a.shape for a in report.inputs] == [["points", 3], ["others", 3]]


def test_a_file_that_its_runtime_refuses_is_written_with_fewer_open_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = api.check_file

    def refusing(path: str, runner: str, subject: object, converted: object, sizes: OpenSizes) -> object:
        if len(sizes.open()) > 1:
            raise RuntimeError("the exported file does not run (ended by SIGABRT)")
        return run(path, runner, subject, converted, sizes)

    monkeypatch.setattr(api, "check_file", refusing)
    report = tg.export(jnp.sin, jnp.asarray(X), to="onnx", path=tmp_path / "sine.onnx")
    assert report.ok and report.inputs[0].shape == ["batch", 6, 3]
    assert "SIGABRT" in str(report)
    monkeypatch.setattr(verification, "script", lambda *_: "import os; os.abort()")
    monkeypatch.setattr(api, "check_file", run)
    with pytest.raises(RuntimeError, match="ended by SIGABRT"):
        tg.export(jnp.sin, jnp.asarray(X), to="onnx", path=tmp_path / "aborted.onnx")
    assert not (tmp_path / "aborted.onnx").exists()
