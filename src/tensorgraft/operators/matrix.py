"""The operators of a matrix, and of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core.devices import Device
from tensorgraft.hub import dtypes
from tensorgraft.operators import structures
from tensorgraft.operators import tags as tags_
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.sparse import of_matrix
from tensorgraft.operators.structures import Structure, vector


class MatrixLinearOperator(LinearOperator):
    """The operator of a matrix (m, n): an array on any backend, or a sparse matrix of PyTorch (COO, CSR, CSC), JAX
    (`BCOO`, `BCSR`), TensorFlow (`SparseTensor`) or SciPy, for which a `SparseLinearOperator` is returned.

    Arguments:
        tags: known properties of the matrix, which are not checked.
    """

    _fields = ("matrix", "_given")
    _static = ("_given",)

    def __new__(cls, matrix: Any, tags: Iterable[str] = ()) -> Any:
        sparse = of_matrix(matrix, tags) if cls is MatrixLinearOperator else None
        return super().__new__(cls) if sparse is None else sparse

    def __init__(self, matrix: Any, tags: Iterable[str] = ()) -> None:
        if not isinstance(matrix, Array):
            raise TypeError(
                "MatrixLinearOperator: expected an array of tensorgraft.array_api, got a"
                f" {type(matrix).__module__}.{type(matrix).__qualname__}: convert it with asarray"
            )
        if matrix.ndim != 2:
            raise ValueError(
                f"MatrixLinearOperator: expected a matrix, an array of two dimensions, got shape {matrix.shape}"
            )
        if not dtypes.is_inexact(matrix.dtype):
            raise TypeError(
                f"MatrixLinearOperator: expected floating-point or complex numbers, got {matrix.dtype}: convert"
                " them with astype(matrix, float64)"
            )
        self.matrix = matrix
        self._given = tags_.closed(tags, matrix.dtype, self.shape, "MatrixLinearOperator")

    @property
    def _in(self) -> Structure:
        return vector(self.matrix.shape[1], self.matrix.dtype)

    @property
    def _out(self) -> Structure:
        return vector(self.matrix.shape[0], self.matrix.dtype)

    @property
    def device(self) -> Device:
        return self.matrix.device

    @property
    def tags(self) -> tags_.Tags:
        return self._given

    def mv(self, x: Any, /) -> Array:
        (v,) = self._in.checked("MatrixLinearOperator.mv", x)
        return xp.matmul(self.matrix, v)

    def mm(self, x: Any, /) -> Array:
        (v,) = self._in.checked("MatrixLinearOperator.mm", x, columns=True)
        return xp.matmul(self.matrix, v)

    def mm_flat(self, x: Array, /) -> Array:
        return self.mm(x)

    @property
    def T(self) -> LinearOperator:
        if "symmetric" in self.tags:
            return self
        return MatrixLinearOperator(self.matrix.mT, tags_.of_transpose(self.tags))

    @property
    def H(self) -> LinearOperator:
        if "hermitian" in self.tags:
            return self
        matrix = self.matrix.mT
        if dtypes.is_complex(self.dtype):
            matrix = xp.conj(matrix)
        return MatrixLinearOperator(matrix, tags_.of_transpose(self.tags))

    def as_matrix(self) -> Array:
        return self.matrix

    def diagonal(self) -> Array:
        return xp.linalg.diagonal(self.matrix)


class FunctionLinearOperator(LinearOperator):
    """The operator of a linear function of a pytree of arrays.

    The transpose is computed by reverse differentiation, `mm` by batching.

    Arguments:
        fn: linear; nobody checks that it is. Arrays that it closes over are differentiated, too, and read at each call
            of a compiled function. A pytree that can be called (a module) has its arrays among the operator's.
        structure: that of the argument of `fn`: a pytree of (shape, dtype) pairs, `ShapeDtype`s or arrays.
        device: the device on which `fn` computes; by default that of the arrays in `structure`, else the default
            device.
        tags: known properties, which are not checked.
        out_structure: that of the result of `fn`. None: `fn` is called once on zeros, when it is first needed.
    """

    _fields = ("fn", "_given", "_structure", "_results", "_device")
    _static = ("_given", "_structure", "_results", "_device")

    def __init__(
        self,
        fn: Callable[[Any], Any],
        structure: Any,
        device: Any = None,
        tags: Iterable[str] = (),
        out_structure: Any = None,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"FunctionLinearOperator: expected a function, got a {type(fn).__qualname__}")
        self.fn = fn
        self._structure = structures.structure_of_spec("FunctionLinearOperator", structure)
        self._device = structures.device_of(structure, device)
        self._results = structures.Memo()
        if out_structure is not None:
            self._results.value = structures.structure_of_spec("FunctionLinearOperator", out_structure)
        known = tags_.closed(tags, self._structure.dtype, name="FunctionLinearOperator")
        if known and any(tags_.RULES[t].square for t in known) and self._results.value is None:
            self._results.value = self._structure  # square operators map a space to itself
        self._given = tags_.closed(tags, self.dtype, self.shape, "FunctionLinearOperator") if known else known

    @property
    def _in(self) -> Structure:
        return self._structure

    @property
    def _out(self) -> Structure:
        if self._results.value is None:
            self._results.value = structures.of(self.fn(self._structure.zeros(self._device)))
        return self._results.value

    @property
    def device(self) -> Device:
        return self._device

    @property
    def tags(self) -> tags_.Tags:
        return self._given

    def mv(self, x: Any, /) -> Any:
        self._structure.checked("FunctionLinearOperator.mv", x)
        out = self.fn(x)
        if self._results.value is None and structures.of(x) == self._structure:
            self._results.value = structures.of(out)
        return out
