"""Products with sparse matrices on CPUs, by kernels in C++ that XLA's programs call.

XLA has no loop of its own that reads rows where values say: it gathers a row for each stored value, and adds these one
by one. 4 million values of a 20,000 x 20,000 matrix times 64 columns of float32, in CPU seconds of JAX 0.10: the kernel
0.05, SciPy 0.16, jaxlib's kernel for rows 0.08 (it has none for the transposed or sampled product), gathered rows and
a scatter-add 0.8. Without a C++ compiler, jaxlib's kernel is used where there is one, and the hub's composites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tensorgraft.backends.jax import cpu_kernels
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.sparse import Sparse
from tensorgraft.hub.sparse_arrays import SparseArray, check_rows, of_known_coordinates

_FLOATS = (dtypes.float32, dtypes.float64)
_INDICES = (dtypes.int32, dtypes.int64)


class JaxSparse:
    for_cpu: bool

    def _csr_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array) -> Array:
        shape = (starts.shape[0] - 1, dense.shape[1])
        out = _call(self, "csr_matmul", (starts, columns, values, dense), shape)
        return Sparse._csr_matmul(self, starts, columns, values, dense) if out is None else out

    def _csr_transposed_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array, n: int) -> Array:
        out = _call(self, "csr_transposed_matmul", (starts, columns, values, dense), (n, dense.shape[1]))
        return Sparse._csr_transposed_matmul(self, starts, columns, values, dense, n) if out is None else out

    def _csr_sampled_matmul(self: Any, starts: Array, columns: Array, a: Array, b: Array) -> Array:
        out = _call(self, "csr_sampled_matmul", (starts, columns, a, b), columns.shape)
        return Sparse._csr_sampled_matmul(self, starts, columns, a, b) if out is None else out

    def sparse_parts(self, x: Any, /) -> SparseArray | None:
        return sparse_parts(x)

    def sparse_array(self, layout: str, shape: tuple[int, ...], is_coalesced: bool, parts: Any) -> Any:
        return sparse_array(SparseArray(layout, shape, is_coalesced, parts))


def _call(xp: Any, kernel: str, operands: Sequence[Array], shape: tuple[int, ...]) -> Array | None:
    starts, columns, x, y = operands
    if not xp.for_cpu or x.dtype not in _FLOATS or y.dtype != x.dtype or 0 in (*columns.shape, *shape):
        return None
    if starts.dtype not in _INDICES or columns.dtype not in _INDICES:
        return None
    target = cpu_kernels.target(kernel) or _of_jaxlib(kernel)
    if target is None:
        return None
    wide = dtypes.int64 if dtypes.int64 in (starts.dtype, columns.dtype) else dtypes.int32
    if target == _JAXLIB:  # its kernel takes values first, and int32
        pattern = [jax.lax.convert_element_type(i, np.int32) for i in (starts, columns)]
        return _foreign(target, shape, x.dtype)(x, *pattern, y)
    pattern = [jax.lax.convert_element_type(i, wide) for i in (starts, columns)]
    return _foreign(target, shape, x.dtype)(*pattern, x, y)


def _foreign(target: str, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    return jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape, dtype), vmap_method="sequential")


_JAXLIB = "cpu_csr_sparse_dense_ffi"


def _of_jaxlib(kernel: str) -> str | None:
    if kernel != "csr_matmul":
        return None
    from jax.experimental import sparse  # noqa: F401 - registers its target

    return _JAXLIB


# ---- JAX's own sparse arrays ----------------------------------------------------------------------------------------


def sparse_parts(x: Any) -> SparseArray | None:
    """Return a `BCOO` or `BCSR` as its parts. In a trace, the indices of a `BCOO` are not known to be distinct.

    Raises TypeError for batches, and for a `BCSR` in a trace that does not say that its elements are distinct.
    """
    kind = type(x).__name__
    if kind not in ("BCOO", "BCSR") or not type(x).__module__.startswith("jax.experimental.sparse"):
        return None
    if x.n_batch or (kind == "BCSR" and x.n_dense):
        raise TypeError(f"expected a {kind} without batch dimensions (and a BCSR without dense ones), got {x}")
    traced = isinstance(x.indices, jax.core.Tracer)
    shape = tuple(map(int, x.shape))
    if kind == "BCOO":  # elements outside of the shape are padding
        extents = np.array(shape[: x.indices.shape[1]], x.indices.dtype)
        if not traced:
            known = np.asarray(x.indices)
            kept = np.flatnonzero((known < extents).all(1))
            return of_known_coordinates(known[kept], x.data if len(kept) == len(known) else x.data[kept], shape)
        is_element = (x.indices < extents).all(1)
        rows = is_element.reshape(-1, *[1] * (x.data.ndim - 1))
        indices = jax.numpy.where(is_element[:, None], x.indices, 0)
        return SparseArray("coo", shape, False, (indices, jax.numpy.where(rows, x.data, 0)))
    count = x.nse
    if not traced:
        count = int(x.indptr[-1])  # what comes after is padding
        check_rows(np.asarray(x.indptr), np.asarray(x.indices[:count]), kind)
    elif not (x.unique_indices and x.indices_sorted):
        raise TypeError(
            "a BCSR in a trace must say that each row has distinct columns in order, as those of PyTorch's CSR are:"
            " BCSR((a.data, a.indices, a.indptr), shape=a.shape, indices_sorted=True, unique_indices=True)"
        )
    return SparseArray("csr", shape, True, (x.indptr, x.indices[:count], x.data[:count]))


def sparse_array(x: SparseArray) -> Any:
    """Return a `BCOO` or `BCSR`. Raises TypeError for other layouts, and for batches."""
    from jax.experimental.sparse import BCOO, BCSR

    flags = {"indices_sorted": x.is_coalesced, "unique_indices": x.is_coalesced}
    if x.layout == "coo":
        indices, values = x.parts
        return BCOO((values, indices), shape=x.shape, **flags)
    if x.layout != "csr" or len(x.shape) != 2:
        raise x.refused("JAX", "BCOO and BCSR matrices")
    starts, columns, values = x.parts
    return BCSR((values, columns, starts), shape=x.shape, **flags)
