"""Sparse arrays of other frameworks as JAX's, around the same parts, and back: arguments and results of grafted
functions. A function takes PyTorch's CSR tensors and SciPy's `csr_array` as `BCSR`, and PyTorch's COO tensors,
TensorFlow's `SparseTensor` and SciPy's `coo_array` as `BCOO`; TensorFlow's `IndexedSlices` as a `BCOO` of rows, with
one sparse dimension."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.sparse import BCOO, BCSR

from tensorgraft.arrays import framework_of

_KINDS = {"torch.sparse_csr": "csr", "torch.sparse_coo": "coo"}
_TENSORFLOW = {"SparseTensor": "coo", "IndexedSlices": "rows"}


def kind_of(x: Any) -> str | None:
    """Return "csr", "coo" or "rows" for a sparse array of another framework that a function can take, None for anything
    else. Raises TypeError for other sparse arrays."""
    package, name = type(x).__module__, type(x).__name__
    if framework_of(x) == "torch":
        layout = str(getattr(x, "layout", "torch.strided"))
        if layout == "torch.strided" or layout in _KINDS:
            return _KINDS.get(layout)
    elif package.startswith("scipy.sparse") and hasattr(x, "format"):
        layout = x.format
        if layout in ("csr", "coo"):
            return str(layout)
    else:
        return _TENSORFLOW.get(name) if package.startswith("tensorflow") else None
    raise TypeError(f"a grafted function takes sparse arrays as CSR or COO, and got {layout}: convert it before")


def with_jax_sparse(tree: Any) -> Any:
    """Return a pytree with JAX's sparse arrays in place of those of other frameworks."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = [kind_of(leaf) for leaf in leaves]
    if not any(kinds):
        return tree
    return jax.tree.unflatten(structure, [
        leaf if kind is None else _FROM[_library(leaf), kind](leaf)
        for leaf, kind in zip(leaves, kinds, strict=True)
    ])  # fmt: skip


def _library(x: Any) -> str:
    return type(x).__module__.partition(".")[0]


def with_native_sparse(tree: Any, framework: str) -> Any:
    """Return a pytree with sparse arrays of a framework in place of JAX's."""
    make = _TO.get(framework)
    if make is None or not any(map(_is_jax_sparse, jax.tree.leaves(tree, is_leaf=_is_jax_sparse))):
        return tree
    return jax.tree.map(lambda x: make(x) if _is_jax_sparse(x) else x, tree, is_leaf=_is_jax_sparse)


def _is_jax_sparse(x: Any) -> bool:
    return isinstance(x, BCOO | BCSR)


# ---- to JAX ----------------------------------------------------------------------------------------------------------


def _bcsr(values: Any, columns: Any, starts: Any, shape: Any) -> BCSR:
    aux = {"shape": tuple(map(int, shape)), "indices_sorted": False, "unique_indices": False}
    return BCSR.tree_unflatten(aux, (values, columns, starts))  # `BCSR(...)` would convert them


def _bcoo(values: Any, indices: Any, shape: Any, is_ordered: bool) -> BCOO:
    aux = {"shape": tuple(map(int, shape)), "indices_sorted": is_ordered, "unique_indices": is_ordered}
    return BCOO.tree_unflatten(aux, (values, indices))


def _rows(x: Any) -> BCOO:
    shape = None if x.dense_shape is None else importlib.import_module("tensorflow").get_static_value(x.dense_shape)
    if shape is None:
        raise TypeError("a grafted function takes tf.IndexedSlices with a known dense_shape, and got one without")
    return _bcoo(x.values, x.indices[:, None], shape, False)


_FROM: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("torch", "csr"): lambda x: _bcsr(x.values(), x.col_indices(), x.crow_indices(), x.shape),
    ("torch", "coo"): lambda x: _bcoo(x._values(), x._indices().t(), x.shape, x.is_coalesced()),
    ("tensorflow", "coo"): lambda x: _bcoo(x.values, x.indices, x.shape, False),
    ("tensorflow", "rows"): _rows,
    ("scipy", "csr"): lambda x: _bcsr(x.data, x.indices, x.indptr, x.shape),
    ("scipy", "coo"): lambda x: _bcoo(x.data, np.stack(x.coords, 1), x.shape, False),
}


# ---- from JAX --------------------------------------------------------------------------------------------------------


def _plain(name: str, x: Any) -> None:
    if x.n_batch or x.n_dense:
        raise TypeError(
            f"a grafted function returns a {type(x).__name__} with batch or dense dimensions, which {name} has not"
        )


def _to_torch(x: Any) -> Any:
    torch = importlib.import_module("torch")
    if isinstance(x, BCSR):
        _plain("PyTorch's CSR", x)
        return torch.sparse_csr_tensor(x.indptr, x.indices, x.data, x.shape, check_invariants=False)
    _plain("PyTorch's COO", x)
    return torch.sparse_coo_tensor(x.indices.t(), x.data, x.shape, check_invariants=False)


def _to_tensorflow(x: Any) -> Any:
    tf = importlib.import_module("tensorflow")
    if isinstance(x, BCSR):
        return x
    if x.indices.shape[1] == 1 < len(x.shape):
        return tf.IndexedSlices(x.data, x.indices[:, 0], tf.constant(x.shape, tf.int64))
    _plain("tf.SparseTensor", x)
    return tf.SparseTensor(tf.cast(x.indices, tf.int64), x.data, x.shape)


def _to_scipy(x: Any) -> Any:
    sparse = importlib.import_module("scipy.sparse")
    _plain("SciPy's", x)
    if isinstance(x, BCSR):
        return sparse.csr_array((x.data, x.indices, x.indptr), shape=x.shape)
    return sparse.coo_array((x.data, tuple(x.indices.T)), shape=x.shape)


_TO: dict[str, Callable[[Any], Any]] = {"torch": _to_torch, "tensorflow": _to_tensorflow, "numpy": _to_scipy}
