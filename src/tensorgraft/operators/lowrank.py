"""`LowRankLinearOperator`: the sum of an operator and a product of thin matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core.devices import Device
from tensorgraft.frontends.array_api.core.promotion import promote
from tensorgraft.hub import dtypes
from tensorgraft.operators import dense
from tensorgraft.operators import tags as tags_
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.elementary import _arrays
from tensorgraft.operators.structures import Structure, vector


class LowRankLinearOperator(LinearOperator):
    """base + U diag(s) V^H, of matrices U (m, r) and V (n, r).

    Arguments:
        s: (r,); None: ones.
        v: None: U itself; with real `s` the operator is then Hermitian if the base is.
        base: an operator of vectors (n,) to vectors (m,); None: zero.
    """

    _fields = ("u", "s", "v", "base", "_given")
    _static = ("_given",)

    def __init__(
        self,
        u: Array,
        s: Array | None = None,
        v: Array | None = None,
        base: LinearOperator | None = None,
        tags: Iterable[str] = (),
    ) -> None:
        name = "LowRankLinearOperator"
        dtype = _arrays(name, [x for x in (u, s, v) if x is not None]).dtype
        w = u if v is None else v
        if u.ndim != 2 or w.ndim != 2 or w.shape[1] != u.shape[1] or (s is not None and s.shape != u.shape[1:]):
            raise ValueError(
                f"{name}: expected U (m, r), s (r,) and V (n, r), got shapes {u.shape},"
                f" {None if s is None else s.shape}, {None if v is None else v.shape}"
            )
        shape = u.shape[0], w.shape[0]
        if base is not None:
            if not isinstance(base, LinearOperator):
                raise TypeError(f"{name}: expected base to be a LinearOperator, got a {type(base).__qualname__}")
            if base.shape != shape or not base.is_vector_operator:
                raise ValueError(f"{name}: U diag(s) V^H has shape {shape}, but the base is {base}")
            dtype = promote(dtype, base.dtype)
        self.u, self.s, self.v, self.base = u, s, v, base
        self._given = tags_.closed(tags, dtype, shape, name)

    @property
    def _right(self) -> Array:
        return self.u if self.v is None else self.v

    @property
    def _dtype(self) -> Any:
        dtype = promote(self.u.dtype, self._right.dtype)
        dtype = dtype if self.s is None else promote(dtype, self.s.dtype)
        return dtype if self.base is None else promote(dtype, self.base.dtype)

    @property
    def _in(self) -> Structure:
        return vector(self._right.shape[0], self._dtype)

    @property
    def _out(self) -> Structure:
        return vector(self.u.shape[0], self._dtype)

    @property
    def device(self) -> Device:
        return self.u.device

    @property
    def _tags(self) -> Iterable[str]:
        tags = set(self._given)
        if self.v is None:
            base = None if self.base is None else self.base.tags
            if self.s is None and (base is None or "positive_semidefinite" in base):
                tags.add("positive_semidefinite")
            if (self.s is None or not dtypes.is_complex(self.s.dtype)) and (base is None or "hermitian" in base):
                tags.add("hermitian")
        return tags

    def mv(self, x: Any, /) -> Array:
        (v,) = self._in.checked("LowRankLinearOperator.mv", x)
        return self._applied(xp.expand_dims(v, axis=1))[:, 0]

    def mm(self, x: Any, /) -> Array:
        (v,) = self._in.checked("LowRankLinearOperator.mm", x, columns=True)
        return self._applied(v)

    def _scaled(self, x: Array) -> Array:
        return x if self.s is None else xp.expand_dims(self.s, axis=1) * x

    def _applied(self, x: Array) -> Array:
        out = xp.matmul(self.u, self._scaled(xp.matmul(dense.adjoint(self._right), x)))
        return out if self.base is None else self.base.mm(x) + out

    @property
    def T(self) -> LinearOperator:
        return self if "symmetric" in self.tags else self._transposed_by(lambda x: x, lambda x: xp.conj(x), _transpose)

    @property
    def H(self) -> LinearOperator:
        return self if "hermitian" in self.tags else self._transposed_by(lambda x: xp.conj(x), lambda x: x, _adjoint)

    def _transposed_by(self, of_s: Any, of_factors: Any, of_base: Any) -> LinearOperator:
        def on(f: Any, x: Array) -> Array:
            return f(x) if dtypes.is_complex(x.dtype) else x

        s = None if self.s is None else on(of_s, self.s)
        base = None if self.base is None else of_base(self.base)
        tags = tags_.of_transpose(self._given)
        return LowRankLinearOperator(on(of_factors, self._right), s, on(of_factors, self.u), base, tags)

    def as_matrix(self) -> Array:
        out = xp.matmul(self.u, self._scaled(dense.adjoint(self._right)))
        return out if self.base is None else self.base.as_matrix() + out

    def diagonal(self) -> Array:
        n = min(self.shape)
        u, v = self.u[:n, :], self._right[:n, :]
        v = xp.conj(v) if dtypes.is_complex(v.dtype) else v
        out = xp.sum((u if self.s is None else u * self.s) * v, axis=1)
        return out if self.base is None else self.base.diagonal() + out

    def woodbury(self, b: Array, solve: Callable[[LinearOperator, Array], Array]) -> Array:
        """Solve (base + U S V^H) x = b by Woodbury's formula x = B^-1 (I - U (I + S V^H B^-1 U)^-1 S V^H B^-1) b, which
        needs solutions with the base B, and with a matrix (r, r)."""
        assert self.base is not None
        r, k = self.u.shape[1], b.shape[1]
        dtype = promote(promote(b.dtype, self.dtype), self.base.dtype)
        solved = solve(self.base, xp.concat([xp.astype(b, dtype), xp.astype(self.u, dtype)], axis=1))
        y, z = solved[:, :k], solved[:, k:]
        adjoint = dense.adjoint(self._right)
        small = xp.eye(r, dtype=dtype, device=b.device) + self._scaled(xp.matmul(adjoint, z))
        return y - xp.matmul(z, xp.linalg.solve(small, self._scaled(xp.matmul(adjoint, y))))


def _transpose(x: LinearOperator) -> LinearOperator:
    return x.T


def _adjoint(x: LinearOperator) -> LinearOperator:
    return x.H
