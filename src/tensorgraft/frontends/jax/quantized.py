"""`QuantizedJaxArray`: an array of JAX that is kept in codes, for programs of JAX."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import core, dtypes  # the tables of what JAX takes as an operand

from tensorgraft.frontends.jax.codes import Codes, backend, dense_of, register
from tensorgraft.frontends.jax.quantized_evaluation import evaluated
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.quantization import policy
from tensorgraft.quantization.encode import encode
from tensorgraft.quantization.quantized import Quantized, dense
from tensorgraft.quantization.scheme import Scheme


class QuantizedJaxArray(Codes):
    """A quantised array for programs of JAX, made by `tg.quantize`; a pytree of its codes, scales and zero points.

    Operators, methods and indexing are those of `jax.Array`. Products, views and look-ups compute on codes; everything
    else dequantises the array, which is counted. Functions of `jax.numpy` and `jax.lax` dequantise it, too, but within
    `tg.graft(function, onto="jax")` they follow the rules for codes.
    """

    __slots__ = ()
    __array_priority__ = 100  # as for jax.Array: operators with arrays of NumPy call the methods of this class
    __hash__ = None  # type: ignore[assignment]

    @property
    def codes(self) -> jax.Array:
        """The codes as they are stored: packed along the last axis, floats as bytes."""
        return self.parts[0]

    @property
    def scale(self) -> jax.Array:
        return lax.bitcast_convert_type(self.parts[1], np.float32)

    @property
    def zero_point(self) -> jax.Array | None:
        return lax.bitcast_convert_type(self.parts[2], np.float32) if self.scheme.has_zero_points else None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.form[1].shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of codes, scales and zero points; of a view, those of the whole array."""
        return sum(x.nbytes for x in self.parts)

    @property
    def weak_type(self) -> bool:
        return False

    @property
    def aval(self) -> Any:
        return jax.core.ShapedArray(self.shape, self.dtype)

    def dequantize(self) -> jax.Array:
        """Return the dense array of the numbers."""
        return dense_of(self)

    # ---- as an array of JAX, and of the host -------------------------------------------------------------------------

    def __jax_array__(self) -> Any:
        # Operators of jax.Array call this before they return NotImplemented, which they do if the result is no array.
        if sys._getframe(1).f_code.co_name.startswith("_operator_"):
            return self
        return self._made_dense("as an array of JAX")

    def _made_dense(self, operation: str) -> jax.Array:
        policy.missing(operation, self.label)
        return self.dequantize()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.dequantize(), dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return iter([self[i] for i in range(self.shape[0])])

    def __getitem__(self, index: Any) -> Any:
        fixed = tuple([_Fixed.of(x) for x in index]) if isinstance(index, tuple) else _Fixed.of(index)
        return evaluated(_indexed, (self, fixed), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "arrays of JAX are immutable, including quantised ones: instead of x[index] = y, use"
            " x.at[index].set(y), whose result is dense"
        )

    @property
    def at(self) -> Any:
        return self._made_dense("at").at

    def block_until_ready(self) -> QuantizedJaxArray:
        jax.block_until_ready(self.parts)
        return self

    @property
    def device(self) -> Any:
        return self.codes.device

    def devices(self) -> Any:
        return self.codes.devices()

    def __repr__(self) -> str:
        codes = self.parts[0]
        description = f"{self.dtype}[{','.join(map(str, self.shape))}]" if hasattr(codes, "shape") else repr(codes)
        return f"{type(self).__name__}({description}, scheme={str(self.scheme)!r})"


class _Fixed:
    """A part of an index that is not an operand of the compiled program: a slice, or a mask, whose values determine the
    shape of the result."""

    def __init__(self, value: Any, key: Any) -> None:
        self.value, self.key = value, key

    @classmethod
    def of(cls, x: Any) -> Any:
        if isinstance(x, slice):
            return cls(x, (x.start, x.stop, x.step))
        if isinstance(x, jax.Array | np.ndarray) and x.dtype == np.bool_ and not isinstance(x, jax.core.Tracer):
            mask = np.asarray(x)
            return cls(mask, (mask.shape, mask.tobytes()))
        return x

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and self.key == other.key


def _indexed(x: Any, index: Any) -> Any:
    parts = [i.value if isinstance(i, _Fixed) else i for i in (index if isinstance(index, tuple) else (index,))]
    return x[tuple(parts) if isinstance(index, tuple) else parts[0]]


# ---- operators and methods -------------------------------------------------------------------------------------------


