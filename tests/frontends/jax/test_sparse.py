"""Sparse arrays of PyTorch, TensorFlow and SciPy as arguments and results of grafted JAX functions, by their parts."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import torch
from jax.experimental import sparse

import tensorgraft as tg

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # beta state; invariant checks are implicitly disabled

DENSE = np.array([[1, 0, 2, 0], [0, 0, 3, 0], [0, 4, 0, 5]], np.float32)
X = np.arange(12, dtype=np.float32).reshape(4, 3)


def of_tensorflow():
    import tensorflow as tf

    return tf.sparse.from_dense(DENSE)


OPERANDS = {
    "torch csr": ("torch", lambda: torch.from_numpy(DENSE).to_sparse_csr()),
    "torch coo": ("torch", lambda: torch.from_numpy(DENSE).to_sparse()),
    "SparseTensor": ("tensorflow", of_tensorflow),
    "on the device": ("torch", lambda: torch.from_numpy(DENSE).to_sparse_csr().to(tg.device("jax"))),
    "scipy csr": ("numpy", lambda: scipy.sparse.csr_array(DENSE)),
    "scipy coo": ("numpy", lambda: scipy.sparse.coo_array(DENSE)),
}


def native(onto, x):
    if onto == "torch":
        return torch.from_numpy(x)
    if onto == "tensorflow":
        import tensorflow as tf

        return tf.constant(x)
    return x


@pytest.mark.parametrize("kind", OPERANDS)
def test_products_and_scaled_matrices(kind):
    onto, make = OPERANDS[kind]

    def fn(a, x):
        return a @ x, (
            a * 2 if isinstance(a, sparse.BCOO) else sparse.BCSR((a.data * 2, a.indices, a.indptr), shape=a.shape)
        )

    for graft in (tg.graft(fn, onto=onto), tg.jit(tg.graft(fn, onto=onto))):
        x = native(onto, X)
        product, twice = graft(make(), x.to(make().device) if onto == "torch" else x)
        product, twice = (product.cpu(), twice.cpu()) if onto == "torch" else (product, twice)
        np.testing.assert_allclose(np.asarray(product), DENSE @ X, rtol=1e-6)
        assert type(twice) is type(make())
        if onto == "tensorflow":
            import tensorflow as tf

            twice = tf.sparse.to_dense(twice)
        dense = twice.to_dense() if onto == "torch" else twice.toarray() if onto == "numpy" else twice
        np.testing.assert_allclose(np.asarray(dense), 2 * DENSE)


def test_gradients_of_the_values():
    a = torch.from_numpy(DENSE).to_sparse_csr()
    values = a.values().clone().requires_grad_()
    matrix = torch.sparse_csr_tensor(a.crow_indices(), a.col_indices(), values, a.shape)
    loss = tg.graft(lambda a, x: jnp.sum((a @ x) ** 2), onto="torch")(matrix, torch.from_numpy(X))
    (found,) = torch.autograd.grad(loss, values)
    product = DENSE @ X
    rows, columns = DENSE.nonzero()
    np.testing.assert_allclose(found.numpy(), 2 * (product[rows] * X[columns]).sum(1), rtol=1e-5)


def test_other_layouts_are_an_error():
    with pytest.raises(TypeError, match=r"takes sparse arrays as CSR or COO, and got torch\.sparse_csc"):
        tg.graft(lambda a: a, onto="torch")(torch.from_numpy(DENSE).to_sparse_csc())


def test_rows_of_tensorflow():
    """`IndexedSlices` are a `BCOO` with one sparse dimension."""
    import tensorflow as tf

    rows = tf.IndexedSlices(tf.ones((3, 2)), tf.constant([1, 3, 1]), tf.constant([5, 2]))
    wanted = tf.convert_to_tensor(rows).numpy()
    grafted = tg.graft(lambda a: (a * 3, a.todense()), onto="tensorflow")
    for run in (grafted, lambda a: tf.function(lambda: grafted(a))()):
        threefold, dense = run(rows)
        assert isinstance(threefold, tf.IndexedSlices)
        np.testing.assert_allclose(tf.convert_to_tensor(threefold), 3 * wanted)
        np.testing.assert_allclose(dense, wanted)
    with pytest.raises(TypeError, match=r"tf\.IndexedSlices with a known dense_shape"):
        tg.graft(lambda a: a.todense(), onto="tensorflow")(tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1])))
