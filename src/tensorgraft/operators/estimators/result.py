"""The result of an estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import optree
from optree.registry import __GLOBAL_NAMESPACE as _GLOBAL

from tensorgraft.frontends.array_api import Array


@dataclass(frozen=True)
class Estimate:
    """An estimate; a pytree whose arrays are `value` and `standard_error`.

    Attributes:
        value: of `trace`, `logdet`, `frobenius_norm` an array without dimensions, of `diagonal` (n,).
        standard_error: real, of the shape of `value`. 0 where the value is exact, NaN where there is one sample only.
            Of the leave-one-out estimators it is that of their paper, which is somewhat too small.
        products: how many products with the operator (and its adjoint) were made.
        method: the name of the method that made it, "exact" where there was nothing to estimate.
    """

    value: Array
    standard_error: Array
    products: int
    method: str

    def __repr__(self) -> str:
        return (
            f"Estimate(value={_text(self.value)}, standard_error={_text(self.standard_error)},"
            f" products={self.products}, method={self.method!r})"
        )


def _text(x: Any) -> str:
    if not isinstance(x, Array) or x.ndim or x._cell.backend.is_traced(x._cell.array):
        return repr(x)
    return f"{x:.8g}"


def _flatten(e: Any) -> tuple[Any, Any, tuple[str, ...]]:
    return (e.value, e.standard_error), (e.products, e.method), ("value", "standard_error")


def _unflatten(static_data: Any, children: Any) -> Any:
    return Estimate(*children, *static_data)


_node: Any = Estimate
optree.register_pytree_node(_node, _flatten, _unflatten, namespace=_GLOBAL)
