"""Programs of TensorFlow and Keras as source: results, gradients and state are TensorFlow's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorgraft as tg
from tensorgraft.codegen.trace import Frame, SourceTrace, steps

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
layers = keras.layers


def traced(program: Any, *args: Any, **kwargs: Any) -> SourceTrace:
    from tensorgraft.frontends.tensorflow.codegen.program import GraphFunctionProgram

    return GraphFunctionProgram(program).trace(args, kwargs)


def methods(trace: SourceTrace) -> list[str]:
    return [s.method for s in steps(trace.root)]


def numbers(*shape: int, seed: int = 0) -> Any:
    return tf.constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class Block(layers.Layer):
    """A block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.attn = layers.MultiHeadAttention(2, width // 2)
        self.up, self.down = layers.Dense(2 * width, "gelu"), layers.Dense(width)
        self.drop = layers.Dropout(0.1)

    def call(self, x: Any, training: bool = False) -> Any:
        normal = self.norm1(x)
        x = x + self.attn(normal, normal, use_causal_mask=True)
        hidden = self.up(self.norm2(x))
        return x + self.drop(self.down(hidden), training=training)


class GPT(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = layers.Embedding(11, 8), layers.Embedding(32, 8)
        self.blocks = [Block(8), Block(8)]

    def call(self, ids: Any, training: bool = False) -> Any:
        length = tf.shape(ids)[1]
        x = self.tok(ids) + self.pos(tf.range(length))
        for block in self.blocks:
            x = block(x, training=training)
        return x


@pytest.fixture(scope="module")
def gpt() -> tuple[Any, Any]:
    keras.utils.set_random_seed(0)
    model, ids = GPT(), tf.constant([[1, 2, 3, 4, 5, 6], [0, 3, 5, 7, 9, 10]])
    model(ids)
    return model, ids


def test_a_transformer_of_keras_reads_as_its_source(gpt: Any) -> None:
    model, ids = gpt
    written = tg.source(model, ids, onto="jax")
    assert written.report.ok, written.report
    assert {row.what for row in written.report.rows} == {"results", "gradients"}
    assert [bool(group.checked_sizes) for group in written.report.groups] == [True, True]  # batches and lengths
    text = written.text
    for line in ('for p in params["blocks"]:', "def block(p: dict, x: jax.Array)", "normal = layer_norm(",
                 'hidden = dense(p["up"]', "jax.nn.softmax", "jnp.tril", "A block of a transformer."):  # fmt: skip
        assert line in text, line
    assert text.count("def block") == text.count("def multi_head_attention") == 1
    assert "tensorflow" not in text.partition('"""')[2].partition('"""')[2]
    assert "blocks.1.attn.query.kernel" in written.weights


def test_dropout_takes_a_key(gpt: Any) -> None:
    model, ids = gpt
    trace = traced(model, ids, training=True)
    assert trace.key is not None and not trace.buffers and not trace.written
    assert methods(trace).count("uniform") == 2
    frames = [c for c in trace.root.calls if isinstance(c, Frame) and c.kind == "Block"]
    assert ["key" in dict(f.arguments) for f in frames] == [True, True]


def test_convolutions_and_statistics_that_are_written() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        layers.Input((8, 8, 2)), layers.Conv2D(4, 3, padding="same", activation="relu"), layers.BatchNormalization(),
        layers.MaxPooling2D(2), layers.DepthwiseConv2D(3, strides=2), layers.GlobalAveragePooling2D(), layers.Dense(3),
    ])  # fmt: skip
    x = numbers(2, 8, 8, 2)
    before = [v.numpy() for v in model.variables]
    written = tg.source(model, x, training=True, onto="numpy", dynamic=False)
    assert written.report.ok, written.report
    assert all(np.array_equal(a, v.numpy()) for a, v in zip(before, model.variables, strict=True))
    trace = traced(model, x, training=True)
    assert set(trace.written) == {"batch_normalization.moving_mean", "batch_normalization.moving_variance"}
    assert [m for m in methods(trace) if "channels_last" in m] == [
        "conv_channels_last", "max_pool_channels_last", "conv_channels_last"]  # fmt: skip


def test_recurrent_layers_take_other_lengths() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Input((None, 3)), layers.LSTM(4)])
    written = tg.source(model, numbers(2, 5, 3), onto="numpy")
    assert written.report.ok, written.report
    assert [row.sizes for row in written.report.rows] == ["as the example", "batch of 4", "axis 1 of 10"]


