"""Primitives and functions of `jax.numpy` that are recorded by their usual names, because their rules would be many
steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optree
from jax.extend import core

from tensorgraft.frontends.jax import releases
from tensorgraft.frontends.jax.keys import Keys
from tensorgraft.frontends.jax.rule import RULES
from tensorgraft.frontends.jax.rules.random import _is_threefry
from tensorgraft.frontends.jax.rules.structural import permuted
from tensorgraft.hub import dtypes
from tensorgraft.hub.recorded.block import Var

Word = Callable[..., Any]  # (recorder, equation, *operands) -> a result, several, or None: it is not said so
PRIMITIVES: dict[str, Word] = {}
FUNCTIONS: dict[str, Word] = {}


def primitive(*names: str) -> Callable[[Word], Word]:
    def register(fn: Word) -> Word:
        PRIMITIVES.update(dict.fromkeys(names, fn))
        return fn

    return register


def function(*names: str) -> Callable[[Word], Word]:
    def register(fn: Word) -> Word:
        FUNCTIONS.update(dict.fromkeys(names, fn))
        return fn

    return register


def _kind(x: Any) -> str:
    return "f" if dtypes.is_floating(x.dtype) else x.dtype.kind


@primitive("integer_pow")
def integer_pow(xp: Any, equation: Any, x: Any) -> Any:
    y = equation.params["y"]
    if _kind(x) != "f" or y in (0, 1):
        return None
    return xp.square(x) if y == 2 else xp.reciprocal(x) if y == -1 else xp.pow(x, y)


@primitive("stop_gradient")
def stop_gradient(xp: Any, equation: Any, x: Any) -> Any:
    if isinstance(x, Keys):
        return None
    return xp.word("stop_gradient", x) if x.value is None else x


def _as_it_is_called(name: str) -> Word:
    return lambda xp, equation, *operands: getattr(xp, name)(*operands)


# operations whose rules define JAX's results in limiting cases
for _name in ("bessel_i1e", "erf_inv", "polygamma", "zeta"):
    primitive(_name)(_as_it_is_called(_name))


@primitive("clamp")
def clamp(xp: Any, equation: Any, low: Any, x: Any, high: Any) -> Any:
    return None if dtypes.is_complex(x.dtype) else xp.clip(x, low, high)


@primitive("convert_element_type")
def convert(xp: Any, equation: Any, x: Any) -> Any:
    """Beyond the range of integers frameworks differ; none says that it saturates but XLA."""
    if isinstance(x, Keys) or x.value is not None or dtypes.is_complex(x.dtype):
        return None
    return xp.astype(x, np.dtype(equation.params["new_dtype"]))


@primitive("gather")
def gather(xp: Any, equation: Any, x: Any, indices: Any) -> Any:
    """Lower `jnp.take` and `x[indices]` of whole rows of one axis. Indices are assumed to be in range."""
    numbers = equation.params["dimension_numbers"]
    if isinstance(x, Keys) or numbers.operand_batching_dims:
        return None
    sizes = tuple(equation.params["slice_sizes"])
    # a window that covers a whole axis cannot move along it
    starts = [a for a in numbers.start_index_map if sizes[a] != x.shape[a]]
    if x.ndim and not starts and len(numbers.start_index_map) == 1:
        starts = list(numbers.start_index_map)
    if len(starts) != 1:
        return None
    (axis,) = starts
    column = numbers.start_index_map.index(axis)
    k = indices.ndim - 1
    drops_axis = not numbers.collapsed_slice_dims and axis == 0  # the axis is there, with one element
    if (numbers.collapsed_slice_dims != (axis,) and not drops_axis) or sizes != (
        *x.shape[:axis],
        1,
        *x.shape[axis + 1 :],
    ):
        return None
    if tuple(numbers.offset_dims) != (*range(axis), *range(axis + k, x.ndim - 1 + k + drops_axis)):
        return None
    start, stop = (0,) * k + (column,), (*indices.shape[:-1], column + 1)
    index = xp.reshape(xp.slice(indices, start, stop, (1,) * indices.ndim), indices.shape[:-1])
    rows = xp.word("embedding", x, index) if axis == 0 and x.ndim == 2 and k else xp.take(x, index, axis)
    return xp.reshape(rows, tuple(equation.outvars[0].aval.shape))


@function("tril", "triu")
def triangle(xp: Any, equation: Any, x: Any) -> Any:
    """Record `jnp.tril` and `triu` as words; the number of the diagonal is a literal in the function's body."""
    inner = releases.called_jaxpr(equation).jaxpr
    added = [e for e in inner.eqns if e.primitive.name == "add"]
    if len(added) != 1 or x.ndim != 2 or not isinstance(added[0].invars[1], core.Literal):
        return None
    k = int(np.asarray(added[0].invars[1].val))
    name, k = ("tril", k) if equation.params["name"] == "tril" else ("triu", k + 1)
    return [getattr(xp, name)(x, *[k] * (k != 0))]


