"""What grafted functions take and give: composite tensors, values of the host; and what they refuse, with nothing
written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from tests.frontends.tensorflow.common import BACKENDS, difference, on_host
from tests.frontends.tensorflow.samples import numbers

import tensorgraft as tg

X = numbers((3,))
RAGGED = [tf.ragged.constant([[1.0, 2.0], [], [3.0]]), tf.ragged.constant([[1.0], [5.0, 6.0, 7.0], []])]
ONES = tf.ones(3)
SPARSE = tf.sparse.from_dense([[1.0, 0.0], [0.0, 2.0]])


def composites(r: Any, x: Any, *, s: Any = None) -> Any:
    out = {"ragged": r * 2.0, "sums": tf.reduce_sum(r, 1) + x, "slices": tf.IndexedSlices(x, tf.range(3))}
    if s is not None:
        out |= {"product": tf.sparse.sparse_dense_matmul(s, tf.eye(2) * x[0]), "sparse": tf.sparse.add(s, s)}
    return out


@pytest.mark.parametrize("backend", BACKENDS)
def test_composites(backend: str) -> None:
    grafted = tg.graft(tf.function(composites), onto=backend)
    for r in RAGGED:
        for more in ({}, {"s": SPARSE}):
            want, got = composites(r, tf.constant(X), **more), grafted(r, X, **more)
            for name, w in want.items():
                parts = getattr(got[name], "components", None)
                parts = tf.nest.flatten(got[name], expand_composites=True) if parts is None else parts
                theirs = [t.numpy() for t in tf.nest.flatten(w, expand_composites=True)]
                assert [difference(on_host(backend, p), t) for p, t in zip(parts, theirs, strict=True)] == [""] * len(
                    theirs
                )
    again = grafted(grafted(RAGGED[0], X)["ragged"], X)  # what it gave is an argument
    assert not difference(on_host(backend, again["sums"]), np.asarray([6, 0, 6], "f4") + X)


def test_derivatives_by_what_goes_with_a_composite() -> None:
    x = torch.tensor(2.0, requires_grad=True)
    tg.graft(tf.function(lambda r, x: tf.reduce_sum(r * x)), onto="torch")(RAGGED[0], x).backward()
    assert x.grad == 6


def test_a_variable_of_other_shapes() -> None:
    rows = tf.Variable(tf.zeros((0, 3)), shape=(None, 3))

    @tf.function
    def append(x: Any) -> Any:
        rows.assign(tf.concat([rows, x[None]], 0))
        return tf.shape(rows)

    for compiled in (False, True):
        grafted = tg.jit(tg.graft(append, onto="jax")) if compiled else tg.graft(append, onto="jax")
        shapes = [np.asarray(grafted(X)).tolist() for _ in range(2)]
        assert shapes == ([[3, 3], [4, 3]] if compiled else [[1, 3], [2, 3]])


@tf.function(input_signature=[tf.TensorSpec((3,), name="x")])
def signed(x: Any) -> Any:
    return x * 2


def test_values_of_the_host_become_tensors_of_a_signature() -> None:
    for fn in (signed, signed.get_concrete_function()):
        grafted = tg.graft(fn, onto="jax")
        for x in ([1, 2, 3], (1.0, 2.0, 3.0), np.asarray([1.0, 2.0, 3.0])):
            assert grafted(x).dtype == np.float32
            assert grafted(x).tolist() == fn(x).numpy().tolist()


V = tf.Variable([1.0, 2.0, 3.0])


def writing(fn: Callable[[Any], Any]) -> Any:
    @tf.function
    def run(x: Any) -> Any:
        V.assign_add(V)
        y = fn(x)
        V.assign_add(V)
        return y

    return run


REFUSED: list[tuple[Any, Any, type[Exception], str]] = [
    (writing(lambda x: x), tf.constant(["a", "b"]), TypeError, "tensor of strings"),
    (writing(lambda x: (x, tf.constant("a"))), X, TypeError, r"returns a tensor of strings.*test_arguments.py:\d+"),
    (
        writing(lambda x: tf.io.decode_png(tf.strings.as_string(x[0]))),
        X,
        NotImplementedError,
        r"arguments.py:\d+.*files",
    ),
    (signed, X[:2], TypeError, r"signed was traced for x: float32\(3\), got .*float32\(2\)"),
    (signed, tf.constant([1, 2, 3]), TypeError, r"got .*int32\(3\): convert"),
    (
        writing(lambda x: (tf.debugging.assert_less(x, -9.0, "too large"), x)[1]),
        X,
        ValueError,
        r"assertion failed: \[too large\]",
    ),
    (writing(lambda x: tf.debugging.check_numerics(x / 0.0, "odd")), X, ValueError, "odd : Tensor had"),
    (
        writing(lambda x: tf.ensure_shape(tf.boolean_mask(x, x > -9), [5])),
        X,
        ValueError,
        r"\[3\] is not compatible with expected shape \[5\]",
    ),
    (writing(lambda x: tf.reshape(x, [tf.cast(x[0], tf.int32) * 0 + 2])), X, ValueError, r"3 elements .* to \[2\]"),
]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("case", range(len(REFUSED)), ids=lambda i: REFUSED[i][3][:20])
def test_what_is_refused_writes_nothing(case: int, backend: str) -> None:
    fn, x, error, match = REFUSED[case]
    with pytest.raises(error, match=match) as raised:
        tg.graft(fn, onto=backend)(x)
    if error is ValueError:
        assert __file__.rpartition("/")[2] in "".join(raised.value.__notes__)  # the line of the program
    assert V.numpy().tolist() == [1, 2, 3]


DEFAULTS: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "tensor": (tf.constant([1.0, 2.0, 3.0]), lambda x, a: x * a),
    "array": (np.asarray([1.0, 2.0, 3.0], np.float32), lambda x, a: x * a),
    "variable": (tf.Variable([1.0, 2.0, 3.0]), lambda x, a: x * a),
    "ragged": (RAGGED[0], lambda x, a: x + tf.reduce_sum(a, 1)),
    "sparse": (SPARSE, lambda x, a: x * tf.sparse.reduce_sum(a)),
    "slices": (tf.IndexedSlices(tf.ones(2), tf.constant([0, 2]), tf.constant([3])), lambda x, a: x + a),
    "structure": ({"k": (tf.constant(2.0), 3.0)}, lambda x, a: x * a["k"][0] * a["k"][1]),
    "number": (2.0, lambda x, a: x * a),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_defaults_that_are_tensors(backend: str) -> None:
    for name, (default, compute) in DEFAULTS.items():
        fn = tf.function(lambda x, a=default, compute=compute: compute(x, a))
        grafted = tg.graft(fn, onto=backend)
        assert not difference(on_host(backend, grafted(X)), fn(X).numpy()), name
    variable = tf.Variable(1.0)

    @tf.function
    def counted(x: Any, *, count: Any = variable) -> Any:
        count.assign_add(1.0)
        return x * count

    grafted = tg.graft(counted, onto=backend)
    for n in (2, 3):
        assert not difference(on_host(backend, grafted(X)), X * n)
    variable.assign(9.0)
    assert not difference(on_host(backend, grafted(X)), X * 10)
    assert float(variable) == 10
    scaled = tg.graft(tf.function(lambda x, a=ONES: x * a), onto=backend)
    assert not difference(on_host(backend, scaled(X, X)), X * X)
    assert not difference(on_host(backend, scaled(X, a=X)), X * X)


def _implemented(default: Callable[..., Any], on_cpu: Callable[..., Any]) -> Callable[..., Any]:
    """As Keras and tensorflow-probability name implementations for devices."""
    functions = [
        tf.function(
            fn,
            autograph=False,
            experimental_attributes={"api_implements": f"of {id(default)}", "api_preferred_device": device},
        )
        for fn, device in ((default, "GPU"), (on_cpu, "CPU"))
    ]

    def call(x: Any) -> Any:
        functions[1].get_concrete_function(x).add_to_graph()
        return functions[0](x)

    return call


@pytest.mark.parametrize("backend", BACKENDS)
def test_implementations_for_the_cpu(backend: str) -> None:
    compute = _implemented(lambda x: x * 2.0, lambda x: x * 3.0)
    for fn in (
        tf.function(lambda x: compute(x) + 1.0),
        tf.function(lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, compute(a)), (0, x))[1]),
    ):
        assert not difference(on_host(backend, tg.graft(fn, onto=backend)(X)), fn(X).numpy())