class Linear(tf.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.w, self.b = tf.Variable(numbers(width, width)), tf.Variable(tf.zeros(width))

    @tf.function
    def __call__(self, x: Any) -> Any:
        return x @ self.w + self.b


class Counting(tf.Module):
    """Layers that count how often they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [Linear(4), Linear(4)]
        self.calls = tf.Variable(0, trainable=False)

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def __call__(self, x: Any) -> Any:
        self.calls.assign_add(1)
        for layer in self.layers:
            x = tf.nn.tanh(layer(x))
        return x


def test_modules_with_state() -> None:
    model = Counting()
    written = tg.source(model, numbers(3, 4), onto="numpy", dynamic=False)
    assert written.report.ok, written.report
    assert model.calls.numpy() == 0
    assert set(written.weights) == {"layers.0.w", "layers.0.b", "layers.1.w", "layers.1.b", "calls"}
    assert (
        'linear(params["layers"][1], x)' in written.text and "def counting(params: dict, buffers: dict" in written.text
    )


@tf.function
def newton(x: Any, tolerance: float = 1e-5) -> Any:
    count, y = tf.constant(0), x
    while tf.reduce_max(tf.abs(y * y - x)) > tolerance and count < 20:
        y = 0.5 * (y + x / y)
        count += 1
    return y, {"steps": count}


def test_loops_of_values_and_structures_of_results() -> None:
    written = tg.source(newton, tf.constant([1.0, 2.0, 3.0]), onto="numpy", dynamic=False)
    assert written.report.ok, written.report
    assert "while " in written.text and '"steps"' in written.text


def program_of_variables() -> Any:
    v = tf.Variable(np.zeros((4, 6), np.float32))

    def program(x: Any) -> Any:
        before = v + 0.0
        v.assign(x)
        v[1:3, ::2].assign(x[:2, :3])
        v.scatter_nd_add([[3]], x[:1])
        for _ in tf.range(3):
            v.assign_add(x)
        v.assign(tf.cond(tf.reduce_sum(x) > 0.0, lambda: v * 2.0, lambda: v * 3.0))
        return before, v.read_value()

    return program


def test_a_variable_that_is_all_there_is() -> None:
    written = tg.source(program_of_variables(), numbers(4, 6), onto="numpy", dynamic=False)
    assert written.report.ok, written.report
    assert "def program(buffers: dict, x: np.ndarray)" in written.text and list(written.weights) == ["v"]


def test_a_step_of_training() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Input((3,)), layers.Dense(4, "relu"), layers.Dense(2)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(labels, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return value

    written = tg.source(step, numbers(4, 3), tf.constant([0, 1, 1, 0]), onto="numpy")
    assert written.report.ok, written.report
    assert [row.sizes for row in written.report.rows] == ["as the example", "batch of 6"]


def test_numbers_of_a_seed_that_is_known_are_constants() -> None:
    def noisy(x: Any) -> Any:
        return x + tf.random.stateless_normal([3], seed=[1, 2])

    assert tg.source(noisy, numbers(2, 3), onto="numpy", dynamic=False).report.ok


def test_a_derivative_of_the_programs_own_is_noted() -> None:
    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        return x * 2.0, lambda d: tf.clip_by_value(d, -1.0, 1.0)

    trace = traced(lambda x: tf.nn.silu(clipped(x)), numbers(3))
    assert len(trace.notes) == 1 and "custom_gradient" in trace.notes[0] and "test_tensorflow" in trace.notes[0]


def test_what_has_no_words_names_the_line() -> None:
    def program(x: Any) -> Any:
        return tf.numpy_function(np.sort, [x], tf.float32)

    with pytest.raises(tg.errors.TracedValueError, match="PyFunc") as caught:
        tg.source(program, numbers(3), onto="numpy")
    assert any("test_tensorflow_source.py" in note for note in caught.value.__notes__)


def test_names_of_layers_are_those_of_their_places() -> None:
    for _ in range(2):
        model = keras.Sequential([layers.Input((3,)), layers.Dense(2), layers.Dense(2, name="out"), layers.Dense(2)])
        assert list(traced(model, numbers(2, 3)).parameters)[::2] == ["dense.kernel", "out.kernel", "dense_1.kernel"]


def test_the_command_takes_models_of_keras(tmp_path: Any, capsys: Any) -> None:
    from tensorgraft.cli.convert import convert

    keras.utils.set_random_seed(0)
    (tmp_path / "net.py").write_text(
        "import keras\nL = keras.layers\n"
        "net = keras.Sequential([L.Input((3,)), L.Dense(2), L.Dropout(0.5), L.BatchNormalization()])\n"
    )
    place, out = f"{tmp_path}/net.py:net", f"{tmp_path}/out.py"
    common = {"to": "numpy", "inputs": ["4x3"], "style": None, "check_file": False}
    assert convert(place, out=out, weights=None, training=False, **common) == 0
    weights = f"{tmp_path}/out.safetensors"
    assert convert(place, out=f"{tmp_path}/training.py", weights=weights, training=True, **common) == 0
    assert "key" in (tmp_path / "training.py").read_text() and "equal" in capsys.readouterr().out
