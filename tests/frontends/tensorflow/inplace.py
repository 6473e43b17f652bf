"""What TensorFlow does in place, as programs: values, slices, gradients that writes cut, tracing, dtypes.

Each row is a function of a `Row`, which hands it variables that live as long as the row's `tf.function`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


class Row:
    """A program, with variables of its own: made at its first trace, the same ones at each call."""

    def __init__(self, program: Callable[[Row], Any]) -> None:
        self.program = program
        self.variables: list[tf.Variable] = []

    def __call__(self, nought: tf.Tensor) -> Any:
        self._next, self.nought = 0, nought  # with which nothing is a constant
        return self.program(self)

    def variable(self, value: Any, **kwargs: Any) -> tf.Variable:
        if self._next == len(self.variables):
            with tf.init_scope():
                self.variables.append(tf.Variable(value, **kwargs))
        self._next += 1
        return self.variables[self._next - 1]


ROWS: dict[str, Callable[[Row], Any]] = {}


def row(title: str) -> Callable[[Callable[[Row], Any]], Callable[[Row], Any]]:
    def register(fn: Callable[[Row], Any]) -> Callable[[Row], Any]:
        ROWS[title] = fn
        return fn

    return register


def derivatives(target: Callable[[], Any], sources: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch([s for s in sources if not isinstance(s, tf.Variable)])
        y = target()
    return tape.gradient(y, sources)


# ---- indexing by assignment --------------------------------------------------------------------------------------


@row("x[0]=.. on a tensor")
def _(r: Row) -> Any:
    x = tf.constant([1.0, 2.0])
    x[0] = 3.0
    return x


@row("v[0]=.. on a variable")
def _(r: Row) -> Any:
    v = r.variable([1.0, 2.0])
    v[0] = 3.0


@row("y=x; y+=1 (rebinds)")
def _(r: Row) -> Any:
    x = tf.constant([1.0, 2.0])
    y = x
    y += 1.0
    return x, y


@row("w=v; w+=1 on a variable")
def _(r: Row) -> Any:
    v = r.variable([1.0, 2.0])
    w = v
    w += 1.0
    return v.read_value()


# ---- assignment --------------------------------------------------------------------------------------------------


@row("reads and slices taken before a write are snapshots")
def _(r: Row) -> Any:
    v = r.variable([1.0, 2.0])
    read, part = v.read_value(), v[0:1]
    v.assign([5.0, 6.0])
    return read, part, v.read_value()


@row("v.value(), then assign_add")
def _(r: Row) -> Any:
    v = r.variable(np.arange(4, dtype="f4"))
    read = v.value()
    v.assign_add([1.0] * 4)
    return read, v.read_value()


def sliced(title: str, start: Any, write: Callable[[tf.Variable], Any], **kwargs: Any) -> None:
    @row(title)
    def _(r: Row) -> Any:
        v = r.variable(start, **kwargs)
        write(v)
        return v.read_value()


ZEROS = np.zeros((3, 3), "f4")


def _nested(v: tf.Variable) -> None:
    part = v[0]
    part[1].assign(1.0)


sliced("v[0].assign(7)", [1.0, 2.0], lambda v: v[0].assign(7.0))
sliced("v[1:, ::2].assign", ZEROS, lambda v: v[1:, ::2].assign([[1.0, 2.0], [3.0, 4.0]]))
sliced("v[::-1,0].assign", ZEROS, lambda v: v[::-1, 0].assign([1.0, 2.0, 3.0]))
sliced("v[int array].assign", ZEROS[0], lambda v: v[tf.constant([0, 2])].assign([1.0, 2.0]))
sliced("v[bool mask].assign", ZEROS[0], lambda v: v[tf.constant([True, False, True])].assign([1.0, 2.0]))
sliced("v[0][1].assign", ZEROS, _nested)
sliced("v[0].assign(scalar)", ZEROS, lambda v: v[0].assign(1.0))
sliced("v[0:2].assign(row)", ZEROS, lambda v: v[0:2].assign(tf.ones((3,))))
sliced("v.assign(scalar)", ZEROS, lambda v: v.assign(1.0))
sliced("x[0].assign on a tensor", [1.0], lambda v: tf.constant([1.0, 2.0])[0].assign(3.0))
sliced("transpose(v).assign", ZEROS[:2], lambda v: tf.transpose(v).assign(np.ones((3, 2))))
sliced("int variable, floats", [1, 2], lambda v: v.assign([1.7, 2.2]))
sliced("int variable, float tensor", [1, 2], lambda v: v.assign(tf.constant([1.7, 2.2])))
sliced("float32 variable, float64 tensor", [1.0, 2.0], lambda v: v.assign(tf.constant([1.0, 2.0], tf.float64)))
sliced("float32 variable, float64 ndarray", [1.0, 2.0], lambda v: v.assign(np.array([1.0, 2.0])))
sliced("another shape", [1.0, 2.0], lambda v: v.assign([1.0, 2.0, 3.0]))
sliced("another shape of [None]", [1.0, 2.0], lambda v: v.assign([1.0, 2.0, 3.0]), shape=tf.TensorShape([None]))


# ---- gradients ---------------------------------------------------------------------------------------------------

ONE_TWO = [1.0, 2.0]


@row("v.assign(x*x); y=sum(v*v)")
def _(r: Row) -> Any:
    v, x = r.variable(ONE_TWO), tf.constant([3.0, 4.0])

    def f() -> Any:
        v.assign(x * x)
        return tf.reduce_sum(v * v)

    return derivatives(f, [x, v])


@row("r=v.assign(x*x); y=sum(r*r)")
def _(r: Row) -> Any:
    v, x = r.variable(ONE_TWO), tf.constant([3.0, 4.0])

    def f() -> Any:
        q = v.assign(x * x)
        return tf.reduce_sum(q * q)

    return derivatives(f, [x, v])


@row("used, assigned, used")
def _(r: Row) -> Any:
    v, x = r.variable(ONE_TWO), tf.constant([3.0, 4.0])

    def f() -> Any:
        before = tf.reduce_sum(v * v * v)
        v.assign(x)
        return before + tf.reduce_sum(v * 10.0)

    return derivatives(f, [x, v])


@row("a=v*v; v.assign_add(1); y=sum(a+v)")
def _(r: Row) -> Any:
    v = r.variable(ONE_TWO)

    def f() -> Any:
        a = v * v
        v.assign_add([1.0, 1.0])
        return tf.reduce_sum(a + v)

    return derivatives(f, [v])


@row("tape, then assign, then gradient")
def _(r: Row) -> Any:
    v = r.variable([2.0, 3.0])
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(v * v)
        v.assign([100.0, 100.0])
    return tape.gradient(y, v)


@row("v[1].assign(x)")
def _(r: Row) -> Any:
    v, x = r.variable([1.0, 2.0, 3.0]), tf.constant(5.0)

    def f() -> Any:
        v[1].assign(x)
        return tf.reduce_sum(v * v)

    return derivatives(f, [x, v])


@row("v.scatter_nd_update")
def _(r: Row) -> Any:
    v, x = r.variable([1.0, 2.0, 3.0]), tf.constant([5.0])

    def f() -> Any:
        v.scatter_nd_update([[1]], x)
        return tf.reduce_sum(v * v)

    return derivatives(f, [x, v])


def functional(title: str, update: Callable[[Any, Any], Any]) -> None:
    @row(title)
    def _(r: Row) -> Any:
        z, x = tf.constant([1.0, 2.0, 3.0]), tf.constant([5.0])

        def f() -> Any:
            w = update(z, x)
            return tf.reduce_sum(w * w)

        return derivatives(f, [x, z])


for kind in ("update", "add", "sub", "max", "min"):
    functional(
        f"tf.tensor_scatter_nd_{kind}", lambda z, x, kind=kind: getattr(tf, f"tensor_scatter_nd_{kind}")(z, [[1]], x)
    )
functional(
    "TensorStridedSliceUpdate",
    lambda z, x: tf.raw_ops.TensorStridedSliceUpdate(input=z, begin=[1], end=[2], strides=[1], value=x),
)

COLUMN = [[1.0], [2.0], [3.0]]
for kind in ("InplaceUpdate", "InplaceAdd", "InplaceSub"):

    @row(f"{kind}: result")
    def _(r: Row, kind: str = kind) -> Any:
        own = tf.constant(COLUMN) * float(len(kind) + ord(kind[7])) + r.nought  # TensorFlow would share equal ones
        return getattr(tf.raw_ops, kind)(x=own, i=[1], v=[[5.0]])

    @row(f"{kind}: gradient")
    def _(r: Row, kind: str = kind) -> Any:
        z, x = tf.constant(COLUMN), tf.constant([[5.0]])

        def f() -> Any:
            w = getattr(tf.raw_ops, kind)(x=z, i=[1], v=x)
            return tf.reduce_sum(w * w)

        return derivatives(f, [x, z])


@row("InplaceUpdate of a constant")
def _(r: Row) -> Any:
    return tf.raw_ops.InplaceUpdate(x=tf.constant([0.0, 0.0, 0.0]), i=[0], v=[5.0])


@row("InplaceUpdate(v.read_value())")
def _(r: Row) -> Any:
    v = r.variable(np.arange(4, dtype="f4"))
    tf.raw_ops.InplaceUpdate(x=v.read_value(), i=[0], v=[99.0])
    return v.read_value()


@row("y of x rebound: the derivative by what is in the middle")
def _(r: Row) -> Any:
    with tf.GradientTape() as tape:
        x = r.variable(3.0)
        x = x * x
        y = x * 2.0
    return tape.gradient(y, x)


# ---- tracing -----------------------------------------------------------------------------------------------------


@row("order: a=v; v.assign(x); b=v; v[0].assign(9)")
def _(r: Row) -> Any:
    v = r.variable(ONE_TWO)
    a = v + 0.0
    v.assign([5.0, 6.0])
    b = v + 0.0
    v[0].assign(9.0)
    return a, b, v.read_value()


@row("gradient through assign, zeros for what is cut")
def _(r: Row) -> Any:
    v, x = r.variable(ONE_TWO), tf.constant([5.0, 6.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        v.assign(x * x)
        y = tf.reduce_sum(v * v)
    return tape.gradient(y, x, unconnected_gradients="zero")


@row("a variable made in the function at each call")
def _(r: Row) -> Any:
    return tf.Variable([5.0, 6.0]).assign_add([1.0, 1.0])


@row("assign in tf.cond")
def _(r: Row) -> Any:
    v, out = r.variable(ONE_TWO), []
    for x in (tf.constant([5.0, 6.0]), tf.constant([-5.0, -14.0])):
        tf.cond(tf.reduce_sum(x) + r.nought > 0, lambda x=x: v.assign(x), lambda x=x: v.assign(-x))
        out.append(v.read_value())
    return out


@row("assign_add in a loop")
def _(r: Row) -> Any:
    v = r.variable([0.0, 0.0])
    for _ in tf.range(3):
        v.assign_add([1.0, 1.0])
    return v.read_value()


@row("assign, slice-assign, scatter_nd_add")
def _(r: Row) -> Any:
    v = r.variable(ONE_TWO)
    v.assign([5.0, 6.0])
    v[0].assign(3.0)
    v.scatter_nd_add([[1]], [1.0])
    return v.read_value()


@row("tensor_scatter_nd_update and TensorStridedSliceUpdate")
def _(r: Row) -> Any:
    x = tf.tensor_scatter_nd_update(tf.constant([5.0, 6.0]), [[0]], [7.0])
    return tf.raw_ops.TensorStridedSliceUpdate(input=x, begin=[1], end=[2], strides=[1], value=[8.0])


# ---- dtypes ------------------------------------------------------------------------------------------------------

DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
    *("uint64", "complex64", "complex128", "bool", "float8_e4m3fn", "float8_e5m2"),
)
NARROW = DTYPES[-4:]  # for which TensorFlow has no kernel but that of assign


def updates(r: Row, name: str) -> Any:
    dtype = getattr(tf, name, None) or getattr(tf.dtypes.experimental, name)
    v = r.variable(np.zeros(3, dtype.as_numpy_dtype))
    if name in NARROW:
        v.assign(np.asarray([1, 0, 3], dtype.as_numpy_dtype))
        return v.read_value()
    z = tf.cast(tf.constant([1.0, 0.0, 3.0]) + r.nought, dtype)
    v.assign(z)
    v[1:2].assign(z[:1])
    added: Any = () if dtype == tf.bool else (tf.tensor_scatter_nd_add(z, [[1]], z[:1]),)
    return (
        *added,
        tf.tensor_scatter_nd_update(z, [[1]], z[:1]),
        tf.raw_ops.TensorStridedSliceUpdate(input=z, begin=[1], end=[2], strides=[1], value=z[:1]),
        tf.where([True, False, True], z, z),
        v.read_value(),
    )


for name in DTYPES:
    row(f"dtype {name}")(lambda r, name=name: updates(r, name))

# Those of the tables that no graph can say, or that are a race in one.
OUTSIDE = {
    "TensorFlow has assign alone for them, and not every backend has arrays of them": (
        "dtype int4",
        "dtype uint4",
        "dtype string",
    ),
    "arrays of the host that share memory with eager tensors": (
        "mutate x.numpy() aliases the tensor?",
        "mutate numpy source after convert_to_tensor",
        "tnp.asarray aliases?",
        "InplaceUpdate(x): visible via numpy()/np.asarray",
        "DLPack round trip shares memory (tf->torch->tf)",
        "python-scalar constant cache poisoned by InplaceUpdate?",
    ),
    "kernels that write into buffers of eager tensors that others hold": (
        "InplaceUpdate(x): visible via reshape / identity / slice / squeeze",
        "InplaceUpdate(x) after tf.Variable(x)",
        "tape saves x by reference: mutate before gradient() -> corrupted",
        "tf.function(InplaceUpdate(arg)): caller tensor mutated?",
    ),
    "a read beside a raw in-place operation, which TensorFlow's executor runs before it or after it": (
        "tf.function: read after InplaceUpdate w/o control dep",
    ),
}