# ---- windows ---------------------------------------------------------------------------------------------------------


@primitive("conv_general_dilated")
def conv(xp: Any, equation: Any, x: Any, w: Any) -> Any:
    """Channels first, between transpositions where the program has them last."""
    p = equation.params
    lhs, rhs, out = (tuple(spec) for spec in p["dimension_numbers"])
    dtype = equation.outvars[0].aval.dtype
    if any(n != 1 for n in p["lhs_dilation"]) or p["batch_group_count"] != 1 or not x.dtype == w.dtype == dtype:
        return None
    if 0 in equation.outvars[0].aval.shape:
        return None
    padding = tuple((int(low), int(high)) for low, high in p["padding"])
    y = xp.word(
        "conv", permuted(xp, x, lhs), permuted(xp, w, rhs), None, tuple(p["window_strides"]), padding,
        tuple(p["rhs_dilation"]), p["feature_group_count"],
    )  # fmt: skip
    return permuted(xp, y, tuple(int(a) for a in np.argsort(out)))


@primitive("reduce_window_max")
def max_pool(xp: Any, equation: Any, x: Any) -> Any:
    """Over the last axes, between transpositions."""
    p = equation.params
    window, strides, padding = p["window_dimensions"], p["window_strides"], p["padding"]
    sizes = [*p["base_dilation"], *p["window_dilation"]]
    axes = tuple(a for a, n in enumerate(window) if n != 1 or strides[a] != 1 or tuple(padding[a]) != (0, 0))
    if any(n != 1 for n in sizes) or not axes or not dtypes.is_floating(x.dtype):
        return None
    order = (*(a for a in range(x.ndim) if a not in axes), *axes)
    y = xp.word(
        "max_pool", permuted(xp, x, order), tuple(window[a] for a in axes), tuple(strides[a] for a in axes),
        tuple((int(padding[a][0]), int(padding[a][1])) for a in axes),
    )  # fmt: skip
    return permuted(xp, y, tuple(int(a) for a in np.argsort(order)))


# ---- random numbers --------------------------------------------------------------------------------------------------


class KeyData(Keys):
    """Keys whose data (..., 2) is one array; its words are extracted when a rule needs them."""

    def __init__(self, xp: Any, array: Any) -> None:
        self.xp, self.array = xp, array

    @property
    def words(self) -> tuple[Any, ...]:  # type: ignore[override]
        return tuple(self.xp.unstack(self.array, axis=self.array.ndim - 1))

    def data(self, xp: Any) -> Any:
        return self.array


def as_single_array(xp: Any, x: Any) -> Any:
    """Keys that a rule has made of words, as those of which there is one array: loops and branches have one form."""
    return KeyData(xp, x.data(xp)) if type(x) is Keys else x


def _flatten(keys: Any) -> tuple[Any, Any, None]:
    return (keys.array,), keys.xp, None


def _unflatten(xp: Any, arrays: Any) -> Any:
    return KeyData(xp, *arrays)


_node: Any = KeyData  # optree's types ask for a collection
optree.register_pytree_node(_node, _flatten, _unflatten, namespace="tensorgraft.jax")


def _is_single_key(equation: Any, key: Any) -> bool:
    """Return True for a single key of the kind whose numbers there are words for."""
    aval = equation.invars[0].aval
    return isinstance(key, Keys) and not aval.shape and _is_threefry(aval)


@primitive("random_seed")
def seeded(xp: Any, equation: Any, seed: Any) -> Any:
    value = getattr(seed, "value", None)
    if value is None or value.ndim or not _is_threefry(equation.outvars[0].aval):
        return None
    bits = int(value) & (1 << 8 * value.dtype.itemsize) - 1
    return KeyData(xp, xp.asarray(np.array([bits >> 32, bits & 0xFFFFFFFF], np.uint32)))


@primitive("random_wrap")
def wrapped(xp: Any, equation: Any, data: Any) -> Any:
    return KeyData(xp, data)


@primitive("random_split")
def split(xp: Any, equation: Any, key: Any) -> Any:
    shape = tuple(equation.params["shape"])
    return KeyData(xp, xp.word("jax_split", key.data(xp), shape)) if _is_single_key(equation, key) else None


