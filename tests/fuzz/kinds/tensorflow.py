"""Functions of TensorFlow with variables, tapes, loops, layers and optimizers, grafted onto other frameworks.

Statements are drawn eagerly, and played as one `tf.function` of the program's data; `s...` are its variables, layers,
optimizers and generators, which the function writes and which are compared behind it. TensorFlow runs it eagerly, also
on data that is a few eps off. On "... grad" what is compared is the gradient, of the target's own kind, by the data.
"""

from __future__ import annotations

import functools
import inspect
import random
import re
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import keras
import numpy as np
import tensorflow as tf
from tests.fuzz.kinds.array_api import Retry, Seen
from tests.fuzz.kinds.jax import Drawing as JaxDrawing
from tests.fuzz.kinds.jax import differs, host, moved, slack, templates
from tests.fuzz.program import REFERENCE, Kind, Outcome, Program

import tensorgraft as tg
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.tensorflow import rules  # noqa: F401  (they register themselves)
from tensorgraft.frontends.tensorflow.composites import CompositeArrays
from tensorgraft.frontends.tensorflow.rule import RULES

tf.get_logger().setLevel("ERROR")
tf.autograph.set_verbosity(0)
SHAPES = [(), (2,), (3,), (3,), (2, 3), (2, 3), (3, 3), (3, 2), (1, 3), (2, 2, 3), (4,), (0,), (2, 0)]
DTYPES = ["float32"] * 8 + ["float64"] * 2 + ["int32"] * 3 + ["int64", "bool", "uint8", "int8", "complex64"]
SELDOM = ["float16", "bfloat16", "int16", "uint16", "uint32", "uint64", "complex128"]
INPUT = re.compile(r"(v\d+) = data\(")
VARIABLE = re.compile(r"(s\d+) = (tf\.Variable|layer|optimizer|tf\.random\.Generator)\b")


def data(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    to = tf.as_dtype(dtype).as_numpy_dtype
    kind = np.dtype(to).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -5, 6, shape).astype(dtype)
    values: Any = rng.integers(-16, 17, shape) / 8 + 0.03125
    if kind == "c":
        values = values + 1j * rng.integers(-16, 17, shape) / 8
    return np.asarray(values).astype(to)


