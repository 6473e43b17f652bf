"""Operations of recorded programs in NumPy's own words: operators and ufuncs, without the methods of the backend.

Numbers are NumPy's scalars where an operation is on numbers alone: an operator on two of them takes a tenth of the time
of a ufunc. With arrays they are arrays without axes, which ufuncs take more quickly than scalars.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.backends.numpy.elementwise import NumpyElementwise, _function
from tensorgraft.backends.numpy.precision import NARROW, scalar
from tensorgraft.hub.operations.elementwise import ELEMENTWISE
from tensorgraft.hub.recorded.block import Call, Var, leaves
from tensorgraft.hub.recorded.native import Dialect, Text

_OPERATORS = {
    **{"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "equal": "==", "not_equal": "!=", "less": "<"},
    **{"less_equal": "<=", "greater": ">", "greater_equal": ">=", "bitwise_and": "&", "bitwise_or": "|"},
    **{"bitwise_xor": "^", "logical_and": "&", "logical_or": "|", "logical_xor": "^"},
}
_PREFIXES = {"negative": "-", "bitwise_invert": "~", "logical_not": "~"}
# of two numbers, with the semantics of the ufuncs: NaN propagates
_CHOICES = {
    "maximum": "{0} if {0} >= {1} or {0} != {0} else {1}",
    "minimum": "{0} if {0} <= {1} or {0} != {0} else {1}",
}
_FOLDS = {"sum": np.add, "max": np.maximum, "min": np.minimum, "any": np.logical_or, "all": np.logical_and}
_FEW = 1024  # rows, up to which a sum has no need of blocks
_PLAIN = "fiub"  # kinds of dtype


def _with_part(x: np.ndarray, places: Any, update: np.ndarray) -> np.ndarray:
    out = np.array(x)
    out[places] = update
    return out


class NumpyDialect(Dialect):
    def __init__(self) -> None:
        super().__init__()
        self.counter = itertools.count()
        self.without_axes: dict[str, str] = {}  # the name of a number -> of it as an array

    def operand(self, x: Var, name: str) -> list[str]:
        if x.shape:
            return []
        self.without_axes[name] = f"{name}_"
        return [f"{name} = {name}[()]", f"{name}_ = {self.bound(np.asarray)}({name})"]

    def rows(self, name: str, reverse: bool) -> str:
        return f"{name}[::-1]" if reverse else name

    def stack(self, y: Var, length: int, reverse: bool) -> tuple[str, str, str]:
        empty = f"{self.bound(np.empty)}({(length, *y.shape)}, {self.bound(y.dtype)})"
        return empty, "{ys}", "{ys}[{i}] = {y}"

    def expression(self, call: Call, text: Text) -> str | None:
        arrays = [x for x in leaves([call.args, call.kwargs]) if type(x) is Var]
        if any(x.dtype in NARROW for x in arrays):
            return super().expression(call, text)
        if call.method in ELEMENTWISE:
            return self.elementwise(call, arrays, text)
        write = getattr(self, f"_{call.method}", None)
        return None if write is None else write(text, call.results, *call.args, **call.kwargs)

    # ---- element by element ----------------------------------------------------------------------------------------

    def elementwise(self, call: Call, arrays: Sequence[Var], text: Text) -> str | None:
        name, dtype = call.method, arrays[0].dtype
        operands = [self.of_dtype(x, dtype, bool(call.results.shape), text) for x in call.args]
        if dtype.kind in _PLAIN:
            if name in _OPERATORS:
                return f" {_OPERATORS[name]} ".join(operands)
            if name in _PREFIXES:
                return f"{_PREFIXES[name]}{operands[0]}"
            if name in _CHOICES and not call.results.shape:
                return _CHOICES[name].format(*operands)
            if name == "abs":
                return f"abs({operands[0]})"
            if name == "reciprocal" and dtype.kind == "f":
                return f"{self.of_dtype(1, dtype, bool(call.results.shape), text)} / {operands[0]}"
        if name not in vars(NumpyElementwise):
            return None
        fn: Callable[..., Any] | None = _function(name)
        return None if fn is None else f"{self.bound(fn)}({', '.join(operands)})"

    def of_dtype(self, x: Any, dtype: np.dtype, with_arrays: bool, text: Text) -> str:
        """Return the text of an operand: a Python number is one of the dtype."""
        if type(x) is not Var:
            value = scalar(x, dtype)
            return self.bound(np.asarray(value) if with_arrays else value)
        name = text(x)
        return self.without_axes.get(name, name) if with_arrays else name

    def _where(self, text: Text, out: Var, condition: Var, x: Any, y: Any) -> str | None:
        arrays = [v for v in (x, y) if type(v) is Var]
        if not arrays:
            return None
        values = [self.of_dtype(v, arrays[0].dtype, bool(out.shape), text) for v in (x, y)]
        if not out.shape:
            return f"{values[0]} if {text(condition)} else {values[1]}"
        return f"{self.bound(np.where)}({text(condition)}, {', '.join(values)})"

    def _astype(self, text: Text, out: Var, x: Var, dtype: np.dtype) -> str | None:
        if x.dtype.kind not in "biuf" or dtype.kind != "f" or dtype in NARROW:
            return None
        return f"{text(x)}.astype({self.bound(dtype)})" if out.shape else f"{self.bound(dtype.type)}({text(x)})"

    # ---- shapes ----------------------------------------------------------------------------------------------------

    def _reshape(self, text: Text, out: Var, x: Var, shape: tuple[int, ...]) -> str | None:
        return None if not x.shape else f"{text(x)}.reshape({shape})" + ("" if shape else "[()]")

    def _element(self, text: Text, out: Var, x: Var, index: tuple[int, ...]) -> str:
        return f"{text(x)}[{', '.join(map(str, index))}]"

    def _slice(self, text: Text, out: Var, x: Var, start: Any, stop: Any, step: Any) -> str | None:
        parts = [f"{a}:{b}:{s}" if s != 1 else f"{a}:{b}" for a, b, s in zip(start, stop, step, strict=True)]
        return f"{text(x)}[{', '.join(parts)}]" if parts else None

    def _broadcast_to(self, text: Text, out: Var, x: Var, shape: tuple[int, ...]) -> str | None:
        if x.size != out.size:
            return None
        return f"{text(x) if x.shape else f'{self.bound(np.asarray)}({text(x)})'}.reshape({shape})"

    def _split(self, text: Text, out: Any, x: Var, sizes: Sequence[int], axis: int = 0) -> str:
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        before = ":, " * (axis % x.ndim)
        return ", ".join([f"{text(x)}[{before}{end - n}:{end}]" for n, end in zip(sizes, ends, strict=True)]) + ","

    def places(self, text: Text, x: Var, start: Sequence[Any], sizes: Sequence[int]) -> str:
        """Return the index of a part of an array that begins at numbers, and stays within."""
        parts = []
        for at, n, size in zip(start, x.shape, sizes, strict=True):
            if n == size:
                parts.append(":")
                continue
            first = f"j{next(self.counter)}"
            parts.append(f"({first} := min(max(int({text(at)}), 0), {n - size})):{first} + {size}")
        return ", ".join(parts)

    def _dynamic_slice(self, text: Text, out: Var, x: Var, start: Any, sizes: Sequence[int]) -> str | None:
        return f"{text(x)}[{self.places(text, x, start, sizes)}]" if x.shape else None

    def _dynamic_update_slice(self, text: Text, out: Var, x: Var, update: Var, start: Any) -> str | None:
        if not x.shape:
            return None
        places = self.places(text, x, start, update.shape)
        return f"{self.bound(_with_part)}({text(x)}, {self.bound(np.s_)}[{places}], {text(update)})"

    def _permute_dims(self, text: Text, out: Var, x: Var, axes: tuple[int, ...]) -> str | None:
        if not x.shape:
            return None
        return f"{text(x)}.T" if axes == tuple(range(len(axes)))[::-1] else f"{text(x)}.transpose({axes})"

    def _concat(self, text: Text, out: Var, arrays: Sequence[Var], axis: int) -> str:
        return f"{self.bound(np.concatenate)}(({', '.join(map(text, arrays))},), {axis})"

    def _stack(self, text: Text, out: Var, arrays: Sequence[Var], axis: int = 0) -> str | None:
        return f"{self.bound(np.array)}(({', '.join(map(text, arrays))},))" if axis == 0 else None

    # ---- reductions and products -----------------------------------------------------------------------------------

    def _fold(name: str) -> Callable[..., Any]:  # type: ignore[misc]
        def write(
            self: NumpyDialect, text: Text, out: Var, x: Var, axis: Any = None, keepdims: bool = False
        ) -> str | None:
            if (
                not x.size
                or x.size > _FEW
                or not x.shape
                or keepdims
                or (x.dtype.kind == "b") != (name in ("any", "all"))
            ):
                return None
            axes = tuple(range(x.ndim)) if axis is None else axis
            axes = axes if isinstance(axes, tuple) else (axes,)
            if all(x.shape[axis] == 1 for axis in axes):
                return self._reshape(text, out, x, out.shape)
            axes = axes if len(axes) > 1 else axes[0]
            return f"{self.bound(_FOLDS[name].reduce)}({text(x)}, {axes}, {self.bound(out.dtype)})"

        return write

    for _name in _FOLDS:
        locals()[f"_{_name}"] = _fold(_name)
    del _name

    def _dot_general(
        self, text: Text, out: Var, a: Var, b: Var, contract: Any, batch: Any = ((), ()), dtype: Any = None
    ) -> str | None:
        """Return a product of matrices, vectors or numbers of floats."""
        if not (a.dtype == b.dtype == out.dtype and a.dtype.kind in "fc") or any(batch):
            return None
        if not contract[0]:
            columns = f"[...{', None' * b.ndim}]" if a.shape and b.shape else ""
            return f"{text(a)}{columns} * {text(b)}"
        if not all(len(axes) == 1 and x.ndim in (1, 2) for axes, x in zip(contract, (a, b), strict=True)):
            return None
        left = text(a) if contract[0][0] == a.ndim - 1 else f"{text(a)}.T"
        right = text(b) if contract[1][0] == 0 else f"{text(b)}.T"
        return f"{left}.dot({right})"