@primitive("random_fold_in")
def fold_in(xp: Any, equation: Any, key: Any, data: Any) -> Any:
    if not _is_single_key(equation, key) or data.ndim:
        return None
    return KeyData(xp, xp.word("jax_fold_in", key.data(xp), xp.astype(data, np.dtype(np.uint32))))


@primitive("random_bits")
def bits(xp: Any, equation: Any, key: Any) -> Any:
    if not _is_single_key(equation, key) or equation.params["bit_width"] != 32:
        return None
    return xp.word("jax_bits", key.data(xp), tuple(equation.params["shape"]))


@function("_uniform")
def uniform(xp: Any, equation: Any, key: Any, low: Any, high: Any) -> Any:
    out = equation.outvars[0].aval
    if not _is_single_key(equation, key) or out.dtype != np.float32 or low.ndim or high.ndim:
        return None
    numbers = xp.word("jax_uniform", key.data(xp), tuple(out.shape))
    if low.value is not None and high.value is not None and (float(low.value), float(high.value)) == (0, 1):
        return [numbers]
    low, high = (xp.astype(x, np.dtype(np.float32)) for x in (low, high))
    return [xp.maximum(xp.add(xp.multiply(numbers, xp.subtract(high, low)), low), low)]


@function("_normal_real")
def normal(xp: Any, equation: Any, key: Any) -> Any:
    out = equation.outvars[0].aval
    if not _is_single_key(equation, key) or out.dtype != np.float32:
        return None
    return [xp.word("jax_normal", key.data(xp), tuple(out.shape))]


def _on_data(name: str, rank: Callable[[dict[str, Any], int], dict[str, Any]]) -> None:
    """Record a primitive that moves whole keys as one that moves their data, which has an axis more."""
    rule = RULES[name].fn

    @primitive(name)
    def run(xp: Any, equation: Any, *operands: Any) -> Any:
        if not all(type(x) is KeyData for x in operands):
            return None
        arrays = [x.array for x in operands]
        params = rank(dict(equation.params), arrays[0].ndim - 1)
        if "out" in RULES[name].asks:
            params["out"] = [jax.ShapeDtypeStruct((*v.aval.shape, 2), np.uint32) for v in equation.outvars]
        result = rule(xp, *arrays, **params)
        return [KeyData(xp, x) for x in result] if isinstance(result, list | tuple) else KeyData(xp, result)


def _slice(p: dict[str, Any], n: int) -> dict[str, Any]:
    steps = (*(p["strides"] or (1,) * n), 1)
    return {"start_indices": (*p["start_indices"], 0), "limit_indices": (*p["limit_indices"], 2), "strides": steps}


_on_data("slice", _slice)
_on_data("squeeze", lambda p, n: {})
_on_data("unstack", lambda p, n: p)


# ---- what a file of source does not do -------------------------------------------------------------------------------


@primitive("cond")
def check(xp: Any, equation: Any, which: Any, *operands: Any) -> Any:
    """Leave out a check (`equinox.error_if`), one of whose branches raises, and add a note about it."""
    branches = equation.params["branches"]
    raising = [_message(b.jaxpr) for b in branches]
    if len(branches) != 2 or raising[0] is not None or raising[1] is None:
        return None
    xp.note(f"a check is left out: {raising[1]!r}")
    return xp.jaxpr_evaluator(branches[0])(*operands)


def _message(jaxpr: core.Jaxpr) -> str | None:
    """Return the message that a branch of `error_if` raises; None for any other branch."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pure_callback":
            fn: Any = getattr(equation.params["callback"], "callback_func", None)
            if getattr(fn, "__qualname__", "").startswith("_error.<locals>"):
                closure = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
                messages = closure["msgs"].cell_contents if "msgs" in closure else ("an error of Equinox",)
                return str(messages[0]).strip().partition("\n")[0]
    return None


@primitive("debug_callback", "debug_print")
def printed(xp: Any, equation: Any, *operands: Any) -> list[Any]:
    xp.note("jax.debug calls are left out")
    return []


@primitive("pure_callback", "io_callback")
def host_function(xp: Any, equation: Any, *operands: Any) -> Any:
    raise NotImplementedError(
        f"{equation.primitive.name} calls a function of the host, which cannot be written in another framework:"
        " write it with operations of JAX, or leave it out"
    )


def _two(name: str) -> Word:
    def run(xp: Any, equation: Any, *operands: Any) -> Any:
        if len(operands) != 2 or any(type(x) is not Var for x in operands) or operands[0].dtype != operands[1].dtype:
            return None
        return [getattr(xp, name)(*operands)]

    return run


FUNCTIONS["floor_divide"] = _two("floor_divide")
FUNCTIONS["remainder"] = _two("remainder")


__all__ = ["FUNCTIONS", "PRIMITIVES"]