def gradient(f: Callable[..., Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x, unconnected_gradients="zero")


def jacobian(f: Callable[..., Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.jacobian(y, x, unconnected_gradients="zero", experimental_use_pfor=False)


@tf.custom_gradient
def clipped(x: Any) -> Any:
    return tf.clip_by_value(x, -1, 1), lambda g: 2 * g


def gradients(f: Callable[..., Any], *sources: Any) -> Any:
    """Of a persistent tape, whose sources may be variables; twice, the second time of the first."""
    with tf.GradientTape(persistent=True) as outer:
        for x in sources:
            outer.watch(x)
        with tf.GradientTape(persistent=True) as inner:
            for x in sources:
                inner.watch(x)
            y = f()
        first = inner.gradient(y, sources, unconnected_gradients="zero")
        again = inner.gradient(y, sources[0], unconnected_gradients="zero")
    return first, again, outer.gradient(first, sources, unconnected_gradients="zero")


def forwards(f: Callable[..., Any], x: Any) -> Any:
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        y = f(x)
    return accumulator.jvp(y, unconnected_gradients="zero")


def rows_gradient(f: Callable[..., Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.batch_jacobian(y, x, unconnected_gradients="zero", experimental_use_pfor=False)


@tf.recompute_grad
def recomputed(x: Any) -> Any:
    return tf.sin(x) * tf.tanh(x)


def ragged(x: Any) -> Any:
    n = tf.shape(x, tf.int64)[0]
    return tf.RaggedTensor.from_row_lengths(x, [n // 2, 0, n - n // 2])


def auto(f: Callable[..., Any]) -> Callable[..., Any]:
    """Converted by AutoGraph; eagerly it is Python."""
    graphed = tf.function(f)
    return lambda *args: f(*args) if tf.executing_eagerly() else graphed(*args)


@auto
def shrunk(x: Any) -> Any:
    i = tf.constant(0)
    while tf.reduce_any(tf.abs(x) > 1):
        x = x - tf.sign(x)
        i += 1
        if i > 3:
            break
    return x, i


@auto
def positive(x: Any) -> Any:
    total = tf.zeros_like(x[0])
    for row in x:
        if tf.reduce_sum(row) < 0:
            continue
        total += row
    return total


@auto
def every_other(x: Any) -> Any:
    rows = tf.TensorArray(x.dtype, size=0, dynamic_size=True)
    for i in tf.range(tf.shape(x)[0]):
        if i % 2 == 0:
            rows = rows.write(rows.size(), x[i] * tf.cast(i, x.dtype))
    return rows.stack()


@auto
def grown(x: Any) -> Any:
    y = x[:1]
    for i in tf.range(3):
        tf.autograph.experimental.set_loop_options(shape_invariants=[(y, tf.TensorShape([None, *x.shape[1:]]))])
        if i != 1:
            y = tf.concat([y, y[-1:] * 2], 0)
    return y


@auto
def chosen(x: Any) -> Any:
    if tf.reduce_max(x) > 2 and not tf.reduce_min(x) < -2:
        return x * 2
    if tf.size(x) > 3 or tf.reduce_sum(x) > 0:
        return x - 1
    return -x


@auto
def nested(x: Any) -> Any:
    best, count = x[0], 0
    for i in tf.range(tf.shape(x)[0]):
        for j in range(2):
            if tf.reduce_sum(x[i]) > tf.reduce_sum(best):
                best = x[i]
                count += j
        count += i
    return best, count


@auto
def fibonacci(x: Any) -> Any:
    a, b = tf.zeros_like(x), tf.ones_like(x)
    for _ in tf.range(4):
        a, b = b, a + b * x
    return {"a": a, "b": b}


@auto
def halved(s: Any, x: Any) -> Any:
    """With a variable that the loop writes."""
    steps = 0
    while steps < 3 and tf.reduce_max(s) < 9:
        s.assign_add(tf.ones_like(s))
        if tf.reduce_sum(x) > 0:
            s.assign(-s)
        else:
            s.assign_sub(x)
        steps += 1
    return s * 2, steps


def layer(made: Callable[..., Any], said: str, shape: tuple[int, ...], seed: int) -> Any:
    new = eval(said, vars(keras.layers))
    new.build(shape)
    for i, w in enumerate(new.weights):
        values = made("float32", tuple(w.shape), seed + i)
        w.assign(abs(values) + 1 if "variance" in w.path else values / 2)
    new.fits = str(shape)
    return new


def optimizer(said: str, of: Any) -> Any:
    new = eval(said, {**vars(keras.optimizers), "tf": tf})
    variables = of.trainable_variables if isinstance(of, keras.Layer) else [of]
    new.build(variables)
    new.of = variables
    return new


def trained(o: Any, f: Callable[..., Any]) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(f()))
    o.apply_gradients(zip(tape.gradient(loss, o.of), o.of, strict=True))
    return loss


HELPERS = {
    "np": np,
    "tf": tf,
    "gradient": gradient,
    "jacobian": jacobian,
    "clipped": clipped,
    "gradients": gradients,
    "forwards": forwards,
    "rows_gradient": rows_gradient,
    "ragged": ragged,
    "optimizer": optimizer,
    "trained": trained,
    "recomputed": recomputed,
    "shrunk": shrunk,
    "positive": positive,
    "every_other": every_other,
    "grown": grown,
    "chosen": chosen,
    "nested": nested,
    "fibonacci": fibonacci,
    "halved": halved,
}


class Drawing(JaxDrawing):
    def __init__(self, rng: random.Random, names: dict[str, Any]) -> None:
        super().__init__(rng, {})
        self.names = names
        for n, x in names.items():
            if n[0] in "vs" and n[1:].isdigit() and isinstance(x, tf.Tensor | tf.Variable):
                self.arrays[n] = jax.ShapeDtypeStruct(tuple(x.shape), x.dtype.as_numpy_dtype)
        taken = [int(n[1:]) for n in names if n[0] in "vs" and n[1:].isdigit()]
        self.next = max(taken, default=-1) + 1
        self.layers = {n: x for n, x in names.items() if isinstance(x, keras.Layer)}
        self.optimizers = {n: x for n, x in names.items() if isinstance(x, keras.optimizers.Optimizer)}
        self.generators = [n for n, x in names.items() if isinstance(x, tf.random.Generator)]

    def some(self, items: Any) -> Any:
        if not items:
            raise Retry
        return self.rng.choice([*items])

    def index(self, x: Any) -> str:
        """Some of its axes: integers, slices beyond its ends and backwards, new axes, an ellipsis."""
        said = []
        for n in x.shape[: self.rng.randint(0, len(x.shape))]:
            if n and self.maybe(0.3):
                i = self.rng.randrange(-n, n)
                said.append(self.one(f"{i}", f"{i}", f"tf.constant({i})"))
                continue
            a, b = self.one("", self.rng.randint(-n - 1, n + 1)), self.one("", self.rng.randint(-n - 1, n + 1))
            said.append(f"{a}:{b}{self.one('', '', ':2', ':-1', ':-2', ':3')}")
        places = len(said)
        if self.maybe(0.3):
            said.insert(self.rng.randint(0, places), "tf.newaxis")
        if self.maybe(0.3) and places < len(x.shape):
            said.append("...")
        return ", ".join(said) or "..."

    def new(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> str:
        dtype = dtype or self.rng.choice(SELDOM if self.maybe(0.06) else DTYPES)
        return f'data("{dtype}", {self.rng.choice(SHAPES) if shape is None else shape}, {self.rng.randrange(10**5)})'


ANY = lambda x: True  # noqa: E731
FULL = lambda x: x.ndim > 0 and x.size > 0  # noqa: E731
ROWS = lambda x: x.ndim > 1 and x.size > 0  # noqa: E731
SQUARE = lambda x: x.ndim == 2 and x.shape[0] == x.shape[1] and x.size > 0  # noqa: E731

FORMS = [
    (3, templates("f", ANY, *(f"tf.{f}({{n}})" for f in ["sin", "cos", "tanh", "exp", "sqrt", "floor", "round", "sign", "abs", "square", "sigmoid", "negative", "nn.relu", "nn.gelu", "nn.elu", "nn.selu", "nn.softplus", "nn.swish", "nn.relu6", "nn.leaky_relu", "math.erf", "math.lgamma", "math.digamma", "math.expm1", "math.log1p", "math.rsqrt", "math.reciprocal", "math.is_finite", "math.is_nan", "math.ceil", "math.rint", "math.softsign", "math.sinh", "math.asinh", "math.atan", "math.bessel_i0e", "math.reciprocal_no_nan", "math.xlogy", "math.squared_difference"] if not f.endswith(("xlogy", "difference"))), "tf.math.xlogy({n}, {n})", "tf.math.divide_no_nan({n}, {n})", "tf.clip_by_value({n}, -1, 1)", "clipped({n})", "tf.stop_gradient({n}) * 2", "tf.math.pow({n}, 2)", "tf.math.atan2({n}, {n} + 1)", "{n} // {c}", "{n} % {c}", "tf.math.squared_difference({n}, {c})", "tf.math.multiply_no_nan({n}, {c})")),
    (1.5, templates("iu", ANY, "{n} + {c}", "{n} * {c}", "{n} // {c}", "{n} % {c}", "tf.bitwise.bitwise_and({n}, {n})", "tf.bitwise.invert({n})", "tf.bitwise.left_shift({n}, tf.ones_like({n}))", "tf.abs(tf.cast({n}, tf.int32))", "{n} > {c}", "tf.minimum({n}, {c})", "tf.math.floormod({n}, {c})", "tf.square({n})", "tf.truncatediv({n}, {c})", "tf.math.mod({n}, {c})", "{n} == {c}")),
    (1.5, templates("fiubc", ANY, "tf.cast({n}, tf.{t})", "tf.zeros_like({n})", "tf.ones_like({n})", "tf.identity({n})", "tf.shape({n})", "tf.size({n})", "tf.equal({n}, {n})", "tf.where(tf.equal({n}, {n}), {n}, tf.zeros_like({n}))", "tf.fill([2], tf.size({n}))", "tf.rank({n})", "tf.broadcast_to({n}, tf.concat([[2], tf.shape({n})], 0))")),
    (3, templates("fi", FULL, *(f"tf.{f}({{n}}, axis={{a}})" for f in ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "cumsum", "argmax", "argmin", "sort", "argsort", "reverse_sequence", "math.cumprod", "math.count_nonzero"] if f != "reverse_sequence"), "tf.cumsum({n}, axis={a}, exclusive=True)", "tf.cumsum({n}, axis={a}, reverse=True)", "tf.reduce_sum({n}, {a}, keepdims=True)", "tf.reduce_max({n})", "tf.sort({n}, axis=-1, direction='DESCENDING')", "tf.math.top_k({n}, 1).values", "tf.math.top_k({n}, 1).indices", "tf.math.unsorted_segment_sum({n}, tf.zeros(tf.shape({n})[:1], tf.int32), 2)", "tf.math.segment_max({n}, tf.range(tf.shape({n})[0]) // 2)", "tf.searchsorted(tf.sort(tf.reshape({n}, [-1])), tf.reshape({m}, [-1]))", "tf.unique(tf.reshape({n}, [-1]))[1]", "tf.math.cumulative_logsumexp(tf.cast({n}, tf.float32))", "tf.reduce_mean({n}, {a})", "tf.unique_with_counts(tf.reshape({n}, [-1])).count", "tf.math.in_top_k(tf.zeros([1], tf.int32), tf.cast(tf.reshape({n}, [1, -1]), tf.float32), 1)")),
    (1.5, templates("f", FULL, "tf.reduce_logsumexp({n}, {a})", "tf.math.reduce_std({n}, {a})", "tf.math.reduce_variance({n})", "tf.nn.softmax({n}, axis={a})", "tf.nn.log_softmax({n}, axis={a})", "tf.norm({n})", "tf.nn.l2_loss({n})", "tf.linalg.normalize({n})[0]", "tf.nn.l2_normalize({n}, {a})", "tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax({n}), {m})", "tf.nn.sigmoid_cross_entropy_with_logits(tf.sigmoid({n}), {m})", "tf.nn.moments({n}, [0])[1]", "tf.clip_by_norm({n}, 1.0)", "tf.clip_by_global_norm([{n}, {m}], 1.0)[0][0]", "tf.math.is_inf({n} / 0)", "tf.histogram_fixed_width({n}, tf.cast([-2, 2], {n}.dtype), 3)")),
    (4, templates("fiubc", FULL, "tf.transpose({n})", "tf.reshape({n}, [-1])", "tf.expand_dims({n}, {a})", "tf.reverse({n}, [{a}])", "tf.roll({n}, {k}, {a})", "tf.repeat({n}, 2, {a})", "tf.concat([{n}, {m}], {a})", "tf.stack([{n}, {m}], {a})", "{n}[..., 0]", "{n}[::-1]", "{n}[-1]", "{n}[..., tf.newaxis]", "{n}[1:]", "{n}[..., ::2]", "{n}[:-1, ...]", "tf.gather({n}, [0, 0], axis={a})", "tf.gather_nd({n}, [[0], [0]])", "tf.split({n}, 1, {a})[0]", "tf.unstack({n}, axis={a})[0]", "tf.squeeze({n}[tf.newaxis], 0)", "tf.tile({n}, tf.ones_like(tf.shape({n})) * 2)", "tf.boolean_mask({n}, tf.range(tf.shape({n})[0]) > 0)", "tf.tensor_scatter_nd_update({n}, [[0]], {m}[:1])", "tf.where(tf.equal({n}, {m}), {n}, {m})", "tf.slice({n}, tf.zeros_like(tf.shape({n})), tf.ones_like(tf.shape({n})))", "tf.strided_slice({n}, [0], [1], [1])", "tf.dynamic_partition({n}, tf.range(tf.shape({n})[0]) % 2, 2)[1]", "tf.dynamic_stitch([[1], [0]], [{n}[:1], {m}[:1]])", "tf.where(tf.not_equal({n}, tf.zeros_like({n})))", "tf.one_hot(tf.cast(tf.reshape({n}, [-1]), tf.int32), 3) if not {n}.dtype.is_complex and {n}.dtype != tf.bool else {n}", "tf.parallel_stack([{n}, {m}]) if False else {n}", "tf.meshgrid(tf.reshape({n}, [-1]), tf.reshape({m}, [-1]))[0]", "tf.scatter_nd([[1], [0]], tf.stack([{n}[0], {m}[0]]), tf.concat([[2], tf.shape({n})[1:]], 0))")),
    (1, templates("fi", FULL, "tf.pad({n}, [[1, 0]] * {n}.shape.rank)", "tf.tensor_scatter_nd_add({n}, [[0], [0]], tf.concat([{m}[:1], {m}[:1]], 0))", "tf.tensor_scatter_nd_max({n}, [[0]], {m}[:1])", "tf.pad({n}, [[0, 1]] * {n}.shape.rank, constant_values=2)", "tf.linalg.diag({n})", "tf.math.reduce_any({n} > {c})", "tf.math.bincount(tf.abs(tf.cast(tf.reshape({n}, [-1]), tf.int32)), minlength=3)", "tf.pad({n}, [[0, 1]] * {n}.shape.rank, 'SYMMETRIC')", "tf.reduce_sum(tf.RaggedTensor.from_row_lengths({n}, [1, tf.shape({n}, tf.int64)[0] - 1]), axis=1)", "tf.RaggedTensor.from_row_lengths({n}, [0, tf.shape({n}, tf.int64)[0]]).to_tensor()", "tf.sparse.to_dense(tf.sparse.from_dense({n}))", "tf.convert_to_tensor(tf.IndexedSlices({n}, tf.range(tf.shape({n})[0]), tf.shape({n})))")),
    (1.5, templates("fc", ROWS, "tf.matmul({n}, {m}, transpose_b=True)", "tf.einsum('...i,...i->...', {n}, {m})", "tf.tensordot({n}, {m}, [[0], [0]])", "tf.linalg.matrix_transpose({n})", "tf.linalg.band_part({n}, 0, 1)", "tf.linalg.trace({n})", "tf.linalg.diag_part({n})", "tf.linalg.adjoint({n})", "tf.linalg.matvec({n}, {m}[..., 0, :])", "tf.math.conj({n})", "tf.signal.fft(tf.cast({n}, tf.complex64))")),
    (0.7, templates("f", SQUARE, "tf.linalg.det({n})", "tf.linalg.inv({n} + 5 * tf.eye(tf.shape({n})[0], dtype={n}.dtype))", "tf.linalg.solve({n} + 5 * tf.eye(tf.shape({n})[0], dtype={n}.dtype), {m})", "tf.linalg.cholesky({n} @ tf.transpose({n}) + tf.eye(tf.shape({n})[0], dtype={n}.dtype))", "tf.linalg.svd({n}, compute_uv=False)", "tf.linalg.eigvalsh({n} + tf.transpose({n}))", "tf.linalg.expm({n} / 4)", "tf.linalg.triangular_solve({n} + 4 * tf.eye(tf.shape({n})[0], dtype={n}.dtype), {m})", "tf.nn.conv2d({n}[tf.newaxis, :, :, tf.newaxis], {m}[:2, :2, tf.newaxis, tf.newaxis], 1, 'SAME')", "tf.nn.max_pool2d({n}[tf.newaxis, :, :, tf.newaxis], 2, 1, 'VALID')", "tf.nn.avg_pool2d({n}[tf.newaxis, :, :, tf.newaxis], 2, 2, 'SAME')")),
    (3, templates("fi", FULL, "tf.cond(tf.reduce_sum({n}) > 0, lambda: {n} + {c}, lambda: {n} * {k})", "tf.while_loop(lambda i, q: i < 3, lambda i, q: (i + 1, q * {k} + 1), (0, {n}))[1]", "tf.while_loop(lambda i, q: tf.reduce_sum(tf.abs(q)) < 9, lambda i, q: (i + 1, tf.abs(q) + 1), (0, {n}))", "tf.map_fn(lambda r: r * {k}, {n})", "tf.scan(lambda c, r: c + r, {n})", "tf.foldl(lambda c, r: c * {k} + r, {n})", "tf.foldr(lambda c, r: c - r, {n})", "tf.switch_case({k} - 1, [lambda: {n} + 1, lambda: -{n}])", "tf.vectorized_map(lambda r: r * {k} + 1, {n})", "tf.TensorArray({n}.dtype, 3).write(0, {n}).write(2, {m}).write(1, -{n}).stack()", "tf.TensorArray({n}.dtype, 0, dynamic_size=True).unstack({n}).gather([0])", "tf.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t.write(i, {n} * tf.cast(i, {n}.dtype))), (0, tf.TensorArray({n}.dtype, 3)))[1].stack()", "tf.case([(tf.reduce_max({n}) > 2, lambda: {n}), (tf.reduce_min({n}) < 0, lambda: -{n})], default=lambda: {n} * 0)", "tf.while_loop(lambda i, q: i < tf.shape({n})[0], lambda i, q: (i + 1, q + {n}[i]), (0, {n}[0] * 0))[1]", "tf.TensorArray({n}.dtype, 2, infer_shape=False).write(0, {n}[:1]).write(1, {n}).concat()", "tf.function(lambda q: q * {k})({n})", "tf.nest.map_structure(lambda q: q + {c}, {{'a': [{n}, ({m},)]}})['a'][1][0]")),
    (3, templates("f", FULL, "gradient(lambda q: tf.reduce_sum(tf.sin(q) * q), {n})", "gradient(lambda q: tf.reduce_max(q) + tf.reduce_sum(tf.sort(q, axis=-1)[..., 0]), {n})", "gradient(lambda q: tf.reduce_sum(tf.gather(q, [0, 0]) ** 2), {n})", "gradient(lambda q: tf.cond(tf.reduce_sum(q) > 0, lambda: tf.sin(q), lambda: tf.cos(q)), {n})", "gradient(lambda q: tf.while_loop(lambda i, p: i < 3, lambda i, p: (i + 1, tf.sin(p)), (0, q))[1], {n})", "gradient(lambda q: clipped(q) * q, {n})", "gradient(lambda q: gradient(lambda p: tf.reduce_sum(p**3), q) ** 2, {n})", "gradient(lambda q: tf.scan(lambda c, r: tf.tanh(c + r), q), {n})", "gradient(lambda q: tf.cumsum(q * q), {n})", "gradient(lambda q: tf.math.cumprod(q), {n})", "gradient(lambda q: tf.tensor_scatter_nd_update(q, [[0]], q[1:2] if q.shape[0] > 1 else q[:1]) * q, {n})", "gradient(lambda q: tf.reduce_prod(q), {n})", "gradient(lambda q: tf.norm(q), {n})", "gradient(lambda q: tf.map_fn(lambda r: r * r, q), {n})", "gradient(lambda q: tf.TensorArray(q.dtype, 2).write(0, q).write(1, q * q).stack(), {n})", "gradient(lambda q: tf.where(q > 0, tf.sqrt(tf.abs(q)), q), {n})", "gradient(lambda q: q[..., ::-1] * q, {n})", "gradient(lambda q: tf.math.reduce_std(q), {n} + 0.1)", "gradient(lambda q: tf.nn.log_softmax(q)[..., 0], {n})", "jacobian(lambda q: tf.sin(q) * q, {n})", "gradient(lambda q: tf.concat([q, tf.stop_gradient(q)], 0) * 2, {n})", "gradient(lambda q: tf.transpose(q) * 3, {n})")),
    (0.5, templates("fi", ANY, "tf.random.stateless_uniform([2], seed=[{s}, {k}])", "tf.random.stateless_normal([2], seed=[{s}, {k}])", "tf.random.stateless_uniform([3], seed=[{s}, 0], maxval=9, dtype=tf.int32)", "tf.range({k}, 7, 2)", "tf.linspace(0.0, 1.0, 4)", "tf.eye(2, 3)", "tf.sequence_mask([1, {k}], 3)", "tf.constant([{k}, 2])")),
    (0.5, templates("c", ANY, "tf.abs({n})", "tf.math.real({n})", "tf.math.imag({n})", "tf.math.conj({n})", "tf.math.angle({n})", "tf.exp({n})", "{n} * {n}", "tf.reduce_sum({n})", "tf.complex(tf.math.real({n}), tf.math.imag({n}))", "tf.sqrt({n})")),
    (2, templates("fi", FULL, "ragged({n}) + {c}", "tf.reduce_mean(tf.cast(ragged({n}), tf.float32), 1)", "ragged({n})[0]", "ragged({n})[::2].to_tensor()", "ragged({n})[:, :1].to_tensor({c})", "tf.concat([ragged({n}), ragged({m})], 1).to_tensor()", "tf.concat([ragged({n}), ragged({m})], 0).row_lengths()", "tf.gather(ragged({n}), [2, 0]).to_tensor()", "ragged({n}).bounding_shape()", "ragged({n}).values", "ragged({n}).to_sparse().values if {n}.shape.rank == 1 else {n}", "tf.reduce_max(ragged({n}), 0)", "tf.ragged.map_flat_values(tf.square, ragged({n})).row_splits", "ragged({n}).to_tensor(shape=[3, 2] + {n}.shape[1:])", "tf.RaggedTensor.from_tensor(tf.stack([{n}, {m}]), lengths=[1, 0]).to_tensor()", "tf.ragged.range([1, {k}, 2]).to_tensor()", "ragged({n}).value_rowids()", "tf.expand_dims(ragged({n}), 0).to_tensor()", "tf.reduce_sum(tf.RaggedTensor.from_uniform_row_length(tf.concat([{n}, {m}], 0), 2), 1)", "ragged(ragged({n})).merge_dims(0, 1).to_tensor()", "tf.where(ragged({n}) > 0, ragged({n}), ragged({m})).to_tensor() if {n}.shape.rank == 1 else {n}", "tf.ragged.stack([{n}, {n}[:1]]).to_tensor()", "tf.map_fn(tf.reduce_sum, ragged({n}))", "tf.ragged.boolean_mask({n}, {n} > 0).flat_values", "tf.reverse(ragged({n}), [1]).to_tensor()", "tf.tile(ragged({n}), [1, 2] + [1] * ({n}.shape.rank - 1)).to_tensor()", "tf.ragged.cross([ragged({n}), ragged({m})]).row_splits if {n}.shape.rank == 1 and {n}.dtype.is_integer else {n}")),
    (2, templates("fi", FULL, "tf.sparse.from_dense({n}).indices", "tf.sparse.reduce_sum(tf.sparse.from_dense({n}), {a})", "tf.sparse.to_dense(tf.sparse.transpose(tf.sparse.from_dense({n})))", "tf.sparse.to_dense(tf.sparse.add(tf.sparse.from_dense({n}), tf.sparse.from_dense({m})))", "tf.sparse.to_dense(tf.sparse.concat({a}, [tf.sparse.from_dense({n}), tf.sparse.from_dense({m})]))", "tf.sparse.to_dense(tf.sparse.slice(tf.sparse.from_dense({n}), [0] * {n}.shape.rank, [1] * {n}.shape.rank))", "tf.sparse.to_dense(tf.sparse.reshape(tf.sparse.from_dense({n}), [-1]))", "tf.sparse.to_dense(tf.sparse.map_values(tf.square, tf.sparse.from_dense({n})))", "tf.sparse.to_dense(tf.sparse.maximum(tf.sparse.from_dense({n}), tf.sparse.from_dense({m})))", "tf.sparse.to_dense(tf.sparse.retain(tf.sparse.from_dense({n}), tf.sparse.from_dense({n}).values > 0))", "tf.sparse.to_dense(tf.sparse.from_dense({n}) * {m})", "tf.sparse.sparse_dense_matmul(tf.sparse.from_dense({n}), {m}, adjoint_b=True) if {n}.shape.rank == 2 else {n}", "tf.sparse.to_dense(tf.sparse.softmax(tf.sparse.from_dense({n}))) if {n}.shape.rank > 1 and {n}.dtype.is_floating else {n}", "tf.sparse.fill_empty_rows(tf.sparse.from_dense({n}), {c})[1] if {n}.shape.rank == 2 else {n}", "tf.sparse.segment_sum({n}, [0, 0], [0, 1])", "tf.sparse.to_dense(tf.sparse.expand_dims(tf.sparse.from_dense({n}), {a}))", "tf.sparse.split(sp_input=tf.sparse.from_dense({n}), num_split={n}.shape[{a}], axis={a})[0].values", "tf.sparse.to_dense(tf.SparseTensor([[0], [3]], {n}[:1] if {n}.shape.rank == 1 and False else tf.reshape(tf.stack([tf.reduce_sum({n}), tf.reduce_max({n})]), [2]), [5]))", "tf.nn.embedding_lookup({n}, [0, 0])", "tf.nn.embedding_lookup_sparse({n}, tf.SparseTensor([[0, 0], [1, 0], [1, 1]], tf.zeros([3], tf.int64), [2, 2]), None, combiner='mean') if {n}.shape.rank > 1 and {n}.dtype.is_floating else {n}", "tf.sparse.bincount(tf.abs(tf.cast({n}, tf.int32)), minlength=2).values", "tf.sparse.eye(2, {k}).indices", "tf.sets.size(tf.sets.intersection({n}, {m})) if {n}.shape.rank > 1 and {n}.dtype.is_integer else {n}", "gradient(lambda q: tf.sparse.reduce_sum(tf.sparse.from_dense(q) * q), tf.cast({n}, tf.float32))", "gradient(lambda q: ragged(q * q).to_tensor(), tf.cast({n}, tf.float32))", "gradient(lambda q: tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(q), q, adjoint_b=True), tf.cast({n}, tf.float32)) if {n}.shape.rank == 2 else {n}")),
    (3, templates("fi", FULL, "shrunk({n})", "positive({n})", "every_other({n})", "grown({n})", "chosen({n})", "nested({n})", "fibonacci({n})", "shrunk({n})[0]", "nested({n})[0]", "fibonacci({n})['b']", "gradient(positive, tf.cast({n}, tf.float32))", "gradient(lambda q: shrunk(q)[0] * q, tf.cast({n}, tf.float32))", "gradient(grown, tf.cast({n}, tf.float32))", "gradient(chosen, tf.cast({n}, tf.float32))", "gradient(lambda q: nested(q)[0] * 3, tf.cast({n}, tf.float32))", "gradient(lambda q: fibonacci(q)['b'], tf.cast({n}, tf.float32))", "gradient(every_other, tf.cast({n}, tf.float32))")),
    (2, templates("f", FULL, "gradients(lambda: tf.reduce_sum({n} * {n} * {m}), {n}, {m})", "gradients(lambda: tf.sin({n}) * {m}, {n})[2][0]", "gradients(lambda: tf.nn.softmax({n}) * {m}, {m}, {n})", "gradients(lambda: recomputed({n}) + {m}, {n})[0][0]", "forwards(lambda q: tf.sin(q) * q, {n})", "forwards(lambda q: gradient(lambda p: tf.reduce_sum(tf.tanh(p)), q), {n})", "rows_gradient(lambda q: q * tf.reduce_sum(q, -1, keepdims=True), {n}) if {n}.shape.rank > 1 else {n}", "gradient(recomputed, {n})", "gradient(lambda q: gradient(recomputed, q), {n})", "gradient(lambda q: q[::-1][1:] * 2, {n})", "gradient(lambda q: tf.nn.softplus(q) / (1 + q * q), {n})", "gradient(lambda q: tf.linalg.matmul(q[tf.newaxis, ..., tf.newaxis], q[tf.newaxis, ..., tf.newaxis], transpose_a=True), {n})", "gradient(lambda q: tf.math.unsorted_segment_max(q, tf.zeros(tf.shape(q)[:1], tf.int32), 1), {n})", "gradient(lambda q: tf.reduce_mean(tf.math.top_k(q, 1).values), {n})", "gradient(lambda q: tf.pad(q, [[1, 0]] * q.shape.rank, 'SYMMETRIC') ** 2, {n})", "gradient(lambda q: tf.reduce_logsumexp(q) + tf.nn.l2_loss(q), {n})", "gradient(lambda q: tf.while_loop(lambda i, p: i < 2, lambda i, p: (i + 1, gradient(lambda r: r * r * p, p)), (0, q))[1], {n})", "gradient(lambda q: tf.einsum('...i,...i->...', q, tf.stop_gradient(q)), {n})", "gradient(lambda q: tf.math.cumulative_logsumexp(q), {n})", "gradient(lambda q: tf.minimum(q, {m}) * tf.maximum(q, 0), {n})", "gradient(lambda q: tf.repeat(q, 2, 0) * tf.tile(q, [2] + [1] * (q.shape.rank - 1)), {n})", "gradient(lambda q: tf.cast(tf.cast(q, tf.float16), q.dtype) * q, {n})", "gradient(lambda q: tf.clip_by_norm(q, 1.0), {n})", "gradient(lambda q: tf.foldl(lambda c, r: tf.sin(c) * r, q), {n})", "gradient(lambda q: tf.nn.batch_normalization(q, {m}, 1.0, 0.5, q, 1e-3), {n})", "gradient(lambda q: tf.boolean_mask(q, q > 0) * 2, {n})", "gradient(lambda q: tf.dynamic_partition(q, tf.range(tf.shape(q)[0]) % 2, 2)[0] * q[:1], {n})")),
    (0.7, templates("fi", FULL, "tf.strings.to_number(tf.strings.as_string(tf.cast({n}, tf.int32)))", "tf.strings.length(tf.strings.as_string({n}))", "tf.strings.to_hash_bucket_fast(tf.strings.as_string(tf.cast({n}, tf.int32)), 7)", "tf.strings.length(tf.strings.reduce_join(tf.strings.as_string(tf.cast({n}, tf.int32)), separator=','))", "tf.strings.to_number(tf.strings.join([tf.strings.as_string(tf.cast({n}, tf.int32)), '5']), tf.int64)", "tf.strings.length(tf.strings.regex_replace(tf.strings.as_string({n}), '0', ''))", "tf.strings.unicode_decode('aé{k}', 'UTF-8')", "tf.strings.split(tf.strings.join([tf.strings.as_string(tf.cast({n}, tf.int32)), 'a b'], ' ')).row_lengths() if {n}.shape.rank == 1 else {n}", "tf.cast(tf.equal(tf.strings.as_string({n}), tf.strings.as_string({m})), {n}.dtype)", "tf.strings.length(tf.strings.substr(tf.strings.as_string({n}), 0, 2))", "tf.strings.bytes_split('ab{k}') == 'a'", "tf.unique(tf.strings.as_string(tf.reshape({n}, [-1]))).idx", "tf.strings.unsorted_segment_join(tf.strings.as_string(tf.reshape({n}, [-1])), tf.zeros([tf.size({n})], tf.int32), 1) == ''", "tf.where(tf.strings.as_string({n}) == '1', 1, 0)", "tf.strings.regex_full_match(tf.strings.as_string({n}), '-.*')")),
    (1, templates("fi", ANY, "tf.random.stateless_truncated_normal([2], seed=[{s}, {k}])", "tf.random.stateless_categorical([[0.1, 0.5, 0.4]], 3, seed=[{s}, {k}])", "tf.random.experimental.stateless_shuffle(tf.reshape({n}, [-1]), seed=[{s}, {k}])", "tf.random.stateless_binomial([3], [{s}, {k}], 5.0, 0.5)", "tf.random.experimental.stateless_split([{s}, {k}], 2)", "tf.random.experimental.stateless_fold_in([{s}, 1], {k})", "tf.random.stateless_uniform([2], [{s}, {k}], None, None, tf.int64)", "tf.random.stateless_gamma([2], [{s}, {k}], 2.0)", "tf.random.stateless_uniform(tf.shape({n}), [{s}, {k}], dtype=tf.float64)", "tf.image.stateless_random_flip_left_right(tf.ones([2, 2, 1]), [{s}, {k}])", "tf.random.stateless_poisson([3], [{s}, {k}], 2.0)")),
    (1.5, templates("f", ROWS, "tf.nn.conv1d({n}[tf.newaxis] if {n}.shape.rank == 2 else {n}, tf.ones([2, {n}.shape[-1], 2], {n}.dtype), {k}, 'SAME')", "tf.image.resize({n}[..., tf.newaxis], [3, 2])", "tf.image.resize({n}[..., tf.newaxis], [2, 4], method='nearest')", "tf.nn.depthwise_conv2d({n}[tf.newaxis, ..., tf.newaxis], tf.ones([1, 2, 1, 2], {n}.dtype), [1, 1, 1, 1], 'SAME') if {n}.shape.rank == 2 else {n}", "tf.nn.batch_normalization({n}, {m}, 1.0, None, None, 1e-3)", "tf.nn.ctc_greedy_decoder({n}[:, tf.newaxis], [{n}.shape[0]])[1] if {n}.shape.rank == 2 else {n}", "tf.nn.max_pool1d({n}[tf.newaxis], 2, 1, 'SAME') if {n}.shape.rank == 2 else {n}", "tf.nn.sparse_softmax_cross_entropy_with_logits(tf.zeros({n}.shape[:-1], tf.int32), {n})", "tf.nn.top_k({n}, 1)", "tf.nn.space_to_depth(tf.ones([1, 2, 2, 1]), 2)", "tf.signal.frame({n}, 2, 1)", "tf.signal.rfft(tf.cast({n}, tf.float32))", "tf.signal.dct(tf.cast({n}, tf.float32))", "tf.linalg.cross({n}, {m}) if {n}.shape[-1] == 3 else {n}", "tf.linalg.tensor_diag({n})", "tf.linalg.set_diag({n}, tf.zeros({n}.shape[:-2] + [min({n}.shape[-2:])], {n}.dtype))", "tf.linalg.lstsq({n} + 1, {m}, l2_regularizer=1.0)", "tf.linalg.qr({n}, full_matrices=False).r ** 2", "tf.linalg.pinv({n})", "tf.linalg.global_norm([{n}, {m}])", "tf.nn.moments({n}, -1)", "tf.nn.weighted_moments({n}, [0], tf.abs({m}) + 1)", "tf.nn.normalize_moments(1.0, {n}[0], tf.abs({n}[0]), None)", "tf.keras.losses.mse({n}, {m})", "tf.keras.losses.huber({n}, {m})", "tf.keras.losses.categorical_crossentropy(tf.nn.softmax({m}), tf.nn.softmax({n}))", "tf.keras.losses.CosineSimilarity()({n}, {m})", "tf.keras.activations.hard_sigmoid({n})", "tf.keras.ops.logsumexp({n}, -1)", "tf.image.adjust_brightness({n}, 0.1)", "tf.image.psnr({n}[..., tf.newaxis], {m}[..., tf.newaxis], 1.0)", "tf.experimental.numpy.var({n}, axis=-1)", "tf.nn.lrn({n}[tf.newaxis, tf.newaxis]) if {n}.shape.rank == 2 else {n}", "tf.nn.dropout({n}, 0.0)", "tf.nn.bias_add({n}, {n}[0] if {n}.shape.rank == 2 else {n}[0, 0])", "tf.nn.log_poisson_loss({n}, {m})", "tf.nn.weighted_cross_entropy_with_logits(tf.sigmoid({n}), {m}, 2.0)", "tf.quantization.fake_quant_with_min_max_args({n}, -1, 1)", "tf.linalg.logdet({n} @ tf.linalg.adjoint({n}) + 3 * tf.eye({n}.shape[-2], dtype={n}.dtype))", "tf.linalg.tridiagonal_matmul(tf.ones([3, {n}.shape[-2]], {n}.dtype), {n}) if {n}.shape.rank == 2 else {n}")),
]  # fmt: skip


def raw_operations(*asked: str) -> list[str]:
    """Those that have a rule here, and these arguments without defaults."""
    found = []
    for name in sorted(vars(tf.raw_ops)):
        if name in RULES and not name.startswith(("String", "PrintV2", "Unicode", "AsString", "DeepCopy", "Copy")):
            given = inspect.signature(getattr(tf.raw_ops, name)).parameters.values()
            if tuple(p.name for p in given if p.default is p.empty) == asked:
                found.append(name)
    return found


FORMS.append((3, templates("fiubc", ANY, *(f"tf.raw_ops.{f}({a}={{n}})" for a in ("x", "input", "features", "a") for f in raw_operations(a)))))  # fmt: skip
FORMS.append((2, templates("fiubc", ANY, *(f"tf.raw_ops.{f}({a}={{n}}, {b}={{m}})" for a, b in (("x", "y"), ("y", "dy"), ("gradients", "features"), ("a", "x"), ("a", "b"), ("matrix", "rhs")) for f in raw_operations(a, b)))))  # fmt: skip
FORMS.append((1.5, templates("fiubc", FULL, *(f"tf.raw_ops.{f}({a}={{n}}, {b}={{a}})" for a, b in (("input", "axis"), ("x", "axis")) for f in raw_operations(a, b)))))  # fmt: skip
LAYERS = [
    "Dense(2)", "Dense(3, activation='tanh', use_bias=False)", "BatchNormalization()", "LayerNormalization()", "LayerNormalization(axis=[-1], center=False)", "UnitNormalization()", "Flatten()", "Reshape((-1,))", "Activation('gelu')", "PReLU()", "LeakyReLU()", "Softmax()", "RepeatVector(2)", "LSTM(2)", "LSTM(2, return_sequences=True, go_backwards=True)", "GRU(2)", "GRU(2, reset_after=False)", "SimpleRNN(2, return_sequences=True)", "Bidirectional(GRU(2))", "Conv1D(2, 2, padding='causal')", "Conv1D(2, 2, strides=2, padding='same')", "SeparableConv1D(2, 2, padding='same')", "MaxPooling1D(2, padding='same')", "AveragePooling1D(1)", "GlobalAveragePooling1D()", "GlobalMaxPooling1D()", "ZeroPadding1D(1)", "Cropping1D((1, 0))", "UpSampling1D(2)", "Conv1DTranspose(2, 2)", "EinsumDense('...x,xy->...y', 2, bias_axes='y')", "GroupNormalization(1)", "TimeDistributed(Dense(2))", "Normalization(mean=0.5, variance=2.0)", "Rescaling(0.5, 1)", "Dropout(0.0)", "ELU()", "Permute((1,))", "Masking(0.03125)",
]  # fmt: skip
OPTIMIZERS = [
    "SGD(0.1)", "SGD(0.1, momentum=0.9, nesterov=True)", "Adam(0.1)", "Adam(0.1, amsgrad=True, clipnorm=1.0)", "RMSprop(0.1, centered=True, momentum=0.5)", "Adagrad(0.1)", "Adadelta(1.0)", "Adamax(0.1)", "Nadam(0.1)", "Ftrl(0.1, l1_regularization_strength=0.01)", "AdamW(0.1, weight_decay=0.1)", "Lion(0.1)", "Adafactor(0.1)", "SGD(schedules.ExponentialDecay(0.1, 2, 0.5))", "Adam(schedules.CosineDecay(0.1, 5), clipvalue=0.5)", "SGD(0.1, global_clipnorm=0.5)", "Adam(0.1, use_ema=True, ema_overwrite_frequency=2)", "SGD(0.1, gradient_accumulation_steps=2)", "LossScaleOptimizer(SGD(0.1), initial_scale=4.0)",
]  # fmt: skip
WRITES = templates(
    "fi", FULL, "{n}.assign_add({n} * {k})", "{n}.assign_sub(tf.ones_like({n}))", "{n}.assign({m} + {c})", "{n}[0].assign({m}[0])", "{n}[1:].assign({m}[1:] * {k})", "{n}[..., 0].assign_add({m}[..., 0]) if hasattr({n}[..., 0], 'assign_add') else {n}.assign({m})", "{n}.scatter_add(tf.IndexedSlices({m}[:1], [0]))", "{n}.scatter_update(tf.IndexedSlices({m}[:1], [0]))", "{n}.scatter_nd_add([[0], [0]], tf.concat([{m}[:1], {m}[:1]], 0))", "{n}.scatter_nd_update([[0]], {m}[:1])", "{n}.scatter_max(tf.IndexedSlices({m}[:1], [0]))", "tf.cond(tf.reduce_sum({n}) > 0, lambda: {n}.assign_add(tf.ones_like({n})), lambda: {n}.assign({m}))", "tf.while_loop(lambda i: i < 3, lambda i: [tf.group({n}.assign_add(tf.ones_like({n}))) and i + 1 or i + 1], [0])", "{n}[::-1].assign({m})", "{n}.scatter_mul(tf.IndexedSlices({m}[:1], [0]))", "{n}.batch_scatter_update(tf.IndexedSlices({m}[..., :1], tf.zeros({m}.shape[:-1] + [1], tf.int32))) if {n}.shape.rank > 1 else {n}.assign({m})", "{n}.scatter_nd_sub([[0]], {m}[:1])", "halved({n}, {m})", "gradients(lambda: {n} * {n} * {m} if {n}.dtype.is_floating else {n}, {n})", "{n}.scatter_min(tf.IndexedSlices({m}[:1], [0]))", "{n}.scatter_div(tf.IndexedSlices({m}[:1], [0])) if {n}.dtype.is_floating else None", "{n}.assign_add({m}, read_value=False)", "tf.raw_ops.ResourceScatterNdMax(ref={n}.handle, indices=[[0]], updates={m}[:1])", "[{n}.assign_add(r * tf.ones_like({n})) for r in ({k}, 2)][1] * {m}", "tf.map_fn(lambda r: ({n}.assign_add({n}), r * 2)[1], {m})", "tf.cond({n}[..., 0] > {c}, lambda: {n}.assign({m}), lambda: {n}.assign_sub({n} // 2)) if {n}.shape.rank == 1 else {n}.assign({m})",
)  # fmt: skip


class TensorFlow(Kind):
    name = "tensorflow"
    shares: ClassVar[dict[str, int]] = {
        "numpy": 1,
        "torch": 1,
        "jax": 8,
        "numpy jit": 3,
        "torch jit": 6,
        "jax jit": 20,
        "torch grad": 4,
        "jax grad": 20,
    }
    length = (4, 10)
    raising = 0.0
    shakes = 3

    def names(self, subject: str) -> dict[str, Any]:
        return {
            **HELPERS,
            "data": lambda *args: tf.constant(data(*args)),
            "layer": functools.partial(layer, data),
        }

    def reference(self, subject: str) -> str:
        return f"{REFERENCE} grad" if subject.endswith("grad") else REFERENCE

    def statement(self, rng: random.Random, names: dict[str, Any]) -> str:
        d = Drawing(rng, names)
        if len(d.arrays) < 2:
            return f"v{d.next} = {d.new()}"
        while True:
            try:
                return self.drawn(d)
            except Retry:
                continue

    def drawn(self, d: Drawing) -> str:
        variables = {n: x for n, x in d.arrays.items() if n[0] == "s"}
        what = d.rng.choices(
            ["new", "variable", "write", "binary", "form", "index", "layer", "call", "optimizer", "train", "generator"],
            [2, 1.5, 3, 4, 20, 3, 0.8, 1.5, 0.6, 1.5, 0.7],
        )[0]
        if what == "new":
            return f"v{d.next} = {d.new()}"
        if what == "variable":
            return f"s{d.next} = tf.Variable({d.new(d.one('float32', 'float32', 'int32', 'float64'))})"
        if what == "write":
            d.some(variables)
            return self.write(d, variables)
        if what == "index":
            n = d.find()
            return f"v{d.next} = {n}[{d.index(d.arrays[n])}]"
        if what == "layer":
            n = d.find("f", where=lambda x: x.dtype == np.float32 and x.ndim in (2, 3) and x.size > 0)
            return f"s{d.next} = layer({d.some(LAYERS)!r}, {d.arrays[n].shape}, {d.rng.randrange(1000)})"
        if what in ("call", "train"):
            o = d.some(d.optimizers) if what == "train" else ""
            of = d.optimizers[o].of if o else []
            if o and isinstance(of[0], tf.Variable):
                s = next(n for n, x in d.names.items() if x is of[0])
                x = d.find("f", where=lambda y: y.dtype == variables[s].dtype and fits(y, variables[s]))
                return f"v{d.next} = trained({o}, lambda: {d.one(f'{s} * {x}', f'tf.sin({s}) - {x}', f'tf.gather({s}, [0, 0])')})"
            layers = {
                n: x
                for n, x in d.layers.items()
                if not o or (x.trainable_variables and x.trainable_variables[0] is of[0])
            }
            m = d.some(layers)
            x = d.find("f", where=lambda y: y.dtype == np.float32 and str(y.shape) == layers[m].fits)
            called = f"{m}({x}{d.one('', ', training=True', ', training=False') if 'Dropout' in type(layers[m]).__name__ or 'BatchNorm' in type(layers[m]).__name__ else ''})"
            if o:
                return f"v{d.next} = trained({o}, lambda: {called})"
            if layers[m].trainable_variables and d.maybe(0.3):
                return f"v{d.next} = gradients(lambda: {called}, {x}, *{m}.trainable_variables)[0]"
            return f"v{d.next} = {d.one(called, called, f'gradient({m}, {x})')}"
        if what == "optimizer":
            floats = [n for n, x in variables.items() if x.dtype.kind == "f" and x.size]
            return f"s{d.next} = optimizer({d.some(OPTIMIZERS)!r}, {d.some([*floats, *(n for n, x in d.layers.items() if x.trainable_variables)])})"
        if what == "generator":
            if d.maybe(0.3):
                return f"s{d.next} = tf.random.Generator.from_seed({d.rng.randrange(100)}, alg={d.one('philox', 'threefry', 'philox')!r})"
            form = d.one("normal([2])", "uniform([3])", "uniform([2], 0, 9, tf.int32)", "uniform_full_int([2])", "truncated_normal([2], dtype=tf.float64)", "binomial([2], 5.0, 0.5)", "make_seeds(2)", "split(2)[1].normal([2])", "skip(2)", "key")  # fmt: skip
            return f"v{d.next} = {d.some(d.generators)}.{form}"
        if what == "binary":
            n = d.find("fiuc")
            x = d.arrays[n]
            m = d.find(where=lambda y: y.dtype == x.dtype and fits(x, y)) if d.maybe(0.7) else "2"
            sign = d.one(
                *(["+", "-", "*", "=="] if x.dtype.kind == "c" else ["+", "-", "*", "/", "//", "%", "<", ">=", "!="])
            )
            return f"v{d.next} = {n} {sign} {m}"
        f = d.rng.choices([f for _, f in FORMS], [w for w, _ in FORMS])[0]
        return f"v{d.next} = {f(d)}"

    def write(self, d: Drawing, variables: dict[str, Any]) -> str:
        if d.maybe(0.3):
            n = d.some(variables)
            at = f"{n}[{d.index(variables[n])}]"
            return f"{at}.{d.one('assign', 'assign_add', 'assign_sub')}(tf.ones_like({at}) * {d.num(variables[n].dtype.kind)})"
        written = d.arrays
        d.arrays = variables
        text = WRITES(d)
        d.arrays = written
        if d.maybe(0.3) and ".assign" in text and "tf." not in text:
            return f"v{d.next} = {text} + 0"
        return text

    def function(
        self, program: Program, rng: np.random.Generator | None = None
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        """(the program as a function of its data, the data, its variables); shaken by the generator."""

        def made(*args: Any) -> np.ndarray:
            x = data(*args)
            return x if rng is None else moved(x, rng)

        names: dict[str, Any] = {**HELPERS, "data": made, "layer": functools.partial(layer, made)}
        inputs, body, given, variables, results = [], [], [], {}, []
        for text in program.statements:
            target = text.split(" = ")[0]
            if INPUT.match(text):
                inputs.append(target)
                given.append(tf.constant(made(*eval(text.split(" = data")[1]))))
                results.append(target)
            elif VARIABLE.match(text):
                exec(text, names)
                variables[target] = names[target]
            else:
                body.append(f"    {text}")
                if target[0] == "v" and " = " in text:
                    results.append(target)
        said = [
            f"def program({', '.join(inputs)}):",
            *body,
            f"    return {{{', '.join(f'{r!r}: {r}' for r in results)}}}",
        ]
        exec(compile("\n".join(said), "<program>", "exec"), names)
        return names["program"], given, variables

    def play(self, program: Program, subject: str) -> Outcome:
        outcome = Outcome()
        onto, _, way = subject.partition(" ")
        try:
            if onto != REFERENCE:
                f, given, variables = self.function(program)
                run: Any = tg.graft(tf.function(f, autograph=False), onto=onto)
                if way == "grad":
                    outcome.observed = leaves(own_gradient(run, given, onto))
                    return outcome
                found = (tg.jit(run) if way == "jit" else run)(*given)
                outcome.observed = {**leaves(found), **states(variables)}
                return outcome
            runs = []
            for seed in range(self.shakes + 1):
                f, given, variables = self.function(program, np.random.default_rng(seed) if seed else None)
                if way == "traced":
                    tf.function(f, autograph=False).get_concrete_function(*given)
                    return outcome
                found = tape_gradient(f, given) if way == "grad" else f(*given)
                runs.append({**leaves(found), **states({} if way == "grad" else variables)})
        except Exception as error:
            outcome.raised[0] = type(error).__name__
            return outcome
        for n, x in runs[0].items():
            outcome.observed[n] = Seen(x, slack(x, [r[n] for r in runs[1:] if n in r]))
        return outcome

    def observe(self, names: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        if subject.endswith("jit") and TracedValueError.__name__ in found.raised.values():
            return "values that decide"
        if found.raised and self.play(program, f"{REFERENCE} traced").raised == found.raised:
            return "TensorFlow cannot trace it"  # a shape that Python asks for is known to eager code alone
        self.shakes = 40
        try:
            return (
                None
                if self.differences(self.play(program, self.reference(subject)), found, program)
                else "rounding decides"
            )
        finally:
            self.shakes = 3

    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
        if expected.raised or found.raised:
            if expected.raised and found.raised:
                return []
            return [f"{found.raised.get(0) or 'no exception'}, expected {expected.raised.get(0) or 'none'}"]
        lines = []
        for n, seen in expected.observed.items():
            if n not in found.observed:
                lines.append(f"{n}: missing")
            elif line := differs(seen, found.observed[n]):
                lines.append(f"{n}: {line}")
        return lines


def fits(x: Any, y: Any) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(x.shape, y.shape))) <= 100
    except ValueError:
        return False


def leaves(x: Any) -> dict[str, np.ndarray]:
    """By name, of pytrees of arrays."""
    flat = {
        n: [part for leaf in tf.nest.flatten(v, expand_composites=True) for part in whole(leaf)] for n, v in x.items()
    }
    return {f"{n}.{i}": host(part) for n, parts in flat.items() for i, part in enumerate(parts)}


def whole(leaf: Any) -> Any:
    return leaf.components if isinstance(leaf, CompositeArrays) else [leaf]


def states(variables: dict[str, Any]) -> dict[str, np.ndarray]:
    """Of variables, and of those of layers, optimizers and generators."""
    return leaves({n: x if isinstance(x, tf.Variable) else parts(x) for n, x in variables.items()})


def parts(x: Any) -> list[Any]:
    return [x.state] if isinstance(x, tf.random.Generator) else [w.value for w in x.variables]


def summed(found: Any) -> list[Any]:
    """The floats among the results that a gradient is taken of."""
    return [x for x in tf.nest.flatten(found) if "float" in str(x.dtype)]


def tape_gradient(f: Callable[..., Any], given: list[Any]) -> dict[str, Any]:
    floats = [x for x in given if x.dtype.is_floating]
    if not floats:
        return {}
    with tf.GradientTape() as tape:
        tape.watch(floats)
        total = tf.add_n([tf.reduce_sum(tf.cast(x, tf.float64)) for x in summed(f(*given))])
    return {"gradient": tape.gradient(total, floats, unconnected_gradients="zero")}


def own_gradient(f: Callable[..., Any], given: list[Any], onto: str) -> dict[str, Any]:
    floats = [i for i, x in enumerate(given) if x.dtype.is_floating]
    if not floats:
        return {}
    if onto == "jax":

        def total(*some: Any) -> Any:
            args = [*map(jax.numpy.asarray, map(np.asarray, given))]
            for i, x in zip(floats, some, strict=True):
                args[i] = x
            return sum(x.astype("float64").sum() for x in summed(f(*args)))

        with jax.enable_x64(True):
            return {"gradient": jax.grad(total, tuple(range(len(floats))))(*(np.asarray(given[i]) for i in floats))}
    import torch

    args = [torch.from_numpy(np.array(x)) if x.dtype != tf.bfloat16 else tg.convert(x, "torch") for x in given]
    inputs = [args[i].requires_grad_() for i in floats]
    whole = sum(x.double().sum() for x in summed(f(*args)))
    if not getattr(whole, "requires_grad", False):
        return {"gradient": [torch.zeros_like(x) for x in inputs]}
    found = torch.autograd.grad(whole, inputs, allow_unused=True)
    return {"gradient": [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]}


KIND = TensorFlow()
