"""Values of TensorFlow that no array is: ragged rows in loops, maps, composites, compressed matrices, lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import function
from tests.frontends.tensorflow.common import BACKENDS, agree, difference, native, on_host

import tensorgraft as tg
from tensorgraft.errors import ShapeError

raw = tf.raw_ops
X = np.asarray([[1, 0, 2], [0, 3, -4]], np.float32)
SYMMETRIC = np.asarray([[4, 1, 0], [1, 5, 2], [0, 2, 6]], np.float32)


def over_ragged(x: tf.Tensor) -> Any:
    rows = tf.RaggedTensor.from_row_splits(tf.reshape(x, [-1]), [0, 2, 2, 6])
    spec = tf.RaggedTensorSpec([None], tf.float32)
    mapped = tf.map_fn(lambda row: row[::-1] * 2, rows, fn_output_signature=spec)
    sums = tf.map_fn(tf.reduce_sum, rows, fn_output_signature=tf.float32)
    return mapped.flat_values, mapped.row_splits, sums


def nested_ragged(x: tf.Tensor) -> Any:
    rows = tf.RaggedTensor.from_nested_row_splits(tf.reshape(x, [-1]), [[0, 2, 3], [0, 2, 2, 6]])
    spec = tf.RaggedTensorSpec([None, None], tf.float32)
    mapped = tf.map_fn(lambda row: row + 1.0, rows, fn_output_signature=spec)
    return mapped.flat_values, *mapped.nested_row_splits


def gradient_over_ragged(x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(over_ragged(x)[0] ** 2)
    return tape.gradient(loss, x)


def maps(x: tf.Tensor) -> Any:
    whole = raw.EmptyTensorMap()
    for i, key in enumerate((3.0, 1.0, 3.0)):
        whole = raw.TensorMapInsert(input_handle=whole, key=key, value=x + i)
    less = raw.TensorMapErase(input_handle=whole, key=1.0, value_dtype=tf.float32)
    return (
        raw.TensorMapSize(input_handle=whole),
        raw.TensorMapLookup(input_handle=whole, key=3.0, value_dtype=tf.float32),
        raw.TensorMapHasKey(input_handle=less, key=1.0),
        raw.TensorMapStackKeys(input_handle=less, key_dtype=tf.float32),
    )


METADATA = tf.RaggedTensorSpec([None, None], tf.float32).experimental_as_proto().SerializeToString()


def composites(x: tf.Tensor) -> Any:
    splits = tf.constant([0, 1, 6], tf.int64)
    encoded = raw.CompositeTensorVariantFromComponents(components=[tf.reshape(x, [-1]), splits], metadata=METADATA)
    return raw.CompositeTensorVariantToComponents(encoded=encoded, metadata=METADATA, Tcomponents=["float32", "int64"])


def lists(x: tf.Tensor) -> Any:
    empty = raw.EmptyTensorList(element_shape=[3], max_num_elements=-1, element_dtype=tf.float32)
    some = raw.TensorListPushBackBatch(input_handles=tf.stack([empty, empty]), tensor=x)
    both = raw.TensorListConcatLists(input_a=some, input_b=some, element_dtype=tf.float32)
    spread = raw.TensorListScatter(tensor=x, indices=[2, 0], element_shape=[3])
    stacks = [raw.TensorListStack(input_handle=one, element_shape=[3], element_dtype=tf.float32)
              for one in (*tf.unstack(both), spread)]  # fmt: skip
    return stacks


def compressed(x: tf.Tensor) -> Any:
    batch = tf.stack([x, 2 * x])
    a = raw.DenseToCSRSparseMatrix(dense_input=batch, indices=tf.where(tf.stack([X, X]) != 0))
    one = raw.SparseTensorToCSRSparseMatrix(
        indices=tf.where(X != 0), values=tf.boolean_mask(x, X != 0), dense_shape=[2, 3]
    )
    turned = raw.SparseMatrixTranspose(input=one, conjugate=False, type=tf.float32)
    square = raw.SparseMatrixSparseMatMul(a=one, b=turned, type=tf.float32)
    same = raw.SparseMatrixSparseMatMul(a=one, b=one, adjoint_b=True, type=tf.float32)
    b = tf.reshape(tf.range(24.0), [2, 3, 4])
    return (
        raw.SparseMatrixMatMul(a=a, b=b),
        raw.SparseMatrixMatMul(a=a, b=b[:, :2], transpose_a=True, transpose_output=True),
        raw.SparseMatrixMatMul(a=one, b=tf.transpose(b[0]), transpose_b=True),
        raw.SparseMatrixNNZ(sparse_matrix=a),
        raw.SparseMatrixNNZ(sparse_matrix=one),
        *raw.CSRSparseMatrixComponents(csr_sparse_matrix=a, index=1, type=tf.float32),
        *raw.CSRSparseMatrixToSparseTensor(sparse_matrix=square, type=tf.float32),
        *(raw.CSRSparseMatrixToDense(sparse_input=m, type=tf.float32) for m in (a, one, turned, square, same)),
    )


def factor(x: tf.Tensor) -> Any:
    whole = SYMMETRIC + tf.reduce_sum(x) * tf.eye(3)
    a = raw.DenseToCSRSparseMatrix(dense_input=whole, indices=np.argwhere(SYMMETRIC))
    order = raw.SparseMatrixOrderingAMD(input=a)
    lower = raw.SparseMatrixSparseCholesky(input=a, permutation=order, type=tf.float32)
    return order, raw.CSRSparseMatrixToDense(sparse_input=lower, type=tf.float32)


def gradient_of_compressed(x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        a = raw.DenseToCSRSparseMatrix(dense_input=x, indices=tf.where(X != 0))
        turned = raw.SparseMatrixTranspose(input=a, conjugate=False, type=tf.float32)
        out = raw.SparseMatrixMatMul(a=turned, b=tf.ones((2, 4)))
        loss = tf.reduce_sum(out**2)
    return tape.gradient(loss, x)


def calls(x: tf.Tensor) -> Any:
    @function.Defun(tf.float32, tf.float32)
    def row(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.cumsum(a) + b[0]

    @function.Defun(tf.int32, tf.float32)
    def step(i: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
        return a * 2.0 + tf.cast(i, tf.float32)

    mapped = raw.MapDefun(arguments=[x], captured_inputs=[x[0]], output_types=[tf.float32], output_shapes=[[3]], f=row)
    looped = raw.For(start=1, limit=7, delta=2, input=[x], body=step)
    return mapped, looped


PROGRAMS: list[Callable[[tf.Tensor], Any]] = [
    over_ragged, nested_ragged, gradient_over_ragged, maps, composites, lists, compressed, factor,
    gradient_of_compressed, calls,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program: Callable[[tf.Tensor], Any], backend: str) -> None:
    want = tf.nest.flatten(tf.function(program)(tf.constant(X)))
    got = tf.nest.flatten(tg.graft(tf.function(program), onto=backend)(native(backend, X)))
    assert [difference(on_host(backend, g), w.numpy()) for g, w in zip(got, want, strict=True)] == [""] * len(want)


@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
def test_compiled(backend: str) -> None:
    def program(x: tf.Tensor) -> Any:
        a = raw.DenseToCSRSparseMatrix(dense_input=x, indices=tf.constant(np.argwhere(X)))
        turned = raw.SparseMatrixTranspose(input=a, conjugate=False, type=tf.float32)
        return raw.SparseMatrixMatMul(a=turned, b=tf.ones((2, 4))), maps(x)[1]

    want = tf.function(program)(X)
    got = tg.jit(tg.graft(tf.function(program), onto=backend))(native(backend, X))
    assert [difference(on_host(backend, g), w.numpy()) for g, w in zip(got, want, strict=True)] == ["", ""]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_counts_up_to_a_limit(backend: str) -> None:
    def counting() -> tuple[Any, Any]:
        count = tf.Variable(3)
        return lambda: raw.ResourceCountUpTo(resource=count.handle, limit=5, T=tf.int32), [count]

    agree(counting, [], backend)
    program, _ = counting()
    grafted = tg.graft(tf.function(program), onto=backend)
    grafted(), grafted()
    with pytest.raises(tf.errors.OpError, match="Reached limit of 5"):
        grafted()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_derivative_of_a_branch_that_xla_compiles(backend: str) -> None:
    def program(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x) * x, lambda: tf.exp(x))
        return tape.gradient(y, x)

    judge = tf.function(program, jit_compile=True)
    assert any(op.type == "FakeParam" for g in judge.get_concrete_function(X).graph._functions.values()
               for op in g.graph.get_operations())  # fmt: skip
    got = tg.graft(judge, onto=backend)(native(backend, X))
    assert not difference(on_host(backend, got), tf.function(program)(X).numpy())


def test_a_traced_loop_does_not_carry_one() -> None:
    def program(x: tf.Tensor) -> tf.Tensor:
        whole = raw.EmptyTensorMap()
        _, whole = tf.while_loop(
            lambda i, _: i < tf.cast(x[0, 0], tf.int32),
            lambda i, m: (i + 1, raw.TensorMapInsert(input_handle=m, key=1.0, value=x)),
            (0, whole),
        )
        return raw.TensorMapLookup(input_handle=whole, key=1.0, value_dtype=tf.float32)

    assert on_host("jax", tg.graft(tf.function(program), onto="jax")(native("jax", X))).tolist() == X.tolist()
    with pytest.raises(ShapeError, match="carries what no array is"):
        tg.jit(tg.graft(tf.function(program), onto="jax"))(native("jax", X))
