"""Samples of TensorFlow's raw operations: a row says an operation, its operands and its attributes.

Operands that a rule wants to know are constants of the graph, the others its arguments. Dtypes are those for which
TensorFlow has a kernel on the CPU.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from tensorgraft.frontends.tensorflow.rule import EVERY, RULES

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = (*FLOATS, *INTEGERS, "complex64", "complex128", "bool")


LONG = ("SparseTensorDenseMatMul", "DenseBincount")  # whose shapes are int64


class Sample(NamedTuple):
    op: str
    operands: tuple[Any, ...]  # arrays, or lists of them
    attributes: dict[str, Any]

    def __str__(self) -> str:
        shown = ", ".join(f"{np.asarray(x).dtype}{list(np.shape(x))}" for x in self.operands if not isinstance(x, list))
        return f"{self.op}({shown}{', ' if self.attributes else ''}{self.attributes or ''})"

    def names(self) -> list[str]:
        return list(inspect.signature(getattr(tf.raw_ops, self.op)).parameters)[: len(self.operands)]

    def flat(self) -> list[tuple[Any, bool]]:
        """(operand, whether it is an argument of the function)."""
        rows = [v for x in self.operands for v in (x if isinstance(x, list) else [x])]
        row = RULES[self.op]
        constant = {range(len(rows))[i] for i in (*row.known, *row.either) if -len(rows) <= i < len(rows)}
        if row.known is EVERY:
            constant = set(range(len(rows)))
        arrays = [np.asarray(x) for x in rows]
        short = None if self.op in LONG else np.int64
        return [
            (x.astype(np.int32) if i in constant and x.dtype == short else x, i not in constant)
            for i, x in enumerate(arrays)
        ]

    def call(self, flat: list[Any]) -> list[Any]:
        remaining = iter(flat)
        inputs: dict[str, Any] = {}
        for name, x in zip(self.names(), self.operands, strict=True):
            inputs[name] = [next(remaining) for _ in x] if isinstance(x, list) else next(remaining)
        outputs = getattr(tf.raw_ops, self.op)(**inputs, **self.attributes)
        if isinstance(outputs, tf.Tensor):
            return [outputs]
        some = [] if outputs is None or isinstance(outputs, tf.Operation) else list(outputs)
        return some[: WRITTEN.get(self.op)]


@functools.cache
def dtypes_of(op: str) -> frozenset[str]:
    """For which dtypes of its first type attribute the CPU has a kernel."""
    attributes = [a.name for a in op_def_registry.get(op).attr if a.type == "type"]
    found: set[str] = set()
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        if kernel.device_type == "CPU":
            said = {c.name: [tf.as_dtype(t).name for t in c.allowed_values.list.type] for c in kernel.constraint}
            found |= set(said.get(attributes[0], NUMBERS)) if attributes else set(NUMBERS)
    return frozenset(found)


def numbers(shape: Any, dtype: str = "float32", low: float = -3, high: float = 3, seed: int = 0) -> np.ndarray:
    state = np.random.RandomState(zlib.crc32(f"{shape}{dtype}{seed}".encode()) & 0xFFFFFFF)
    wide = state.uniform(low, high, shape)
    kind = tf.as_dtype(dtype).as_numpy_dtype
    if dtype.startswith("complex"):
        return (wide + 1j * state.uniform(low, high, shape)).astype(kind)
    if dtype == "bool":
        return wide > 0
    if dtype.startswith("uint"):
        return np.abs(np.round(wide)).astype(kind)
    return (np.round(wide) if dtype.startswith("int") else wide).astype(kind)


SPECIAL = np.asarray([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 7.0, 1e-3], np.float32)
# where the argument has to lie
RANGES = {
    **dict.fromkeys(["Log", "Sqrt", "Rsqrt", "Lgamma", "Digamma", "Log1p", "Xlogy"], (0.1, 3)),
    **dict.fromkeys(["Acos", "Asin", "Atanh", "Erfinv"], (-0.9, 0.9)),
    "Acosh": (1.1, 3),
    "Pow": (0.2, 3),
    **dict.fromkeys(["Igamma", "Igammac", "Zeta", "Polygamma"], (1.2, 4)),
    "Xlog1py": (0, 3),
}
UNARY = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BesselI0e",
    "BesselI1e",
    "Ceil",
    "ComplexAbs",
    "Conj",
    "Cos",
    "Cosh",
    "Digamma",
    "Elu",
    "Erf",
    "Erfc",
    "Erfinv",
    "Exp",
    "Expm1",
    "Floor",
    "Imag",
    "Inv",
    "Invert",
    "IsFinite",
    "IsInf",
    "IsNan",
    "L2Loss",
    "LeakyRelu",
    "Lgamma",
    "Log",
    "Log1p",
    "LogSoftmax",
    "LogicalNot",
    "Neg",
    "OnesLike",
    "Real",
    "Reciprocal",
    "Relu",
    "Relu6",
    "Rint",
    "Round",
    "Rsqrt",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Square",
    "Tan",
    "Tanh",
    "ZerosLike",
    "Angle",
]
BINARY = [
    "Add",
    "AddV2",
    "Atan2",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Complex",
    "Div",
    "DivNoNan",
    "Equal",
    "FloorDiv",
    "FloorMod",
    "Greater",
    "GreaterEqual",
    "Igamma",
    "Igammac",
    "LeftShift",
    "Less",
    "LessEqual",
    "LogicalAnd",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Mod",
    "Mul",
    "MulNoNan",
    "NextAfter",
    "NotEqual",
    "Polygamma",
    "Pow",
    "RealDiv",
    "RightShift",
    "SquaredDifference",
    "Sub",
    "TruncateDiv",
    "TruncateMod",
    "Xdivy",
    "Xlog1py",
    "Xlogy",
    "Zeta",
]
GRADIENTS = [
    "EluGrad",
    "InvGrad",
    "LeakyReluGrad",
    "ReciprocalGrad",
    "Relu6Grad",
    "ReluGrad",
    "RsqrtGrad",
    "SeluGrad",
    "SigmoidGrad",
    "SoftplusGrad",
    "SoftsignGrad",
    "SqrtGrad",
    "TanhGrad",
]
NO_SPECIALS = {"Softmax", "LogSoftmax", "L2Loss", "Softplus", "NextAfter", "Lgamma", "Digamma", "Polygamma", "Zeta"}
NO_SPECIALS |= {"BesselI0e", "BesselI1e", "Igamma", "Igammac"}


# of kernels that are registered for any dtype, or for others than the operation takes
TYPES = dict.fromkeys(("LogicalNot", "LogicalAnd", "LogicalOr"), ("bool",))
TYPES |= {"Complex": ("float32",), "Real": ("complex64",), "Imag": ("complex64",), "Angle": ("complex64",)}
TYPES |= {"LeakyReluGrad": FLOATS, "LeakyRelu": FLOATS, "ComplexAbs": ("complex64",)}
TYPES |= {"Acos": (*FLOATS, "complex64"), "Round": FLOATS}
# of how many results the memory is written: where is no training, or no vectors are asked for
WRITTEN = {"Svd": 1, "SelfAdjointEigV2": 1, "FusedBatchNormV3": 3}


def elementwise() -> Iterator[Sample]:
    for op in (*UNARY, *BINARY, *GRADIENTS):
        low, high = RANGES.get(op, (-3, 3))
        two = op not in UNARY
        for dtype in NUMBERS:
            if dtype not in dtypes_of(op) or dtype not in TYPES.get(op, NUMBERS):
                continue
            x, y = (numbers((3, 4), dtype, low, high, seed) for seed in (0, 1))
            x = np.floor(x) if op == "Polygamma" else x
            if two and dtype in INTEGERS:
                y = np.where(y == 0, 1, y).astype(y.dtype)
                if "Shift" in op:
                    y = np.abs(y).astype(y.dtype)
                if op == "Pow":
                    y = np.abs(y).astype(y.dtype)
            if two and op not in GRADIENTS:
                y = y[:1]
            yield Sample(op, (x, y) if two else (x,), {})
        if "float32" in dtypes_of(op) and "float32" in TYPES.get(op, NUMBERS) and op not in NO_SPECIALS:
            x = SPECIAL if not two else np.repeat(SPECIAL, SPECIAL.size)
            yield Sample(op, (x, np.tile(SPECIAL, SPECIAL.size)) if two else (x,), {})
    f = numbers((2, 3))
    for to in ("float16", "bfloat16", "float64", "int32", "uint8", "bool", "complex64"):
        yield Sample("Cast", (numbers((2, 3), low=0, high=100),), {"DstT": to})
        yield Sample("Cast", (numbers((2, 3), "int64", 0, 100),), {"DstT": to})
    yield Sample("Cast", (numbers((2, 3), "complex64"),), {"DstT": "float32"})
    yield Sample("Bitcast", (f,), {"type": "int32"})
    yield Sample("Bitcast", (numbers((2, 2), "int32"),), {"type": "uint8"})
    yield Sample("Bitcast", (numbers((2, 4), "uint8"),), {"type": "float32"})
    yield Sample("AddN", ([f, f + 1, f],), {})
    yield Sample("BiasAdd", (numbers((2, 3, 4)), numbers((4,))), {})
    yield Sample("BiasAdd", (numbers((2, 3, 4, 4)), numbers((3,))), {"data_format": "NCHW"})
    yield Sample("BiasAddGrad", (numbers((2, 3, 4)),), {})
    yield Sample("BiasAddGrad", (numbers((2, 3, 4, 4)),), {"data_format": "NCHW"})
    yield Sample("SelectV2", (numbers((3,), "bool"), numbers((2, 3)), numbers((1, 3))), {})
    yield Sample("Select", (numbers((2,), "bool"), numbers((2, 3)), numbers((2, 3), seed=1)), {})
    yield Sample("ClipByValue", (f, np.float32(-1), np.float32(1)), {})
    yield Sample("ApproximateEqual", (f, f + np.float32(1e-6)), {"tolerance": 1e-5})
    logits = numbers((3, 4))
    yield Sample("SparseSoftmaxCrossEntropyWithLogits", (logits, np.asarray([0, 3, 1], np.int64)), {})
    yield Sample("SoftmaxCrossEntropyWithLogits", (logits, abs(numbers((3, 4), seed=2))), {})


def reductions() -> Iterator[Sample]:
    for op in ("Sum", "Prod", "Max", "Min", "Mean", "EuclideanNorm"):
        for dtype in ("float32", "float16", "int32", "int64", "uint8", "complex64"):
            if dtype in dtypes_of(op) and not (op == "EuclideanNorm" and "int" in dtype):
                yield Sample(op, (numbers((2, 3, 4), dtype), [np.asarray([0, -1])][0]), {"keep_dims": dtype == "int32"})
        yield Sample(op, (numbers((2, 3)), np.asarray([], np.int32)), {})
        yield Sample(op, (np.asarray([[np.nan, 1], [2, 3]], np.float32), np.asarray(1)), {})
    for op in ("All", "Any"):
        yield Sample(op, (numbers((2, 3, 4), "bool"), np.asarray([1])), {"keep_dims": True})
    for op in ("ArgMax", "ArgMin"):
        yield Sample(op, (numbers((2, 3, 4)), np.asarray(1)), {"output_type": "int32"})
        yield Sample(op, (numbers((2, 9), "int32"), np.asarray(-1)), {})
    for op in ("Cumsum", "Cumprod", "CumulativeLogsumexp"):
        for exclusive, reverse in ((False, False), (True, False), (True, True), (False, True)):
            yield Sample(op, (numbers((2, 4)), np.asarray(-1)), {"exclusive": exclusive, "reverse": reverse})
    yield Sample("L2Loss", (numbers((2, 3)),), {})
    x, segments = numbers((5, 2)), np.asarray([2, 0, 2, -1, 0])
    for op in ("UnsortedSegmentSum", "UnsortedSegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin"):
        for dtype in ("float32", "int32"):
            yield Sample(op, (x.astype(dtype), segments, np.asarray(4)), {})


def shapes() -> Iterator[Sample]:
    x = numbers((2, 3, 4))
    yield Sample("Shape", (x,), {"out_type": "int64"})
    yield Sample("ShapeN", ([x, x[0]],), {})
    yield Sample("Size", (x,), {})
    yield Sample("Rank", (x,), {})
    yield Sample("BroadcastArgs", (np.asarray([2, 1]), np.asarray([3])), {})
    for a, b in (([2, 1], [3]), ([2, 3], [2, 3]), ([1, 3], [2, 1]), ([], [2]), ([4, 1, 3], [2, 1]), ([1, 1], [1])):
        yield Sample("BroadcastGradientArgs", (np.asarray(a, np.int32), np.asarray(b, np.int32)), {})
    yield Sample("Reshape", (x, np.asarray([4, -1])), {})
    yield Sample("Transpose", (x, np.asarray([2, 0, 1])), {})
    yield Sample("ConjugateTranspose", (numbers((2, 3), "complex64"), np.asarray([1, 0])), {})
    yield Sample("ExpandDims", (x, np.asarray(-2)), {})
    yield Sample("Squeeze", (x[:1, :, :1],), {"axis": [0]})
    yield Sample("Squeeze", (x[:1, :, :1],), {})
    yield Sample("BroadcastTo", (x[:, :1], np.asarray([2, 2, 3, 4])), {})
    yield Sample("Tile", (x, np.asarray([2, 1, 3])), {})
    yield Sample("Fill", (np.asarray([2, 3]), np.float32(1.5)), {})
    yield Sample("Range", (np.asarray(1), np.asarray(9), np.asarray(3)), {})
    yield Sample("Range", (np.float32(1), np.float32(-1), np.float32(-0.3)), {})
    yield Sample("LinSpace", (np.float32(1), np.float32(3), np.asarray(7)), {})
    yield Sample("ConcatV2", ([x, x + 1], np.asarray(-1)), {})
    yield Sample("Concat", (np.asarray(1), [x, x + 1]), {})
    yield Sample("ConcatOffset", (np.asarray(1), [np.asarray([2, 3]), np.asarray([2, 5])]), {})
    yield Sample("Pack", ([x, x + 1],), {"axis": -1})
    yield Sample("Unpack", (x,), {"num": 3, "axis": 1})
    yield Sample("Split", (np.asarray(-1), x), {"num_split": 2})
    yield Sample("SplitV", (x, np.asarray([1, -1]), np.asarray(2)), {"num_split": 2})
    yield Sample("ReverseV2", (x, np.asarray([0, -1])), {})
    yield Sample("Reverse", (x, np.asarray([True, False, True])), {})
    yield Sample("Roll", (x, np.asarray([1, -2]), np.asarray([0, 2])), {})
    yield Sample("InvertPermutation", (np.asarray([2, 0, 1]),), {})
    pads = np.asarray([[1, 0], [0, 2], [1, 1]])
    yield Sample("Pad", (x, pads), {})
    yield Sample("PadV2", (x, pads, np.float32(7)), {})
    for mode in ("REFLECT", "SYMMETRIC"):
        yield Sample("MirrorPad", (x, pads), {"mode": mode})
        yield Sample("MirrorPadGrad", (numbers((4, 5, 6)), pads), {"mode": mode})
    image = numbers((2, 4, 6, 8))
    yield Sample("SpaceToBatchND", (image, np.asarray([2, 3]), np.asarray([[1, 1], [0, 0]])), {})
    yield Sample("BatchToSpaceND", (numbers((8, 2, 3, 1)), np.asarray([2, 2]), np.asarray([[0, 1], [1, 0]])), {})
    yield Sample("SpaceToDepth", (image,), {"block_size": 2})
    yield Sample("DepthToSpace", (image,), {"block_size": 2})
    masks = [(0, 0, 0, 0, 0), (1, 2, 0, 0, 0), (0, 0, 0, 0, 4), (0, 0, 2, 0, 1), (0, 0, 0, 2, 1)]
    for begin, end, shrink, new, dots in ((*m[:2], m[4], m[3], m[2]) for m in masks):
        attributes = {"begin_mask": begin, "end_mask": end, "ellipsis_mask": dots, "new_axis_mask": new}
        bounds = (np.asarray([0, 2, 1]), np.asarray([2, -3, 3]), np.asarray([1, -1, 2]))
        bounds = bounds if dots == new == 0 else (bounds[0], np.asarray([2, 3, 3]), np.asarray([1, 1, 2]))
        yield Sample("StridedSlice", (x, *bounds), {**attributes, "shrink_axis_mask": shrink})
    bounds = (np.asarray([0, -1]), np.asarray([2, 0]), np.asarray([1, -2]))
    yield Sample("StridedSliceGrad", (np.asarray([2, 3, 4]), *bounds, numbers((2, 1, 4))), {})
    yield Sample("TensorStridedSliceUpdate", (x, *bounds, numbers((2, 1, 4))), {})
    yield Sample("Slice", (x, np.asarray([0, 1, 2]), np.asarray([-1, 2, 1])), {})


def indexing() -> Iterator[Sample]:
    x, places = numbers((4, 3, 2)), np.asarray([[0, 3], [2, 2]])
    yield Sample("Gather", (x, places), {})
    for axis in (0, 1, -1):
        yield Sample("GatherV2", (x, np.asarray([[0, 1], [1, 0]]), np.asarray(axis)), {})
    yield Sample("GatherV2", (x, np.asarray([[0, 1], [2, 0], [1, 1], [0, 0]]), np.asarray(1)), {"batch_dims": 1})
    yield Sample("GatherV2", (x, np.asarray([[0, 1], [1, 0], [1, 1], [0, 0]]), np.asarray(2)), {"batch_dims": 1})
    yield Sample("GatherNd", (x, np.asarray([[0, 1], [3, 2]])), {})
    yield Sample("GatherNd", (x, np.asarray([[[0, 1, 1]], [[3, 2, 0]]])), {})
    nd, rows = np.asarray([[0, 1], [3, 2], [0, 1]], np.int32), numbers((3, 2))
    yield Sample("ScatterNd", (nd, rows, np.asarray([4, 3, 2])), {})
    for name in ("Add", "Sub", "Min", "Max"):
        yield Sample(f"TensorScatter{name}", (x, nd, rows), {})
    yield Sample("TensorScatterUpdate", (x, nd[:2], rows[:2]), {})
    for axis in (-1, 0, 1):
        yield Sample("OneHot", (places, np.asarray(4), np.float32(2), np.float32(-1)), {"axis": axis})
    yield Sample("Where", (numbers((3, 4)) > 0,), {})
    yield Sample("TopKV2", (numbers((2, 7)), np.asarray(3)), {})


def matrices() -> Iterator[Sample]:
    a, b = numbers((3, 4)), numbers((4, 2))
    yield Sample("MatMul", (a, b), {})
    yield Sample("MatMul", (a.T.copy(), b.T.copy()), {"transpose_a": True, "transpose_b": True})
    yield Sample("MatMul", (numbers((2, 3), "int32"), numbers((3, 2), "int32")), {})
    yield Sample("BatchMatMulV2", (numbers((2, 1, 3, 4)), numbers((5, 4, 2))), {})
    yield Sample("BatchMatMulV2", (numbers((2, 4, 3), "complex64"), numbers((2, 4, 2), "complex64")), {"adj_x": True})
    for equation, shapes in {
        "ij,jk->ik": ((2, 3), (3, 4)),
        "...ij,...jk->...ik": ((5, 2, 3), (1, 3, 4)),
        "bhqd,bkhd->bhqk": ((2, 2, 3, 4), (2, 5, 2, 4)),
        "ii->i": ((3, 3),),
        "ij->": ((2, 3),),
        "a,b->ba": ((2,), (3,)),
    }.items():
        yield Sample("Einsum", ([numbers(s) for s in shapes],), {"equation": equation})
    square = numbers((2, 3, 3)) + 4 * np.eye(3, dtype=np.float32)
    symmetric = square @ square.transpose(0, 2, 1)
    yield Sample("MatrixBandPart", (square, np.asarray(1), np.asarray(0)), {})
    yield Sample("MatrixBandPart", (square, np.asarray(-1), np.asarray(1)), {})
    wide = numbers((2, 3, 5))
    for align in ("LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT"):
        band = numbers((2, 4, 3))
        yield Sample("MatrixDiagPartV3", (wide, np.asarray([-1, 2]), np.float32(9)), {"align": align})
        yield Sample("MatrixSetDiagV3", (wide, band, np.asarray([-1, 2])), {"align": align})
        yield Sample(
            "MatrixDiagV3", (band, np.asarray([-1, 2]), np.asarray(3), np.asarray(5), np.float32(7)), {"align": align}
        )
    yield Sample("MatrixDiagPartV3", (wide, np.asarray(1), np.float32(0)), {})
    yield Sample("MatrixDiagV3", (numbers((2, 3)), np.asarray(-1), np.asarray(-1), np.asarray(-1), np.float32(0)), {})
    yield Sample("MatrixDiag", (numbers((2, 3)),), {})
    yield Sample("MatrixDiagPart", (square,), {})
    yield Sample("Diag", (numbers((2, 2)),), {})
    yield Sample("DiagPart", (numbers((2, 3, 2, 3)),), {})
    yield Sample("Cholesky", (symmetric,), {})
    for dtype in ("complex64", "complex128"):
        z = numbers((2, 3, 3), dtype) + (4 * np.eye(3)).astype(dtype)
        yield Sample("Cholesky", (z @ np.conj(z.transpose(0, 2, 1)),), {})
    yield Sample("MatrixInverse", (square,), {"adjoint": True})
    yield Sample("MatrixSolve", (square, numbers((2, 3, 2))), {})
    yield Sample("MatrixTriangularSolve", (square, numbers((2, 3, 2))), {"lower": False, "adjoint": True})
    yield Sample("MatrixDeterminant", (square,), {})
    yield Sample("LogMatrixDeterminant", (square,), {})
    yield Sample("Svd", (wide,), {"compute_uv": False})
    yield Sample("SelfAdjointEigV2", (symmetric,), {"compute_v": False})
    yield Sample("Cross", (numbers((2, 3)), numbers((2, 3), seed=1)), {})


def windows() -> Iterator[Sample]:
    x, w = numbers((2, 7, 6, 4)), numbers((3, 2, 4, 5))
    for padding, strides, dilations in (("SAME", 2, 1), ("VALID", 1, 2), ("SAME", 1, 1)):
        how = {"padding": padding, "strides": [1, strides, strides, 1], "dilations": [1, dilations, dilations, 1]}
        d = tf.raw_ops.Conv2D(input=x, filter=w, **how).numpy()
        yield Sample("Conv2D", (x, w), how)
        if dilations > 1:
            continue
        yield Sample("Conv2DBackpropInput", (np.asarray(x.shape), w, d), how)
        yield Sample("Conv2DBackpropFilter", (x, np.asarray(w.shape), d), how)
        deep = numbers((3, 2, 4, 2))
        d = tf.raw_ops.DepthwiseConv2dNative(input=x, filter=deep, **how).numpy()
        yield Sample("DepthwiseConv2dNative", (x, deep), how)
        yield Sample("DepthwiseConv2dNativeBackpropInput", (np.asarray(x.shape), deep, d), how)
        yield Sample("DepthwiseConv2dNativeBackpropFilter", (x, np.asarray(deep.shape), d), how)
    grouped = {"padding": "SAME", "strides": [1, 1, 1, 1]}
    yield Sample("Conv2D", (x, numbers((3, 3, 2, 6))), grouped)
    explicit = {"padding": "EXPLICIT", "strides": [1, 1, 1, 1], "explicit_paddings": [0, 0, 1, 0, 2, 1, 0, 0]}
    yield Sample("Conv2D", (x, w), explicit)
    v, f = numbers((1, 4, 5, 4, 2)), numbers((2, 2, 3, 2, 3))
    how = {"padding": "SAME", "strides": [1, 2, 1, 1, 1]}
    d = tf.raw_ops.Conv3D(input=v, filter=f, **how).numpy()
    yield Sample("Conv3D", (v, f), how)
    yield Sample("Conv3DBackpropInputV2", (np.asarray(v.shape), f, d), how)
    yield Sample("Conv3DBackpropFilterV2", (v, np.asarray(f.shape), d), how)
    for padding in ("SAME", "VALID"):
        how = {"padding": padding, "ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1]}
        y = tf.raw_ops.MaxPool(input=x, **how).numpy()
        yield Sample("MaxPool", (x,), how)
        yield Sample("MaxPoolGrad", (x, y, numbers(y.shape)), how)
        yield Sample("AvgPool", (x,), how)
        yield Sample("AvgPoolGrad", (np.asarray(x.shape), numbers(y.shape)), how)
        how = {"padding": padding, "ksize": [1, 2, 3, 2, 1], "strides": [1, 2, 1, 2, 1]}
        y = tf.raw_ops.MaxPool3D(input=v, **how).numpy()
        yield Sample("MaxPool3D", (v,), how)
        yield Sample("MaxPool3DGrad", (v, y, numbers(y.shape)), how)
        yield Sample("AvgPool3D", (v,), how)
        yield Sample("AvgPool3DGrad", (np.asarray(v.shape), numbers(y.shape)), how)
    scale, offset, mean, variance = (numbers((4,), low=0.5, high=2, seed=i) for i in range(4))
    for training in (True, False):
        how = {"is_training": training, "epsilon": 1e-3}
        extra = {"exponential_avg_factor": 0.7} if training else {}
        yield Sample("FusedBatchNormV3", (x, scale, offset, mean, variance), {**how, **extra})
        saved = tf.raw_ops.FusedBatchNormV3(x=x, scale=scale, offset=offset, mean=mean, variance=variance, **how)
        reserved = [saved[i].numpy() for i in (3, 4, 5)]
        yield Sample("FusedBatchNormGradV3", (numbers(x.shape, seed=5), x, scale, *reserved), how)


def randoms() -> Iterator[Sample]:
    seed = np.asarray([3, -5], np.int64)
    yield Sample("StatelessRandomGetKeyCounter", (seed,), {})
    key, counter = (x.numpy() for x in tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed))
    counter = np.asarray([2**64 - 1, 7], np.uint64)  # of which the low part overflows
    for name in ("RandomUniform", "RandomNormal", "TruncatedNormal"):
        for dtype in FLOATS:
            operands = (np.asarray([5, 3], np.int32), key, counter, np.asarray(1, np.int32))
            yield Sample(f"Stateless{name}V2", operands, {"dtype": dtype})
    yield Sample("StatelessRandomUniform", (np.asarray([7]), seed), {"dtype": "float32"})
    for dtype in ("int32", "int64", "uint32", "uint64"):
        operands = (np.asarray([7], np.int32), key, counter, np.asarray(1, np.int32))
        yield Sample("StatelessRandomUniformFullIntV2", operands, {"dtype": dtype})
    for dtype in ("int32", "int64"):
        bounds = np.asarray(-4, dtype), np.asarray(9, dtype)
        yield Sample("StatelessRandomUniformIntV2", (*operands, *bounds), {})


def signals() -> Iterator[Sample]:
    z, x = numbers((2, 4, 6), "complex64"), numbers((2, 4, 6))
    for end, length in (("", [5]), ("2D", [3, 5])):
        yield Sample(f"FFT{end}", (z,), {})
        yield Sample(f"IFFT{end}", (z,), {})
        yield Sample(f"RFFT{end}", (x, np.asarray(length, np.int32)), {})
        yield Sample(f"IRFFT{end}", (z, np.asarray(length)), {})
    image, size = numbers((2, 5, 4, 3)), np.asarray([7, 3])
    for corners, centres in ((False, False), (True, False), (False, True)):
        how = {"align_corners": corners, "half_pixel_centers": centres}
        for name in ("Bilinear", "Bicubic", "NearestNeighbor"):
            yield Sample(f"Resize{name}", (image, size), how)
        for name in ("Bilinear", "Bicubic"):
            yield Sample(f"Resize{name}Grad", (numbers((2, 7, 3, 3)), image), how)
        yield Sample("ResizeNearestNeighborGrad", (numbers((2, 7, 3, 3)), np.asarray([5, 4])), how)
    wide = numbers((2, 3, 3, 7))
    how = {"depth_radius": 2, "bias": 1.5, "alpha": 0.3, "beta": 0.7}
    yield Sample("LRN", (wide,), how)
    y = tf.raw_ops.LRN(input=wide, **how).numpy()
    yield Sample("LRNGrad", (numbers(wide.shape, seed=3), wide, y), how)
    for narrow in (False, True):
        how = {"num_bits": 4, "narrow_range": narrow}
        bounds = np.float32(-1.3), np.float32(2.1)
        yield Sample("FakeQuantWithMinMaxArgs", (x,), {**how, "min": -1.3, "max": 2.1})
        yield Sample("FakeQuantWithMinMaxArgsGradient", (x, x), {**how, "min": -1.3, "max": 2.1})
        yield Sample("FakeQuantWithMinMaxVars", (x, *bounds), how)
        yield Sample("FakeQuantWithMinMaxVarsGradient", (x, x, *bounds), how)


def segments() -> Iterator[Sample]:
    x, ids = numbers((5, 2)), np.asarray([0, 0, 2, 2, 3])
    for name in ("Sum", "Prod", "Max", "Min", "Mean"):
        yield Sample(f"Segment{name}", (x, ids), {})
    rows = np.asarray([4, 0, 1], np.int32)
    yield Sample("SparseSegmentSum", (x, rows, np.asarray([0, 0, 1])), {})
    yield Sample("SparseSegmentMean", (x, rows, np.asarray([0, 0, 1])), {})
    yield Sample("Bucketize", (numbers((3, 4)),), {"boundaries": [-1.0, 0.5, 2.0]})
    ordered = np.sort(numbers((2, 5)), axis=1)
    for name in ("LowerBound", "UpperBound"):
        yield Sample(name, (ordered, np.concatenate([ordered[:, 2:3], numbers((2, 3))], 1)), {})
    counted = np.asarray([1, 3, 1, 0, 9])
    yield Sample("DenseBincount", (counted, np.asarray(5), numbers((5,))), {})
    yield Sample(
        "DenseBincount",
        (np.asarray([[1, 1], [0, 3]]), np.asarray(4), np.asarray([], np.float32)),
        {"binary_output": True},
    )
    yield Sample("Unique", (np.asarray([4, 1, 4, 2, 1]),), {})
    yield Sample("ListDiff", (np.asarray([4, 1, 3, 2]), np.asarray([1, 2])), {})
    yield Sample("DynamicPartition", (x, np.asarray([1, 0, 1, 2, 0])), {"num_partitions": 3})
    yield Sample(
        "DynamicStitch", ([np.asarray([0, 3], np.int32), np.asarray([[1], [3]], np.int32)], [x[:2], x[2:4, None]]), {}
    )
    places = np.asarray([[0, 1], [2, 0]], np.int32)
    yield Sample("SparseToDense", (places, np.asarray([3, 2]), x[0], np.float32(-1)), {})
    sparse = (places.astype(np.int64), x[1], np.asarray([3, 2], np.int64))
    yield Sample("SparseTensorDenseMatMul", (*sparse, numbers((2, 4))), {})
    yield Sample("SparseTensorDenseMatMul", (*sparse, numbers((4, 3))), {"adjoint_a": True, "adjoint_b": True})


AREAS = {
    "elementwise": elementwise,
    "reductions": reductions,
    "shapes": shapes,
    "indexing": indexing,
    "matrices": matrices,
    "windows": windows,
    "randoms": randoms,
    "signals": signals,
    "segments": segments,
}
