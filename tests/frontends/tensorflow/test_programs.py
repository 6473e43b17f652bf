"""Programs of TensorFlow on every backend, with the numbers of TensorFlow, in results and in variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
import torch
from tests.frontends.tensorflow.common import BACKENDS, agree, difference, native, on_host
from tests.frontends.tensorflow.samples import numbers

import tensorgraft as tg

X = numbers((4, 3))
Made = tuple[Callable[..., Any], Sequence[tf.Variable]]


def training() -> Made:
    w, b = tf.Variable(numbers((3, 2))), tf.Variable(numbers((2,)))
    m = tf.Variable(tf.zeros((3, 2)))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.nn.softmax(tf.nn.relu(x @ w + b))
            loss = -tf.reduce_mean(tf.math.log(y[:, 0] + 0.1)) + tf.reduce_sum(tf.stop_gradient(w) * w)
        dw, db = tape.gradient(loss, [w, b])
        m.assign(0.9 * m + dw)
        w.assign_sub(0.1 * m)
        b.assign_sub(0.1 * db)
        return loss

    return step, [w, b, m]


def writes() -> Made:
    v = tf.Variable(tf.zeros((4, 3)))
    n = tf.Variable(0)

    def program(x: tf.Tensor) -> list[tf.Tensor]:
        before = v + 0.0
        v.assign(x)
        between = v * 1.0
        v[1:3, ::2].assign(x[:2, :2])
        v[::-1, 1].assign(x[:, 0])
        v.scatter_nd_update([[0]], x[1:2])
        v.scatter_nd_add([[3], [3]], x[:2])
        v.scatter_update(tf.IndexedSlices(x[2:3], [1]))
        for i in tf.range(3):
            v.assign_add(x)
            n.assign_add(i)
            if tf.reduce_sum(v) > 5.0:
                v[i].assign(x[0])
        v.assign(tf.cond(tf.reduce_sum(x) > 0.0, lambda: v * 2.0, lambda: v * 3.0))
        return [before, between, v.read_value(), tf.gather(v, [2, 0])]

    return program, [v, n]


def lists() -> Made:
    def program(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            rows = tf.TensorArray(tf.float32, size=4)
            for i in tf.range(4):
                rows = rows.write(i, tf.tanh(x[i]) * tf.cast(i, tf.float32))
            state = x[0]
            for i in tf.range(3):
                state = tf.sin(state) * x[i]
            y = tf.reduce_sum(rows.stack() ** 2) + tf.reduce_sum(state)
        return [y, tape.gradient(y, x)]

    return program, []


def loops() -> Made:
    def program(x: tf.Tensor) -> list[tf.Tensor]:
        steps = tf.constant(0)
        while tf.reduce_sum(tf.abs(x)) > 0.5:  # how often depends on values
            x = x * 0.5
            steps += 1
        which = tf.switch_case(steps % 3, [lambda: x, lambda: x + 1.0, lambda: x * 2.0])
        return [x, steps, which, tf.map_fn(lambda row: tf.cumsum(row), x)]

    return program, []


def recurrent() -> Made:
    cell = tf.Variable(numbers((3, 3)))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = tf.scan(lambda h, row: tf.tanh(row + tf.linalg.matvec(cell, h)), x, tf.zeros((3,)))
            loss = tf.reduce_sum(outputs**2)
        cell.assign_sub(0.1 * tape.gradient(loss, cell))
        return loss

    return step, [cell]


def random() -> Made:
    generator = tf.random.Generator.from_seed(7)

    def program(x: tf.Tensor) -> list[tf.Tensor]:
        noise = generator.normal((5,))
        return [
            noise,
            generator.uniform((3,), maxval=9, dtype=tf.int32),
            tf.nn.experimental.stateless_dropout(x, 0.5, [1, 2]),
        ]

    return program, [generator.state]


def nested() -> Made:
    def program(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.zeros((3,))
            for i in tf.range(3):
                row = x[i]
                for j in tf.range(i + 1):  # how often depends on the loop around it
                    row = tf.sin(row) + x[j]
                    if tf.reduce_sum(row) > 1.0:
                        row *= 0.5
                total += row
            parts = tf.TensorArray(tf.float32, 2, infer_shape=False).split(x, [1, 3])
            y = tf.reduce_sum(total**2) + tf.reduce_sum(tf.sin(parts.read(1))) * tf.reduce_sum(parts.read(0))
        return [y, tape.gradient(y, x)]

    return program, []


def sums() -> Made:
    """Einstein sums with a diagonal, and a loss that TensorFlow makes by functions of its first version."""

    def program(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.nn.ctc_loss([[1]], x[:, None], [1], [4], blank_index=0)
            y = tf.einsum("ii", x[:3]) ** 2 + tf.reduce_sum(loss)
        return [y, tape.gradient(y, x), tf.raw_ops.Einsum(inputs=[x], equation="ij->jiij")]

    return program, []


def colours() -> Made:
    """Hues hang on which channel is the largest: a compiler may compute it twice, and round it in two ways."""

    def program(x: tf.Tensor) -> tf.Tensor:
        image = tf.image.resize(tf.reshape(tf.math.sigmoid(x), (2, 2, 3)), (7, 5))
        return tf.image.adjust_hue(tf.image.adjust_saturation(image, 1.4), 0.2)

    return program, []


PROGRAMS = {f.__name__: f for f in (training, writes, lists, loops, recurrent, random, nested, sums, colours)}


@pytest.mark.sampled
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, backend: str) -> None:
    agree(PROGRAMS[name], [X], backend)


COMPILED = [
    ("training", "jax"),
    ("writes", "jax"),
    ("lists", "jax"),
    ("recurrent", "tensorflow"),
    ("training", "torch"),
    ("nested", "jax"),
    ("colours", "jax"),
]
SLOW = [(name, backend) for name in PROGRAMS for backend in BACKENDS[1:] if (name, backend) not in COMPILED]


@pytest.mark.parametrize(
    ("name", "backend"), [*COMPILED, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_compiled_program(name: str, backend: str) -> None:
    agree(PROGRAMS[name], [X], backend, compiled=True)


def test_arguments_are_those_of_the_function() -> None:
    @tf.function
    def f(x: Any, flag: bool, *, scale: Any = 2.0, pair: Any = None) -> Any:
        out = x * scale if flag else x
        return {"out": out, "sum": None if pair is None else pair[0] + pair[1]["b"]}

    grafted = tg.graft(f, onto="numpy")
    assert grafted(X, False)["out"].tolist() == X.tolist()
    assert grafted(X, True, scale=X)["out"].tolist() == (X * X).tolist()
    assert grafted(X, flag=True, pair=(X, {"b": 2 * X}))["sum"].tolist() == (3 * X).tolist()
    assert grafted(X, False)["sum"] is None


def test_a_signature_of_its_own() -> None:
    @tf.function(input_signature=[tf.TensorSpec((None, 3)), tf.TensorSpec(())])
    def f(x: Any, y: Any) -> Any:
        return tf.reshape(x, [-1]) * y + tf.cast(tf.shape(x)[0], tf.float32)

    grafted = tg.graft(f, onto="numpy")
    for rows in (2, 5):
        assert grafted(X[:1].repeat(rows, 0), np.float32(2)).shape == (3 * rows,)
    concrete = tg.graft(f.get_concrete_function(), onto="numpy")
    assert concrete(X, y=np.float32(0)).shape == (12,)
    with pytest.raises((TypeError, ValueError)):
        grafted(X[:, :2], np.float32(2))


def test_an_operation_without_a_rule_writes_nothing() -> None:
    v = tf.Variable(1.0)

    @tf.function
    def f(x: Any) -> Any:
        v.assign_add(1.0)
        while tf.reduce_sum(x) < 3.0:
            x += tf.raw_ops.SegmentSumV2(data=x, segment_ids=[0, 1, 2, 3], num_segments=4)
        return x

    with pytest.raises(
        NotImplementedError,
        match=rf"SegmentSumV2 'while.*{__name__.rpartition('.')[2]}.py:\d+",
    ):
        tg.graft(f, onto="numpy")(X)
    assert v.numpy() == 1.0


def test_an_iterator_is_refused() -> None:
    iterator = iter(tf.data.Dataset.range(3))
    with pytest.raises(TypeError, match="neither a variable nor a look-up table"):
        tg.graft(tf.function(lambda x: x + next(iterator)), onto="numpy")(np.asarray([1]))


def test_a_list_that_grows_is_not_compiled() -> None:
    def program(x: tf.Tensor) -> tf.Tensor:
        rows = tf.TensorArray(tf.float32, 0, dynamic_size=True)
        while tf.reduce_sum(x) > 0.5:
            rows, x = rows.write(rows.size(), x), x * 0.5
        return rows.stack()

    grafted = tg.graft(tf.function(program), onto="jax")
    assert grafted(np.ones((2,), np.float32)).shape == (2, 2)
    with pytest.raises(tg.errors.ShapeError, match="unknown number of iterations"):
        tg.jit(grafted)(np.ones((2,), np.float32))


def test_what_a_framework_follows_is_not_written() -> None:
    import jax

    step, _ = training()
    with pytest.raises(tg.errors.TracedValueError, match=r"tg\.jit"):
        jax.jit(tg.graft(tf.function(step), onto="jax"))(native("jax", X))


DECIDED: dict[str, Callable[[Any], Any]] = {
    "branch": lambda i: tf.cond(i > 1, lambda: 1, lambda: 2) + tf.switch_case(i, [lambda: 1, lambda: 5]),
    "case": lambda i: tf.switch_case(i, [lambda: 1, lambda: 5, lambda: 9]),
    "loop": lambda i: tf.while_loop(lambda k, _: k < 9, lambda k, y: (k + 3, y * 2), [i, 1])[1],
    "row": lambda i: tf.reduce_sum(tf.slice(tf.range(10), [i], [2])) + tf.constant([3, 4, 5])[i],
    "host": lambda i: tf.random.experimental.index_shuffle(i, [1, 2], 99),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DECIDED)
def test_what_an_argument_decides_is_not_compiled(name: str, backend: str) -> None:
    """A rule that asks for the value of an argument does not find that of the first call."""
    program = tf.function(DECIDED[name])
    compiled = tg.jit(tg.graft(program, onto=backend))
    if (name, backend) == ("host", "torch"):
        with pytest.raises(tg.TracedValueError, match="computed on the host"):
            compiled(native(backend, np.asarray(0, np.int32)))
        return
    for i in (0, 2, 1):
        number = np.asarray(i, np.int32)
        assert not difference(on_host(backend, compiled(native(backend, number))), program(number).numpy())


@pytest.mark.parametrize("onto", ["torch", "jax"])
def test_derivatives_of_branches(onto: str) -> None:
    """Each branch keeps something else for its derivative."""
    w = tf.Variable(numbers((2, 2)))

    @tf.function
    def f(x: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        y = tf.cond(i > 1, lambda: tf.tanh(x @ w) * x, lambda: tf.reduce_sum(tf.exp(x), 0, keepdims=True) * x)
        return tf.switch_case(i, [lambda: y * y, lambda: tf.sin(y), lambda: tf.concat([y, y**3], 0)[:3]])

    g, x = tg.graft(f, onto=onto), numbers((3, 2))
    for i in range(3):
        with tf.GradientTape() as tape:
            tape.watch(t := tf.constant(x))
            loss = tf.reduce_sum(f(t, tf.constant(i)))
        want = tape.gradient(loss, t).numpy()
        if onto == "jax":
            got = np.asarray(jax.jit(jax.grad(lambda x, i: g(x, i).sum()))(x, np.int32(i)))
        else:
            leaf = torch.tensor(x, requires_grad=True)
            g(leaf, torch.tensor(i, dtype=torch.int32)).sum().backward()
            got = leaf.grad.numpy()
        assert not difference(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["sqrtm", "logm"])
def test_a_matrix_without_enough_eigenvectors(name: str, backend: str) -> None:
    """It is TensorFlow's, and NaN in a trace; the one beside it is what it is."""
    x = np.asarray([[[1, 1], [0, 1]], [[2, 1], [0, 3]]], np.complex128)
    fn = getattr(tf.linalg, name)
    want = fn(x).numpy()
    grafted = tg.graft(tf.function(fn), onto=backend)
    got = on_host(backend, grafted(native(backend, x)))
    assert np.isfinite(want).all()
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    if backend != "numpy":  # which traces nothing
        first, second = on_host(backend, tg.jit(grafted)(native(backend, x)))
        assert np.isnan(first).all()
        np.testing.assert_allclose(second, want[1], rtol=1e-12, atol=1e-12)