def _binary(op: Callable[[Any, Any], Any], reflected: bool) -> Any:
    def swapped(x: Any, y: Any) -> Any:
        return op(y, x)

    fn = swapped if reflected else op

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, bool | int | float | complex):
            other = jnp.asarray(other)  # weakly typed, and an operand, so other numbers need no new program
        elif not isinstance(other, QuantizedJaxArray | jax.Array | np.ndarray | np.generic):
            return NotImplemented
        return evaluated(fn, (self, other), {})

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"):
    _plain = _name.rstrip("_")
    setattr(QuantizedJaxArray, f"__{_plain}__", _binary(getattr(operator, _name), False))
    setattr(QuantizedJaxArray, f"__r{_plain}__", _binary(getattr(operator, _name), True))
for _name in ("lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(QuantizedJaxArray, f"__{_name}__", _binary(getattr(operator, _name), False))
for _reflected, _name in ((False, "__divmod__"), (True, "__rdivmod__")):
    setattr(QuantizedJaxArray, _name, _binary(divmod, _reflected))


def _unary(op: Callable[..., Any]) -> Any:
    return lambda self, *args: evaluated(op, (self, *args), {})


for _name in ("neg", "pos", "abs", "invert"):
    setattr(QuantizedJaxArray, f"__{_name}__", _unary(getattr(operator, _name)))
setattr(QuantizedJaxArray, "__round__", _unary(round))  # noqa: B010


def _method(name: str) -> Any:
    def fn(x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x, name)(*args, **kwargs)

    fn.__name__ = name

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return evaluated(fn, (self, *args), kwargs)

    method.__name__, method.__doc__ = name, f"As `jax.Array.{name}`."
    return method


def _property(name: str) -> Any:
    def fn(x: Any) -> Any:
        return getattr(x, name)

    return property(lambda self: evaluated(fn, (self,), {}))


for _name in (
    *("all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "clip", "compress", "conj"),
    *("conjugate", "copy", "cumprod", "cumsum", "diagonal", "dot", "flatten", "max", "mean", "min", "prod", "ptp"),
    *("ravel", "repeat", "reshape", "round", "searchsorted", "sort", "squeeze", "std", "sum", "swapaxes", "take"),
    *("trace", "transpose", "var", "view"),
):
    setattr(QuantizedJaxArray, _name, _method(_name))
for _name in ("T", "mT", "real", "imag"):
    setattr(QuantizedJaxArray, _name, _property(_name))


def _dense_method(name: str) -> Any:
    """Return a method that dequantises the array first, as its result depends on values."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._made_dense(name), name)(*args, **kwargs)

    return method


for _name in (
    "item",
    "tolist",
    "nonzero",
    "__bool__",
    "__float__",
    "__int__",
    "__complex__",
    "__index__",
    "__dlpack__",
):
    setattr(QuantizedJaxArray, _name, _dense_method(_name))


# ---- as a type of JAX, and as a pytree -------------------------------------------------------------------------------

register(QuantizedJaxArray)
core.pytype_aval_mappings[QuantizedJaxArray] = lambda q: q.aval
dtypes.canonicalize_value_handlers[QuantizedJaxArray] = lambda q: q._made_dense("operand of jax.lax")


# ---- for tg.quantize -------------------------------------------------------------------------------------------------


def quantize(
    x: jax.Array | QuantizedJaxArray, scheme: Scheme, observer: str = "minmax", inputs: Sequence[np.ndarray] = ()
) -> QuantizedJaxArray:
    if isinstance(x, QuantizedJaxArray):
        x = x.dequantize()
    xp = backend()
    with xp.scope():
        return QuantizedJaxArray.of(encode(xp, x, scheme, observer=observer, inputs=inputs))


def dequantize(q: QuantizedJaxArray) -> jax.Array:
    return q.dequantize()


def is_quantized(x: Any) -> bool:
    return isinstance(x, QuantizedJaxArray)


def fake_quantize(x: jax.Array | QuantizedJaxArray, scheme: Scheme) -> jax.Array:
    """See `tg.quantization.fake_quantize`."""

    @jax.custom_jvp
    def rounded(x: Array) -> Array:
        xp = backend()
        with xp.scope():
            return dense(xp, encode(xp, x, scheme, "fake_quantize"))

    rounded.defjvp(lambda primals, tangents: (rounded(*primals), tangents[0]))
    return rounded(x.dequantize() if isinstance(x, QuantizedJaxArray) else x)


def host(x: jax.Array | QuantizedJaxArray) -> np.ndarray:
    """Return the values of an array as an array of NumPy."""
    return np.asarray(x)


def placed_like(q: Quantized, like: Array) -> QuantizedJaxArray:
    """Return a quantised array, whose parts are on the host, on the device of `like`."""
    where = like.codes if isinstance(like, QuantizedJaxArray) else like
    (device,) = where.devices()
    with backend().scope():
        return QuantizedJaxArray.of(q.with_parts(jax.device_put(x, device) for x in q.parts))
