"""Samples of operations that are nothing by themselves: on variables, lists, optionals, with bodies, with a state.

A row is a function of dtypes that gives operands, and a program of them in which the operation is met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tests.frontends.tensorflow.dtypes import DTYPES, Combination, converted, plain, quantised
from tests.frontends.tensorflow.samples import numbers

raw = tf.raw_ops
Made = tuple[Sequence[np.ndarray], Callable[..., Any]]


class Program(NamedTuple):
    op: str
    operands: tuple[np.ndarray, ...]
    fn: Callable[..., Any]

    def flat(self) -> list[tuple[Any, bool]]:
        return [(x, True) for x in self.operands]

    def call(self, flat: list[Any]) -> list[Any]:
        results = self.fn(*(quantised(x, like) for x, like in zip(flat, self.operands, strict=True)))
        return [plain(y) for y in tf.nest.flatten(results)]


PROGRAMS: dict[str, Callable[[Combination], Made]] = {}
# whose dtypes no kernel says: those of lists of tensors, and of a condition
SAID: dict[str, tuple[str, tuple[str, ...]]] = {}
TRUTHS = ("bool", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")


def program(*names: str, dtypes: tuple[str, ...] | None = None, attribute: str = "T") -> Any:
    def register(make: Any) -> Any:
        for name in names:
            PROGRAMS[name] = lambda chosen, name=name: make(name, chosen)
            if dtypes is not None:
                SAID[name] = attribute, dtypes
        return make

    return register


def data(shape: Any, dtype: str, low: float = -3, high: float = 3, seed: int = 0) -> np.ndarray:
    return converted(numbers(shape, "float64", low, high, seed), dtype)


def typed(dtype: str) -> Any:
    return getattr(tf, dtype)


def _zeros(x: np.ndarray, dtype: str) -> tf.Variable:
    return tf.Variable(quantised(tf.constant(np.zeros_like(x)), x), dtype=typed(dtype))


# ---- what hands on ---------------------------------------------------------------------------------------------------


@program("Placeholder", "Identity", "StopGradient", "Const", "PlaceholderWithDefault", "EnsureShape", "CheckNumerics")
def one(name: str, chosen: Combination) -> Made:
    dtype = chosen.get("dtype") or chosen["T"]
    x = data((2, 3), dtype)
    calls = {
        "Placeholder": lambda v: v,
        "Const": lambda v: (quantised(tf.constant(np.asarray(x)), x), v),
        "PlaceholderWithDefault": lambda v: raw.PlaceholderWithDefault(input=v, shape=[None, 3]),
        "EnsureShape": lambda v: raw.EnsureShape(input=v, shape=[None, 3]),
        "CheckNumerics": lambda v: raw.CheckNumerics(tensor=v, message="no number"),
    }
    return [x], calls.get(name, lambda v: getattr(raw, name)(input=v))


@program("NoOp", "IdentityN", "Assert", "StatefulPartitionedCall", "PartitionedCall", dtypes=DTYPES)
def calls(name: str, chosen: Combination) -> Made:
    x, y = data((2, 3), chosen["T"]), data((4,), chosen["T"], seed=1)
    if name == "IdentityN":
        return [x, y], lambda a, b: raw.IdentityN(input=[a, b])
    if name == "NoOp":

        def after(a: Any) -> Any:
            raw.NoOp()
            return raw.Identity(input=a)

        return [x], after
    if name == "Assert":

        def asserted(a: Any, ok: Any) -> Any:
            raw.Assert(condition=ok, data=[a])
            return raw.Identity(input=a)

        return [x, np.asarray(True)], asserted
    state = _zeros(x, chosen["T"]) if name[0] == "S" else None

    @tf.function
    def inner(a: Any, b: Any) -> Any:
        if state is not None:
            state.assign(a)
            return b, state.read_value()
        return tf.reverse_sequence(a, [1, 2], 1), b

    return [x, y], inner


@program("StatelessIf", attribute="Tcond", dtypes=TRUTHS)
def branches(name: str, chosen: Combination) -> Made:
    condition = chosen["Tcond"]
    truths = [data((), condition, 1, 2), data((), condition, 0, 0)]

    def run(yes: Any, no: Any, a: Any) -> Any:
        spec = tf.TensorSpec(a.shape, a.dtype)
        then = tf.function(lambda v: raw.Neg(x=v)).get_concrete_function(spec)
        other = tf.function(lambda v: raw.ReverseV2(tensor=v, axis=[1])).get_concrete_function(spec)
        how = {"then_branch": then, "else_branch": other, "output_shapes": [a.shape]}
        return [raw.StatelessIf(cond=c, input=[a], Tout=[a.dtype], **how) for c in (yes, no)]

    return [*truths, numbers((2, 3))], run


@program("If", dtypes=DTYPES)
def branches_that_write(name: str, chosen: Combination) -> Made:
    x = data((2, 3), chosen["T"])
    state = _zeros(x, chosen["T"])

    def first(a: Any) -> Any:
        state.assign(a)
        return raw.Identity(input=a)

    def run(n: Any, a: Any) -> Any:
        return [tf.cond(n > k, lambda: first(a), lambda: raw.ReverseV2(tensor=a, axis=[1])) for k in (3, 1)], state

    return [np.asarray(2), x], run


@program("StatelessCase", "While", "StatelessWhile", dtypes=DTYPES)
def bodies(name: str, chosen: Combination) -> Made:
    dtype = chosen["T"]
    x, n = data((3, 2), dtype), np.asarray(2, np.int32)
    state = tf.Variable(0)

    def turned(a: Any) -> Any:
        return raw.ReverseV2(tensor=a, axis=[0])

    if name == "StatelessCase":
        return [x, n], lambda a, k: tf.switch_case(k, [lambda: a, lambda: a[:, :1] + a[:, 1:], lambda: turned(a)][::2] * 2)

    def step(i: Any, a: Any) -> Any:
        if name == "While":
            state.assign_add(1)
        return i + 1, raw.Roll(input=a, shift=[1], axis=[0])

    return [x, n], lambda a, k: tf.while_loop(lambda i, _: i < k, step, [0, a])


# ---- variables -------------------------------------------------------------------------------------------------------


def _written(x: np.ndarray, dtype: str, write: Callable[..., Any], *others: np.ndarray) -> Made:
    state = _zeros(x, dtype)

    def run(value: Any, *given: Any) -> Any:
        state.assign(value)
        extra = write(state.handle, *given)
        return state.read_value(), *(() if extra is None or isinstance(extra, tf.Operation) else [extra])

    return [x, *others], run


@program("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ReadVariableOp", "VariableShape")
def variables(name: str, chosen: Combination) -> Made:
    dtype = chosen.get("dtype", "float32")
    x, y = data((2, 3), dtype), data((2, 3), dtype, seed=1)
    if name == "ReadVariableOp":
        return _written(x, dtype, lambda handle: raw.ReadVariableOp(resource=handle, dtype=typed(dtype)))
    if name == "VariableShape":
        out = typed(chosen["out_type"])
        return _written(x, dtype, lambda handle: raw.VariableShape(input=handle, out_type=out))
    return _written(x, dtype, lambda handle, v: getattr(raw, name)(resource=handle, value=v), y)


@program(*[f"ResourceScatter{how}" for how in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Update")])
def scattered(name: str, chosen: Combination) -> Made:
    dtype, index = chosen["dtype"], chosen["Tindices"]
    x, updates = data((4, 3), dtype, -9, 9), data((2, 3), dtype, 1, 4, seed=1)
    rows = np.asarray([3, 1], index)

    def write(handle: Any, at: Any, given: Any) -> Any:
        getattr(raw, name)(resource=handle, indices=at, updates=given)
        getattr(raw, name)(resource=handle, indices=at[:1], updates=given[0, 0])

    return _written(x, dtype, write, rows, updates)


@program(*[f"ResourceScatterNd{how}" for how in ("Add", "Sub", "Update")])
def scattered_nd(name: str, chosen: Combination) -> Made:
    dtype, index = chosen["T"], chosen["Tindices"]
    x, updates, at = data((4, 3), dtype), data((3,), dtype, seed=1), np.asarray([[3, 1], [0, 2], [1, 1]], index)
    return _written(
        x, dtype, lambda handle, i, given: getattr(raw, name)(ref=handle, indices=i, updates=given) and None, at, updates
    )


@program("ResourceGather", "ResourceGatherNd")
def gathered(name: str, chosen: Combination) -> Made:
    dtype, index = chosen["dtype"], chosen["Tindices"]
    at = np.asarray([[3, 1], [0, 2]], index)

    def read(handle: Any, i: Any) -> Any:
        return getattr(raw, name)(resource=handle, indices=i, dtype=typed(dtype))

    return _written(data((4, 3), dtype), dtype, read, at)


@program("ResourceStridedSliceAssign")
def sliced(name: str, chosen: Combination) -> Made:
    dtype, index = chosen["T"], chosen["Index"]
    bounds = [np.asarray(b, index) for b in ([0, 2], [4, 0], [2, -1])]

    def write(handle: Any, value: Any) -> Any:
        begin, end, strides = map(tf.constant, bounds)
        raw.ResourceStridedSliceAssign(ref=handle, begin=begin, end=end, strides=strides, value=value)

    return _written(data((4, 3), dtype), dtype, write, data((2, 2), dtype, seed=1))


# ---- lists and optionals ---------------------------------------------------------------------------------------------


@program(
    "TensorListReserve", "TensorListGetItem", "TensorListFromTensor", "TensorListStack", "TensorListSetItem",
    "EmptyTensorList", "TensorListPopBack", "TensorListPushBack", "TensorListLength", "TensorListElementShape",
    "TensorListConcatV2", "TensorListGather", "TensorListScatterIntoExistingList", "TensorListSplit",
)  # fmt: skip
def lists(name: str, chosen: Combination) -> Made:
    dtype = chosen.get("element_dtype", "float32")
    kind, shape_type = typed(dtype), chosen.get("shape_type", chosen.get("Tshape", "int32"))
    x, y = data((3, 2), dtype), data((2,), dtype, seed=1)
    of = {"element_dtype": kind}

    def extents(*n: int) -> Any:
        return tf.constant(n, typed(shape_type))

    def stack(handle: Any) -> Any:
        return raw.TensorListStack(input_handle=handle, element_shape=tf.constant([2]), **of)

    def whole(a: Any) -> Any:
        return raw.TensorListFromTensor(tensor=a, element_shape=extents(2))

    def run(a: Any, b: Any) -> Any:
        match name:
            case "TensorListReserve" | "TensorListSetItem":
                handle = raw.TensorListReserve(element_shape=extents(2), num_elements=3, **of)
                return stack(raw.TensorListSetItem(input_handle=handle, index=1, item=b))
            case "TensorListGetItem":
                return raw.TensorListGetItem(input_handle=whole(a), index=1, element_shape=tf.constant([2]), **of)
            case "EmptyTensorList" | "TensorListPushBack":
                handle = raw.EmptyTensorList(element_shape=extents(2), max_num_elements=4, **of)
                for _ in range(2):
                    handle = raw.TensorListPushBack(input_handle=handle, tensor=b)
                return stack(handle)
            case "TensorListPopBack":
                handle, last = raw.TensorListPopBack(input_handle=whole(a), element_shape=tf.constant([2]), **of)
                return last, stack(handle)
            case "TensorListLength":
                return raw.TensorListLength(input_handle=whole(a))
            case "TensorListElementShape":
                return raw.TensorListElementShape(input_handle=whole(a), shape_type=typed(shape_type))
            case "TensorListConcatV2":
                return raw.TensorListConcatV2(
                    input_handle=whole(a), element_shape=extents(2), leading_dims=tf.constant([], tf.int64), **of
                )
            case "TensorListGather":
                return raw.TensorListGather(
                    input_handle=whole(a), indices=tf.constant([2, 0]), element_shape=tf.constant([2]), **of
                )
            case "TensorListScatterIntoExistingList":
                return stack(
                    raw.TensorListScatterIntoExistingList(input_handle=whole(a), tensor=b[None], indices=tf.constant([1]))
                )
            case "TensorListSplit":
                handle = raw.TensorListSplit(
                    tensor=a, element_shape=extents(-1, 2), lengths=tf.constant([1, 2], tf.int64)
                )
                ends = tf.constant([-1, 2])
                return [
                    raw.TensorListGetItem(input_handle=handle, index=i, element_shape=ends, **of) for i in range(2)
                ]
        return stack(whole(a))

    return [x, y], run


@program("OptionalFromValue", "OptionalGetValue", "OptionalNone", dtypes=DTYPES)
def optionals(name: str, chosen: Combination) -> Made:
    x = data((2, 3), chosen["T"])

    def run(a: Any) -> Any:
        if name == "OptionalNone":
            return raw.OptionalHasValue(optional=raw.OptionalNone()), a
        some = raw.OptionalFromValue(components=[a])
        return raw.OptionalGetValue(optional=some, output_types=[a.dtype], output_shapes=[a.shape])

    return [x], run


# ---- random ----------------------------------------------------------------------------------------------------------


@program("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt")
def drawn(name: str, chosen: Combination) -> Made:
    shape = np.asarray([3, 5], chosen["T"])
    seeds = {"seed": 3, "seed2": 7}
    if name == "RandomUniformInt":
        low, high = (np.asarray(v, chosen["Tout"]) for v in (-5, 11))
        return [], lambda: raw.RandomUniformInt(shape=shape, minval=low, maxval=high, **seeds)
    return [], lambda: getattr(raw, name)(shape=shape, dtype=typed(chosen["dtype"]), **seeds)


@program("RandomGamma", "RandomShuffle", "Multinomial", "StatelessMultinomial", "StatelessShuffle")
def of_values(name: str, chosen: Combination) -> Made:
    seeds = {"seed": 3, "seed2": 7}
    if name == "RandomGamma":
        shape = np.asarray([4], chosen["S"])
        alpha = data((3,), chosen["T"], 0.2, 5)
        return [alpha], lambda a: raw.RandomGamma(shape=shape, alpha=a, **seeds)
    if name == "RandomShuffle":
        return [data((7, 2), chosen["T"])], lambda v: raw.RandomShuffle(value=v, **seeds)
    if name == "StatelessShuffle":
        key, counter, algorithm = np.asarray([5], np.uint64), np.asarray([3, 4], np.uint64), np.asarray(1, np.int32)
        return [data((7, 2), chosen["T"])], lambda v: raw.StatelessShuffle(
            value=v, key=key, counter=counter, alg=algorithm
        )
    logits, out = data((2, 4), chosen["T"]), typed(chosen["output_dtype"])
    if name == "Multinomial":
        return [logits], lambda v: raw.Multinomial(logits=v, num_samples=6, output_dtype=out, **seeds)
    seed = np.asarray([3, 7], chosen["Tseed"])
    return [logits], lambda v: raw.StatelessMultinomial(logits=v, num_samples=6, seed=seed, output_dtype=out)


@program("RngReadAndSkip")
def skipped(name: str, chosen: Combination) -> Made:
    start = np.asarray([5, 6, 7], np.int64)
    state = tf.Variable(start)

    def run(value: Any) -> Any:
        state.assign(value)
        old = raw.RngReadAndSkip(resource=state.handle, alg=tf.constant(1), delta=tf.constant(256, tf.uint64))
        return old, state.read_value()

    return [start], run


@program("Qr")
def factors(name: str, chosen: Combination) -> Made:
    """Whatever the signs of the factors."""
    kind = chosen["T"]
    x = data((2, 4, 3), kind)

    def run(a: Any) -> Any:
        q, r = raw.Qr(input=a)
        return abs(q), abs(r), abs(raw.BatchMatMulV2(x=q, y=r) - a) < 0.05

    return [x], run

