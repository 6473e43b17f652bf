"""A recorded program as C++ source, for small arrays of the host: every array has a known shape and is row-major, every
operation is a loop over its elements, and loops of the program are loops of C++.

A method without a translation raises `NoWordError`, and the program is run in another way.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded.block import Block, Call, Var, leaves, mapped
from tensorgraft.hub.recorded.tracing import record

TYPES: dict[np.dtype, str] = {
    np.dtype(t): f"{t}_t" for t in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
TYPES |= {np.dtype("float32"): "float", np.dtype("float64"): "double", np.dtype("bool"): "bool"}

_UNARY = {
    **{name: f"std::{name}({{0}})" for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh")},
    **{name: f"std::{name}({{0}})" for name in ("asinh", "acosh", "atanh", "exp", "exp2", "expm1", "log", "log1p")},
    **{name: f"std::{name}({{0}})" for name in ("log2", "log10", "sqrt", "cbrt", "erf", "erfc", "floor", "ceil")},
    **{name: f"std::{name}({{0}})" for name in ("trunc", "isnan", "isinf", "isfinite", "signbit")},
    **{"round": "std::rint({0})", "reciprocal": "1 / {0}", "rsqrt": "1 / std::sqrt({0})", "square": "{0} * {0}"},
    **{"sigmoid": "1 / (1 + std::exp(-{0}))", "negative": "-{0}", "logical_not": "!{0}", "abs": "magnitude({0})"},
    **{"tanh": "tanh_of({0})", "sign": "sign({0})", "bitwise_invert": "inverted({0})"},
}
_BINARY = {
    **{"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "equal": "==", "not_equal": "!=", "less": "<"},
    **{"less_equal": "<=", "greater": ">", "greater_equal": ">=", "bitwise_and": "&", "bitwise_or": "|"},
    **{"bitwise_xor": "^", "logical_and": "&&", "logical_or": "||", "logical_xor": "!="},
}
_FUNCTIONS = {
    **{"maximum": "larger", "minimum": "smaller", "fmod": "remainder_of", "integer_floor_divide": "floor_of"},
    **{"bitwise_left_shift": "left", "bitwise_right_shift": "right"},
    **{name: f"std::{name}" for name in ("pow", "hypot", "copysign", "nextafter")},
    "atan2": "std::atan2",
}
_OF_FLOATS = {"pow", "hypot", "copysign", "nextafter", "atan2", "divide"}

PRELUDE = """
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
template <class T> T larger(T x, T y) { return x >= y || x != x ? x : y; }
template <class T> T smaller(T x, T y) { return x <= y || x != x ? x : y; }
template <class T> T sign(T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : x; }
template <class T> T magnitude(T x) {
    if constexpr (std::is_floating_point<T>::value) return std::fabs(x);
    else return x < 0 ? T(-x) : x;
}
template <class T> T inverted(T x) { if constexpr (std::is_same<T, bool>::value) return !x; else return T(~x); }
template <class T> T remainder_of(T x, T y) {
    if constexpr (std::is_floating_point<T>::value) return std::fmod(x, y);
    else return y == 0 || y == T(-1) ? T(0) : T(x % y);
}
template <class T> T floor_of(T x, T y) {
    if (y == 0) return T(0);
    if (std::is_signed<T>::value && y == T(-1)) return T(-x);
    return T(x / y - (x % y != 0 && (x < 0) != (y < 0)));
}
template <class T> T left(T x, T y) { return y < 0 || y >= T(8 * sizeof(T)) ? T(0) : T(x << y); }
template <class T> T right(T x, T y) {
    return T(y < 0 || y >= T(8 * sizeof(T)) ? (x < 0 ? -1 : 0) : x >> y);
}
template <class T, class S> T converted(S x) {
    if constexpr (std::is_same<T, bool>::value) return x != 0;
    else if constexpr (std::is_floating_point<S>::value && std::is_integral<T>::value) {
        if (std::is_same<T, uint64_t>::value) return T(x);
        return T(x >= S(-9223372036854775808.0) && x < S(9223372036854775808.0) ? int64_t(x) : INT64_MIN);
    } else return T(x);
}
// the quotient of polynomials by which XLA computes it
static inline float tanh_of(float x) {
    float y = x < -7.90531111f ? -7.90531111f : x > 7.90531111f ? 7.90531111f : x;
    float z = y * y;
    float p = -2.76076847742355e-16f;
    p = p * z + 2.00018790482477e-13f;
    p = p * z - 8.60467152213735e-11f;
    p = p * z + 5.12229709037114e-08f;
    p = p * z + 1.48572235717979e-05f;
    p = p * z + 6.37261928875436e-04f;
    p = p * z + 4.89352455891786e-03f;
    float q = 1.19825839466702e-06f;
    q = q * z + 1.18534705686654e-04f;
    q = q * z + 2.26843463243900e-03f;
    q = q * z + 4.89352518554385e-03f;
    return z < 1.6e-07f ? x : y * p / q;
}
static inline double tanh_of(double x) { return std::tanh(x); }
template <class T, class S> T bits(S x) { T y; std::memcpy(&y, &x, sizeof y); return y; }
static inline int64_t within(int64_t at, int64_t most) { return at < 0 ? 0 : at > most ? most : at; }
"""


Element = Callable[[list[str]], str]  # the text of the element at a place


class NoWordError(NotImplementedError):
    """A method, or a dtype, that the source has no word for."""


def _from(corner: Sequence[str]) -> Callable[[list[str]], list[str]]:
    """Return the places of an array from a corner on."""
    return lambda index: [f"{c} + {i}" for c, i in zip(corner, index, strict=True)]


def _inserted(axis: int, place: str, index: list[str]) -> list[str]:
    return [*index[:axis], place, *index[axis:]]


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def literal(value: Any, dtype: np.dtype) -> str:
    """Return a number as a constant of a dtype."""
    value = np.asarray(value).astype(dtype)[()]
    if dtype.kind != "f":
        number = "(-9223372036854775807LL - 1)" if value == -(2**63) else f"{int(value)}{'U' * (dtype.kind == 'u')}LL"
        return f"{TYPES[dtype]}({number})"
    if math.isnan(value):
        return f"{TYPES[dtype]}(NAN)"
    if math.isinf(value):
        return f"{TYPES[dtype]}({'-' if value < 0 else ''}INFINITY)"
    return f"{TYPES[dtype]}({float(value).hex()})"


class CSource:
    """The source of a block. `arena`: the bytes that its larger arrays need."""

    def __init__(self, block: Block, constants: Sequence[Var]) -> None:
        self.lines: list[str] = []
        self.names: dict[Var, str] = {}
        self.depth = 0
        self.arena = 0
        self.declarations: list[str] = []
        self.on_stack = 0
        self.counter = itertools.count()
        self.large = [v for v in constants if v.shape]
        for v in constants:
            if not v.shape:
                _type(v)
                self.names[v] = literal(v.known(), v.dtype)
        for k, v in enumerate((*self.large, *block.parameters)):
            self.names[v] = name = f"p{k}"
            pointer = f"({_type(v)} const*) places[{k}]"
            self.line(
                f"{_type(v)} const {name} = *({pointer});" if not v.shape else f"{_type(v)} const* {name} = {pointer};"
            )
        self.calls(block)
        for k, v in enumerate(block.result, len(self.large) + len(block.parameters)):
            self.line(
                f"std::memcpy(places[{k}], {'' if v.shape else '&'}{self.variable(v)}, {v.size * v.dtype.itemsize});"
            )
        body = "\n".join([*self.declarations, *self.lines])
        self.text = f'{PRELUDE}\nextern "C" void program(void** places, char* arena) {{\n{body}\n}}\n'

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    # ---- variables -------------------------------------------------------------------------------------------------

    def variable(self, v: Var) -> str:
        """Return the name of an array that is in memory."""
        name = self.names[v]
        if not name.isidentifier():  # a constant without axes
            copy = self.target(Var(v.shape, v.dtype))
            self.line(f"{copy} = {name};")
            return copy
        return name

    def target(self, v: Var) -> str:
        """Return the name of a new array."""
        name = self.names[v] = f"x{next(self.counter)}"
        size = v.size * v.dtype.itemsize
        if not v.shape:
            self.declarations.append(f"{_type(v)} {name};")
        elif size <= _STACK_ARRAY and self.on_stack + size <= _STACK:
            self.on_stack += size
            self.declarations.append(f"alignas(32) {_type(v)} {name}[{max(1, v.size)}];")
        else:
            self.declarations.append(f"{_type(v)}* {name} = ({_type(v)}*) (arena + {self.arena});")
            self.arena += -(-size // 64) * 64
        return name

    def at(self, x: Var, index: Sequence[str]) -> str:
        """Return an element of an array."""
        if not x.shape:
            return self.names[x]
        terms = [f"({i}) * {s}" if s != 1 else f"({i})" for i, s in zip(index, _strides(x.shape), strict=True)]
        return f"{self.names[x]}[{' + '.join(terms)}]"

    def broadcast(self, x: Any, index: Sequence[str], dtype: np.dtype) -> str:
        """Return the element of an array, or number, that is broadcast to a place."""
        if type(x) is not Var:
            return literal(x, dtype)
        own = index[len(index) - len(x.shape) :]
        return self.at(x, [i if n != 1 else "0" for i, n in zip(own, x.shape, strict=True)])

    def each(self, shape: Sequence[int], statement: Callable[[list[str]], str]) -> None:
        """Write a statement for every place of a shape."""
        index = [f"i{next(self.counter)}" for _ in shape]
        for i, n in zip(index, shape, strict=True):
            self.line(f"for (int64_t {i} = 0; {i} < {n}; {i}++)")
        self.line(" " + statement(index))

    def fill(self, out: Var, element: Element) -> None:
        """Make a new array of the element for each of its places."""
        self.target(out)
        self.put(out, out.shape, lambda index: index, element)

    def put(self, out: Var, shape: Sequence[int], place: Callable[[list[str]], list[str]], element: Element) -> None:
        """Write the element for each place of a shape to a place of an array."""
        self.each(shape, lambda index: f"{self.at(out, place(index))} = {element(index)};")

    def copy(self, target: str, source: Var) -> None:
        """Write the elements of an array to memory."""
        if not source.shape:
            self.line(f"*({target}) = {self.names[source]};")
        elif source.size:
            self.line(f"std::memcpy({target}, {self.names[source]}, {source.size * source.dtype.itemsize});")

    # ---- calls -----------------------------------------------------------------------------------------------------

    def calls(self, block: Block) -> None:
        for call in block.calls:
            for x in leaves([call.args, call.results]):
                if type(x) is Var:
                    _type(x)
            write = getattr(self, f"_{call.method}", None)
            if call.method in _WORDS:
                self.elementwise(call)
            elif write is not None:
                write(call.results, *call.args, **call.kwargs)
            else:
                self.composite(call)

    def composite(self, call: Call) -> None:
        """Write the operations of which the hub composes a method."""
        declared = getattr(Backend, call.method)
        if getattr(declared, "is_primitive", False):
            raise NoWordError(call.method)
        operands = [x for x in leaves([call.args, call.kwargs]) if type(x) is Var]

        def composed(xp: Any, *arrays: Var) -> list[Any]:
            rest = iter(arrays)
            args, kwargs = mapped(lambda x: next(rest) if type(x) is Var else x, (call.args, call.kwargs))
            return list(leaves(declared(xp, *args, **kwargs)))

        program = record(composed, operands)
        if any(v.shape for v in program.constants):
            raise NoWordError(call.method)
        self.names.update({v: literal(v.known(), v.dtype) for v in program.constants})
        self.names.update(zip(program.block.parameters, [self.names[x] for x in operands], strict=True))
        self.calls(program.block)
        for result, v in zip(leaves(call.results), program.block.result, strict=True):
            self.names[result] = self.names[v]

    def elementwise(self, call: Call) -> None:
        name, out = call.method, call.results
        dtype = next(x.dtype for x in call.args if type(x) is Var)
        if name in _OF_FLOATS and dtype.kind != "f":
            raise NoWordError(f"{name} of {dtype}")
        if dtype.kind == "b" and name in ("add", "multiply", "maximum", "minimum"):
            raise NoWordError(f"{name} of {dtype}")
        template = _UNARY.get(name)
        if template is None and name in _BINARY:
            template = f"{{0}} {_BINARY[name]} {{1}}"
        if template is None and name in _FUNCTIONS:
            kind = "" if "std::" in _FUNCTIONS[name] else f"<{TYPES[dtype]}>"
            template = f"{_FUNCTIONS[name]}{kind}({{0}}, {{1}})"
        if template is None:
            raise NoWordError(name)
        if all(type(x) is not Var or x.shape in ((), out.shape) for x in call.args):  # one after the other
            flat = {x: Var((x.size,) if x.shape else (), x.dtype) for x in call.args if type(x) is Var}
            self.names.update({v: self.names[x] for x, v in flat.items()})
            target = self.target(out)
            row = Var((out.size,) if out.shape else (), out.dtype)
            self.names[row] = target
            args = [flat[x] if type(x) is Var else x for x in call.args]
            self.each(
                row.shape,
                lambda i: f"{self.at(row, i)} = {template.format(*[self.broadcast(x, i, dtype) for x in args])};",
            )
            return
        self.fill(out, lambda index: template.format(*[self.broadcast(x, index, dtype) for x in call.args]))

    def _where(self, out: Var, condition: Var, x: Any, y: Any) -> None:
        def element(index: list[str]) -> str:
            parts = [self.broadcast(v, index, out.dtype) for v in (condition, x, y)]
            return "{} ? {} : {}".format(*parts)

        self.fill(out, element)

    def _astype(self, out: Var, x: Var, dtype: np.dtype) -> None:
        self.fill(out, lambda index: f"converted<{TYPES[dtype]}>({self.at(x, index)})")

    # ---- shapes ----------------------------------------------------------------------------------------------------

    def _same(self, out: Var, x: Var, *_: Any, **__: Any) -> None:
        target = self.target(out)
        if out.shape and x.shape:
            self.copy(target, x)
        else:
            self.line(f"{target}{'[0]' if out.shape else ''} = {self.names[x]}{'[0]' if x.shape else ''};")

    _reshape = _expand_dims = _squeeze = _same

    def _element(self, out: Var, x: Var, index: Sequence[int]) -> None:
        self.line(f"{self.target(out)} = {self.at(x, [*map(str, index)])};")

    def _broadcast_to(self, out: Var, x: Var, shape: Any) -> None:
        self.fill(out, lambda index: self.broadcast(x, index, x.dtype))

    def _permute_dims(self, out: Var, x: Var, axes: Sequence[int]) -> None:
        self.fill(out, lambda index: self.at(x, [index[list(axes).index(a)] for a in range(x.ndim)]))

    def _slice(self, out: Var, x: Var, start: Any, stop: Any, step: Any) -> None:
        def place(index: list[str]) -> list[str]:
            return [f"{a} + {i} * {s}" for a, i, s in zip(start, index, step, strict=True)]

        self.fill(out, lambda index: self.at(x, place(index)))

    def _flip(self, out: Var, x: Var, axes: Sequence[int]) -> None:
        flipped = {axis % max(1, x.ndim) for axis in axes}

        def place(index: list[str]) -> list[str]:
            return [f"{x.shape[k] - 1} - {i}" if k in flipped else i for k, i in enumerate(index)]

        self.fill(out, lambda index: self.at(x, place(index)))

    def _split(self, out: Sequence[Var], x: Var, sizes: Sequence[int], axis: int = 0) -> None:
        begin = 0
        for part, n in zip(out, sizes, strict=True):
            start = [begin if k == axis % x.ndim else 0 for k in range(x.ndim)]
            self._slice(part, x, start, None, [1] * x.ndim)
            begin += n

    def _concat(self, out: Var, arrays: Sequence[Var], axis: int) -> None:
        self.target(out)
        begin = 0
        for x in arrays:
            corner = [str(begin if k == axis % x.ndim else 0) for k in range(x.ndim)]
            self.put(out, x.shape, _from(corner), functools.partial(self.at, x))
            begin += x.shape[axis]

    def _stack(self, out: Var, arrays: Sequence[Var], axis: int = 0) -> None:
        self.target(out)
        axis %= out.ndim
        for k, x in enumerate(arrays):
            place = functools.partial(_inserted, axis, str(k))
            self.put(out, x.shape, place, functools.partial(self.at, x))

    def _pad(self, out: Var, x: Var, value: Any, config: Any) -> None:
        if any(low < 0 or high < 0 for low, high, _ in config):
            raise NoWordError("pad")
        self.fill(out, lambda index: self.broadcast(value, [], out.dtype))

        def place(index: list[str]) -> list[str]:
            return [f"{low} + {i} * {gap + 1}" for i, (low, _, gap) in zip(index, config, strict=True)]

        self.put(out, x.shape, place, functools.partial(self.at, x))

    def _full(self, out: Var, shape: Any, value: Any, dtype: np.dtype) -> None:
        if type(value) is Var and value.dtype != dtype:
            raise NoWordError("full")
        self.fill(out, lambda index: self.broadcast(value, [], dtype))

    def _zeros(self, out: Var, *_: Any) -> None:
        self.fill(out, lambda index: literal(0, out.dtype))

    def _ones(self, out: Var, *_: Any) -> None:
        self.fill(out, lambda index: literal(1, out.dtype))

    _zeros_like, _ones_like = _zeros, _ones

    def _full_like(self, out: Var, x: Var, value: Any) -> None:
        self._full(out, out.shape, value, out.dtype)

    def _bitcast(self, out: Var, x: Var, dtype: np.dtype) -> None:
        if dtype.itemsize != x.dtype.itemsize or "b" in (dtype.kind, x.dtype.kind):
            raise NoWordError("bitcast")
        self._same(out, x) if dtype == x.dtype else self.fill(
            out, lambda index: f"bits<{TYPES[dtype]}>({self.at(x, index)})"
        )

    def _iota(self, out: Var, n: int, dtype: np.dtype) -> None:
        self.fill(out, lambda index: index[0])

    def _corner(self, x: Var, start: Sequence[Any], sizes: Sequence[int]) -> list[str]:
        names = []
        for at, n, size in zip(start, x.shape, sizes, strict=True):
            place = Var((), np.dtype("int64"))
            text = self.broadcast(at, [], place.dtype)
            if type(at) is Var and at.dtype == np.dtype("uint64"):
                raise NoWordError("places of uint64")
            self.line(f"{self.target(place)} = within({text}, {n - size});")
            names.append(self.names[place])
        return names

    def _dynamic_slice(self, out: Var, x: Var, start: Sequence[Any], sizes: Sequence[int]) -> None:
        corner = self._corner(x, start, sizes)
        self.fill(out, lambda index: self.at(x, _from(corner)(index)))

    def _dynamic_update_slice(self, out: Var, x: Var, update: Var, start: Sequence[Any]) -> None:
        corner = self._corner(x, start, update.shape)
        self._same(out, x)
        self.put(out, update.shape, _from(corner), functools.partial(self.at, update))

    # ---- reductions and products -----------------------------------------------------------------------------------

    def _reduced(self, out: Var, x: Var, axis: Any, wide: str, first: str, step: str) -> None:
        """Combine the elements of axes: `step` of {acc} and {x}, beginning with `first`, of type `wide`."""
        axes = {
            a % max(1, x.ndim) for a in (range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis)
        }
        kept = [k for k in range(x.ndim) if k not in axes]
        target = self.target(out)
        acc, index = f"a{next(self.counter)}", [f"i{next(self.counter)}" for _ in x.shape]
        for k in kept:
            self.line(f"for (int64_t {index[k]} = 0; {index[k]} < {x.shape[k]}; {index[k]}++) {{")
        zero = self.at(x, [index[k] if k in kept else "0" for k in range(x.ndim)])
        self.line(f"{wide} {acc} = {first.format(x=zero)};")
        for k in sorted(axes):
            self.line(f"for (int64_t {index[k]} = 0; {index[k]} < {x.shape[k]}; {index[k]}++)")
        self.line(f" {acc} = {step.format(acc=acc, x=self.at(x, index))};")
        place = [(k, x.shape[k]) for k in kept]
        flat = " + ".join(
            [f"{index[k]} * {s}" for (k, _), s in zip(place, _strides([n for _, n in place]), strict=True)]
        )
        self.line(f"{target}{f'[{flat or 0}]' if out.shape else ''} = {TYPES[out.dtype]}({acc});" + "}" * len(kept))

    def _sum(self, out: Var, x: Var, axis: Any = None, keepdims: bool = False) -> None:
        wide = "double" if x.dtype.kind == "f" else TYPES[out.dtype]
        if x.dtype.kind == "b":
            raise NoWordError("sum of bool")
        self._reduced(out, x, axis, wide, "0", "{acc} + {x}")

    def _max(self, out: Var, x: Var, axis: Any = None, keepdims: bool = False, word: str = "larger") -> None:
        if not x.size or x.dtype.kind == "b":
            raise NoWordError("max")
        self._reduced(out, x, axis, TYPES[x.dtype], "{x}", f"{word}<{TYPES[x.dtype]}>({{acc}}, {{x}})")

    def _min(self, out: Var, x: Var, axis: Any = None, keepdims: bool = False) -> None:
        self._max(out, x, axis, keepdims, "smaller")

    def _any(self, out: Var, x: Var, axis: Any = None, keepdims: bool = False) -> None:
        self._reduced(out, x, axis, "bool", "false", "{acc} || {x} != 0")

    def _all(self, out: Var, x: Var, axis: Any = None, keepdims: bool = False) -> None:
        self._reduced(out, x, axis, "bool", "true", "{acc} && {x} != 0")

    def _dot_general(self, out: Var, a: Var, b: Var, contract: Any, batch: Any = ((), ()), dtype: Any = None) -> None:
        if not (a.dtype == b.dtype == out.dtype and a.dtype.kind == "f"):
            raise NoWordError(f"products of {a.dtype} and {b.dtype}")
        free = [[k for k in range(x.ndim) if k not in contract[i] and k not in batch[i]] for i, x in enumerate((a, b))]
        self.fill(out, lambda index: "0")
        places: list[dict[int, str]] = [{}, {}]
        order: list[tuple[str, int]] = []
        result: list[str] = []
        for kinds in ("batch", "a", "contract", "b"):
            axes = {"batch": batch, "contract": contract, "a": (free[0], ()), "b": ((), free[1])}[kinds]
            for k in range(max(map(len, axes))):
                i = f"i{next(self.counter)}"
                for side in (0, 1):
                    if len(axes[side]):
                        places[side][axes[side][k]] = i
                order.append((i, (a.shape[axes[0][k]] if len(axes[0]) else b.shape[axes[1][k]])))
                if kinds != "contract":
                    result.append(i)
        for i, n in order:
            self.line(f"for (int64_t {i} = 0; {i} < {n}; {i}++)")
        left, right = (self.at(x, [places[side][k] for k in range(x.ndim)]) for side, x in enumerate((a, b)))
        self.line(f" {self.at(out, result)} += {left} * {right};")

    # ---- control flow ----------------------------------------------------------------------------------------------

    def assign(self, targets: Sequence[Var], values: Sequence[Var]) -> None:
        """Write values to existing arrays, all at once."""
        names = {self.names[t] for t in targets}
        sources = []
        for t, v in zip(targets, values, strict=True):
            if self.names[v] in names and self.names[v] != self.names[t]:
                copy = Var(v.shape, v.dtype)
                self._same(copy, v)
                v = copy
            sources.append(v)
        for t, v in zip(targets, sources, strict=True):
            if self.names[t] != self.names[v]:
                self.copy(self.names[t] if t.shape else f"&{self.names[t]}", v)

    def _scan(self, out: Any, step: Block, init: Any, xs: Any, length: int, reverse: bool) -> None:
        carry, rows = step.parameters
        for t in carry:
            self.target(t)
        self.assign(carry, init)
        for y in out[1]:
            self.target(y)
        i = f"i{next(self.counter)}"
        head = f"int64_t {i} = {length - 1}; {i} >= 0; {i}--" if reverse else f"int64_t {i} = 0; {i} < {length}; {i}++"
        self.line(f"for ({head}) {{")
        self.depth += 1
        for row, x in zip(rows, xs, strict=True):
            name = self.names[row] = f"x{next(self.counter)}"
            value = f"{self.names[x]} + {i} * {row.size}" if row.shape else f"{self.names[x]}[{i}]"
            self.line(f"{_type(row)} const{'*' if row.shape else ''} {name} = {value};")
        self.calls(step)
        new_carry, ys = step.result
        for stacked, y in zip(out[1], ys, strict=True):
            self.copy(f"{self.names[stacked]} + {i} * {y.size}", y)
        self.assign(carry, new_carry)
        self.depth -= 1
        self.line("}")
        for result, t in zip(out[0], carry, strict=True):
            self.names[result] = self.names[t]

    def _while_loop(self, out: Any, test: Block, step: Block, init: Any) -> None:
        (state,) = step.parameters
        for t in state:
            self.target(t)
        self.assign(state, init)
        self.names.update(zip(test.parameters[0], [self.names[t] for t in state], strict=True))
        self.line("while (true) {")
        self.depth += 1
        self.calls(test)
        self.line(f"if (!{self.names[test.result]}) break;")
        self.calls(step)
        self.assign(state, step.result)
        self.depth -= 1
        self.line("}")
        for result, t in zip(out, state, strict=True):
            self.names[result] = self.names[t]

    def _cond(self, out: Any, predicate: Var, true: Block, false: Block, *operands: Var) -> None:
        for t in out:
            self.target(t)
        for branch, head in ((true, f"if ({self.names[predicate]}) {{"), (false, "} else {")):
            self.names.update(zip(branch.parameters, [self.names[x] for x in operands], strict=True))
            self.line(head)
            self.depth += 1
            self.calls(branch)
            self.assign(out, branch.result)
            self.depth -= 1
        self.line("}")


_WORDS = frozenset({*_UNARY, *_BINARY, *_FUNCTIONS})
_STACK_ARRAY, _STACK = 1 << 12, 1 << 17  # bytes


def _type(v: Var) -> str:
    name = TYPES.get(v.dtype)
    if name is None:
        raise NoWordError(f"arrays of {v.dtype}")
    return name
