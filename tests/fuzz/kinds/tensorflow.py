"""Functions of TensorFlow with variables, tapes, loops and arrays of tensors, grafted onto other frameworks.

Statements are drawn eagerly, and played as one `tf.function` of the program's data; `s...` are its variables, which the
function writes and which are compared behind it. TensorFlow runs it eagerly, also on data that is a few eps off.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np
import tensorflow as tf
from tests.fuzz.kinds.array_api import Retry, Seen
from tests.fuzz.kinds.jax import Drawing as JaxDrawing
from tests.fuzz.kinds.jax import differs, host, moved, slack, templates
from tests.fuzz.program import REFERENCE, Kind, Outcome, Program

import tensorgraft as tg

tf.get_logger().setLevel("ERROR")
tf.autograph.set_verbosity(0)
SHAPES = [(), (2,), (3,), (3,), (2, 3), (2, 3), (3, 3), (3, 2), (1, 3), (2, 2, 3), (4,), (0,), (2, 0)]
DTYPES = ["float32"] * 8 + ["float64"] * 2 + ["int32"] * 3 + ["int64", "bool", "uint8", "int8", "complex64"]
INPUT = re.compile(r"(v\d+) = data\(")
VARIABLE = re.compile(r"(s\d+) = tf\.Variable\(")


def data(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -5, 6, shape).astype(dtype)
    values: Any = rng.integers(-16, 17, shape) / 8 + 0.03125
    if kind == "c":
        values = values + 1j * rng.integers(-16, 17, shape) / 8
    return np.asarray(values).astype(dtype)


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


HELPERS = {"tf": tf, "np": np, "gradient": gradient, "jacobian": jacobian, "clipped": clipped}


class Drawing(JaxDrawing):
    def __init__(self, rng: random.Random, names: dict[str, Any]) -> None:
        super().__init__(rng, {})
        for n, x in names.items():
            if n[0] in "vs" and n[1:].isdigit() and isinstance(x, tf.Tensor | tf.Variable):
                self.arrays[n] = jax.ShapeDtypeStruct(tuple(x.shape), x.dtype.as_numpy_dtype)
        taken = [int(n[1:]) for n in names if n[0] in "vs" and n[1:].isdigit()]
        self.next = max(taken, default=-1) + 1

    def new(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> str:
        dtype = dtype or self.rng.choice(DTYPES)
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
]  # fmt: skip
WRITES = templates(
    "fi", FULL, "{n}.assign_add({n} * {k})", "{n}.assign_sub(tf.ones_like({n}))", "{n}.assign({m} + {c})", "{n}[0].assign({m}[0])", "{n}[1:].assign({m}[1:] * {k})", "{n}[..., 0].assign_add({m}[..., 0]) if hasattr({n}[..., 0], 'assign_add') else {n}.assign({m})", "{n}.scatter_add(tf.IndexedSlices({m}[:1], [0]))", "{n}.scatter_update(tf.IndexedSlices({m}[:1], [0]))", "{n}.scatter_nd_add([[0], [0]], tf.concat([{m}[:1], {m}[:1]], 0))", "{n}.scatter_nd_update([[0]], {m}[:1])", "{n}.scatter_max(tf.IndexedSlices({m}[:1], [0]))", "tf.cond(tf.reduce_sum({n}) > 0, lambda: {n}.assign_add(tf.ones_like({n})), lambda: {n}.assign({m}))", "tf.while_loop(lambda i: i < 3, lambda i: [tf.group({n}.assign_add(tf.ones_like({n}))) and i + 1 or i + 1], [0])", "{n}[::-1].assign({m})", "{n}.scatter_mul(tf.IndexedSlices({m}[:1], [0]))", "{n}.batch_scatter_update(tf.IndexedSlices({m}[..., :1], tf.zeros({m}.shape[:-1] + [1], tf.int32))) if {n}.shape.rank > 1 else {n}.assign({m})", "{n}.scatter_nd_sub([[0]], {m}[:1])",
)  # fmt: skip


class TensorFlow(Kind):
    name = "tensorflow"
    shares: ClassVar[dict[str, int]] = {"numpy": 1, "torch": 1, "jax": 6}
    length = (4, 10)
    raising = 0.0
    shakes = 3

    def names(self, subject: str) -> dict[str, Any]:
        return {**HELPERS, "data": lambda *args: tf.constant(data(*args))}

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
        what = d.rng.choices(["new", "variable", "write", "binary", "form"], [2, 1.5, 3, 4, 20])[0]
        if what == "new":
            return f"v{d.next} = {d.new()}"
        if what == "variable":
            return f"s{d.next} = tf.Variable({d.new(d.one('float32', 'float32', 'int32', 'float64'))})"
        if what == "write":
            if not variables:
                raise Retry
            d.arrays = variables
            return WRITES(d)
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

    def function(
        self, program: Program, rng: np.random.Generator | None = None
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        """(the program as a function of its data, the data, its variables); shaken by the generator."""

        def made(*args: Any) -> np.ndarray:
            x = data(*args)
            return x if rng is None else moved(x, rng)

        names: dict[str, Any] = {**HELPERS, "data": made}
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
        try:
            if subject != REFERENCE:
                f, given, variables = self.function(program)
                found = tg.graft(tf.function(f, autograph=False), onto=subject)(*given)
                outcome.observed = {**leaves(found), **leaves(variables)}
                return outcome
            runs = []
            for seed in range(self.shakes + 1):
                f, given, variables = self.function(program, np.random.default_rng(seed) if seed else None)
                runs.append({**leaves(f(*given)), **leaves(variables)})
        except Exception as error:
            outcome.raised[0] = type(error).__name__
            return outcome
        for n, x in runs[0].items():
            outcome.observed[n] = Seen(x, slack(x, [r[n] for r in runs[1:] if n in r]))
        return outcome

    def observe(self, names: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        self.shakes = 40
        try:
            return None if self.differences(self.play(program, REFERENCE), found, program) else "rounding decides"
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
    return {f"{n}.{i}": host(leaf) for n, v in x.items() for i, leaf in enumerate(tf.nest.flatten(v))}


KIND = TensorFlow()
