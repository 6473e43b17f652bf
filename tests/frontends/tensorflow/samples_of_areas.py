"""Samples of raw operations, area by area: of what `samples` has not, with operands of exactly the dtypes given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.frontends.tensorflow import samples
from tests.frontends.tensorflow.samples import FLOATS, INTEGERS, Sample, dtypes_of, numbers

from tensorgraft.frontends.tensorflow.rule import EVERY, RULES
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import KERNELS

# whose results have shapes that depend on values: where a backend traces all that it is given, these are an error
BY_VALUES = {*KERNELS, "Unique", "UniqueWithCounts", "DynamicStitch", "ParallelDynamicStitch"}
BY_VALUES |= {name for name, row in RULES.items() if "Segment" in name and not row.folds}


class Case(Sample):
    """A sample whose constants stay as they are."""

    __slots__ = ()

    def flat(self) -> list[tuple[Any, bool]]:
        rows = [np.asarray(v) for x in self.operands for v in (x if isinstance(x, list) else [x])]
        row = RULES[self.op]
        if row.known is EVERY or row.either is EVERY:
            return [(x, False) for x in rows]
        constant = {range(len(rows))[i] for i in (*row.known, *row.either) if -len(rows) <= i < len(rows)}
        return [(x, i not in constant) for i, x in enumerate(rows)]

    def call(self, flat: list[Any]) -> list[Any]:
        return samples.tf.nest.flatten(super().call(flat))


def case(op: str, *operands: Any, **attributes: Any) -> Case:
    return Case(op, operands, attributes)


def ints(*values: Any) -> np.ndarray:
    return np.asarray(values, np.int64).reshape(-1)


def i32(x: Any) -> np.ndarray:
    return np.asarray(x, np.int32)


def i64(x: Any) -> np.ndarray:
    return np.asarray(x, np.int64)


def f32(x: Any) -> np.ndarray:
    return np.asarray(x, np.float32)


def special() -> Iterator[Sample]:
    ranges = {"Ndtri": (0.01, 0.99), "Spence": (0, 5), "Expint": (-3, 60), "Dawsn": (-60, 60)}
    ranges |= dict.fromkeys(("BesselK0", "BesselK1", "BesselK0e", "BesselK1e", "BesselY0", "BesselY1"), (0.05, 20))
    edges = np.asarray([0, -0.0, 1, 2, 0.5, -1, np.nan, np.inf, -np.inf, 100], np.float64)
    for op in [
        "BesselI0",
        "BesselI1",
        "BesselJ0",
        "BesselJ1",
        "BesselK0",
        "BesselK0e",
        "BesselK1",
        "BesselK1e",
        "BesselY0",
        "BesselY1",
        "Dawsn",
        "Expint",
        "FresnelCos",
        "FresnelSin",
        "Ndtri",
        "Spence",
    ]:
        for dtype in ("float32", "float64", "float16"):
            if dtype in dtypes_of(op):
                yield case(op, numbers((40,), dtype, *ranges.get(op, (-12, 12))))
        if op in ("Ndtri", "Spence", "FresnelCos", "BesselK0"):
            yield case(op, edges[:5])
    for dtype in ("float32", "float64"):
        a, b, x = (numbers((5, 6), dtype, low, high, i) for i, (low, high) in enumerate([(0.1, 9), (0.2, 7), (0, 1)]))
        yield case("Betainc", a, b, x)
        yield case("IgammaGradA", a, b)
        yield case("RandomGammaGrad", a, b)
    for dtype in INTEGERS:
        yield case("PopulationCount", numbers((9,), dtype, -100, 100))


def segments() -> Iterator[Sample]:
    ids, x = i32([0, 0, 1, 3, 3]), numbers((5, 3))
    for op in ("SegmentSum", "SegmentMean", "SegmentProd", "SegmentMax", "SegmentMin"):
        for dtype in (*FLOATS, "int32", "uint8", "complex64"):
            if dtype in dtypes_of(op):
                yield case(op, numbers((5, 3), dtype), i64(ids))
        yield case(op, x[:0], ids[:0])
    places = i32([2, 0, 0, 4, 1])
    for kind in ("Sum", "Mean", "SqrtN"):
        for dtype in ("float32", "float64", "bfloat16"):
            yield case(f"SparseSegment{kind}", numbers((5, 3), dtype), places, ids)
        yield case(f"SparseSegment{kind}WithNumSegments", x, i64(places), ids, i32(6))
        d = numbers((4, 3))
        yield case(f"SparseSegment{kind}Grad", d, places, ids, i32(7))
        yield case(f"SparseSegment{kind}GradV2", d, places, ids, i32(7))
    values, weights = i32([1, 4, 1, 9, 0]), numbers((5,))
    yield case("Bincount", values, i32(6), weights)
    for dtype in ("int32", "float32", "float64", "int64"):
        yield case("DenseBincount", values, i32(6), np.asarray([], dtype))
        yield case("DenseBincount", i64(values).reshape(1, 5), i64(6), numbers((1, 5), dtype))
    yield case("DenseBincount", values, i32(6), f32([]), binary_output=True)
    yield case("RaggedBincount", i64([0, 2, 2, 5]), values, i32(6), weights)
    yield case("SparseBincount", i64([[0, 1], [0, 2], [2, 0]]), values[:3], i64([3, 4]), i32(6), weights[:3])
    yield case("SparseBincount", i64([[1], [2], [4]]), values[:3], i64([9]), i32(6), f32([]))


AREAS = {**samples.AREAS, "special": special, "segments": segments}


def images() -> Iterator[Sample]:
    x = numbers((2, 5, 7, 3), low=0, high=2)
    ways = [{}, {"align_corners": True}, {"half_pixel_centers": True}]
    for op in ("ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor"):
        for how in ways:
            for size in ([9, 4], [2, 13], [5, 7], [1, 1]):
                yield case(op, x, i32(size), **how)
                d = numbers((2, *size, 3))
                if op == "ResizeNearestNeighbor":
                    yield case(f"{op}Grad", d, i32([5, 7]), **how)
                else:
                    yield case(f"{op}Grad", d, x, **how)
        for dtype in ("uint8", "int32", "float64", "float16"):
            yield case(op, numbers((1, 4, 4, 2), dtype, 0, 100), i32([3, 6]))
    for size in ([9, 4], [2, 3], [5, 7]):
        yield case("ResizeArea", x, i32(size))
        yield case("ResizeArea", x, i32(size), align_corners=True)
    for kind in ["lanczos1", "lanczos3", "lanczos5", "gaussian", "box", "triangle", "keyscubic", "mitchellcubic"]:
        for antialias in (True, False):
            how = {"kernel_type": kind, "antialias": antialias}
            yield case("ScaleAndTranslate", x, i32([4, 9]), f32([0.7, 1.3]), f32([0.5, -1.2]), **how)
            yield case("ScaleAndTranslateGrad", numbers((2, 4, 9, 3)), x, f32([0.7, 1.3]), f32([0.5, -1.2]), **how)
    w, pad = numbers((3, 3, 3, 2)), i32([[0, 0], [1, 1], [2, 0], [0, 0]])
    how = {"mode": "REFLECT", "strides": [1, 1, 1, 1], "padding": "VALID"}
    yield case("FusedPadConv2D", x[:1], pad, w, **how)
    yield case("FusedResizeAndPadConv2D", x[:1], i32([4, 6]), pad, w, **how)
    unit = numbers((2, 4, 5, 3), low=0, high=1)
    for dtype in ("float32", "float64"):
        yield case("RGBToHSV", unit.astype(dtype))
        yield case("HSVToRGB", unit.astype(dtype))
    yield case("RGBToHSV", np.round(unit))
    for op in ("AdjustContrastv2", "AdjustSaturation", "AdjustHue"):
        for factor in (0.3, 1.7, -0.4):
            if factor > 0 or op != "AdjustSaturation":
                yield case(op, unit, f32(factor))
    for padding in ("SAME", "VALID"):
        yield case(
            "ExtractImagePatches", x, ksizes=[1, 2, 3, 1], strides=[1, 2, 1, 1], rates=[1, 1, 2, 1], padding=padding
        )
        yield case(
            "ExtractVolumePatches", numbers((1, 4, 5, 4, 2)), ksizes=[1, 2, 2, 1, 1], strides=[1, 1, 2, 1, 1],
            padding=padding,
        )  # fmt: skip
    moves = f32([[1, 0.2, -2, 0.1, 0.9, 1, 0.01, 0.02], [0.5, 0, 3, 0, 1.5, -4, 0, 0]])
    for mode in ("CONSTANT", "REFLECT", "WRAP", "NEAREST"):
        for kind in ("NEAREST", "BILINEAR"):
            how = {"interpolation": kind, "fill_mode": mode}
            yield case("ImageProjectiveTransformV3", x, moves, i32([6, 8]), f32(7), **how)
            yield case("ImageProjectiveTransformV2", x, moves[:1], i32([5, 7]), **how)
    boxes = f32([[[0.1, 0.2, 0.8, 0.9], [-0.5, 0.3, 0.4, 1.5]], [[0, 0, 1, 1], [0.9, 0.9, 0.1, 0.1]]])
    yield case("DrawBoundingBoxes", x, boxes)
    yield case("DrawBoundingBoxesV2", x, boxes, f32([[3, 4, 5]]))


AREAS["images"] = images


def signal() -> Iterator[Sample]:
    for rank, suffix in ((1, ""), (2, "2D"), (3, "3D")):
        for kind, real in (("complex64", "float32"), ("complex128", "float64")):
            x = numbers((2, 3, 4, 5), kind)
            yield case(f"FFT{suffix}", x)
            yield case(f"IFFT{suffix}", x)
            for length in ([3, 4, 4], [2, 3, 5]):
                size = i32(length[-rank:])
                yield case(f"RFFT{suffix}", numbers((2, 3, 4, 5), real), size, Tcomplex=kind)
                yield case(f"IRFFT{suffix}", x, size, Treal=real)
    wave = numbers((50, 2))
    yield case("AudioSpectrogram", wave, window_size=12, stride=5)
    yield case("AudioSpectrogram", wave, window_size=16, stride=4, magnitude_squared=True)


def decompositions() -> Iterator[Sample]:
    for dtype in ("float32", "float64", "complex64", "complex128"):
        a = numbers((2, 3, 3), dtype) + (4 * np.eye(3)).astype(dtype)
        spd = a @ np.conj(a.swapaxes(-1, -2))
        b = numbers((2, 3, 2), dtype)
        yield (
            case("CholeskyGrad", np.linalg.cholesky(spd), numbers((2, 3, 3), dtype))
            if dtype[0] == "f"
            else case("MatrixLogarithm", spd)
        )
        yield case("Lu", a)
        yield case("Lu", a, output_idx_type="int64")
        yield case("MatrixSquareRoot", spd)
        if dtype[0] == "f":  # too few eigenvectors
            block = np.asarray([[2, 1, 0], [0, 2, 1], [0, 0, 2]], dtype)
            yield case("MatrixSquareRoot", np.stack([block, a[0] @ a[0]]))
        if dtype[0] == "f":
            yield case("SelfAdjointEigV2", spd, compute_v=False)
        for tall in (numbers((2, 5, 3), dtype), numbers((2, 3, 5), dtype)):
            right = numbers((2, tall.shape[1], 2), dtype)
            for fast in (True, False):
                yield case("MatrixSolveLs", tall, right, np.asarray(0.1 if fast else 0.0), fast=fast)
        bands = numbers((2, 2, 3), dtype) + np.asarray(2, dtype)
        for lower in (True, False):
            for adjoint in (True, False):
                yield case("BandedTriangularSolve", bands, b, lower=lower, adjoint=adjoint)
        diagonals = numbers((2, 3, 3), dtype) + np.asarray([[0], [5], [0]]).astype(dtype)
        yield case("TridiagonalSolve", diagonals, b)
        rows = [numbers((2, 1, 3), dtype, seed=i) for i in range(3)]
        yield case("TridiagonalMatMul", *rows, b)
    yield case("SparseMatMul", numbers((2, 3)), numbers((3, 4)))
    yield case("Eig", np.diag(f32([1, 2, 3])), Tout="complex64")


def boxes() -> Iterator[Sample]:
    x = numbers((2, 5, 6, 3), low=0, high=9)
    some = f32([[0.1, 0.2, 0.8, 0.9], [-0.21, 0.3, 0.4, 1.2], [0.9, 0.8, 0.2, 0.1]])
    which = i32([0, 1, 1])
    for method in ("bilinear", "nearest"):
        for crop in ([4, 3], [1, 5]):
            yield case("CropAndResize", x, some, which, i32(crop), method=method, extrapolation_value=2.5)
            d = numbers((3, *crop, 3))
            yield case("CropAndResizeGradImage", d, some, which, i32(x.shape), T="float32", method=method)
            if method == "bilinear":
                yield case("CropAndResizeGradBoxes", d, x, some, which)
    yield case("CropAndResize", x.astype(np.uint8), some, which, i32([2, 2]))
    many = numbers((12, 2), low=0, high=1)
    many = np.concatenate([many, many + numbers((12, 2), low=0.2, high=0.6, seed=3)], 1)
    scores = numbers((12,), low=0, high=1)
    yield case("NonMaxSuppression", many, scores, i32(5), iou_threshold=0.3)
    yield case("NonMaxSuppressionV2", many, scores, i32(5), f32(0.3))
    yield case("NonMaxSuppressionV3", many, scores, i32(12), f32(0.3), f32(0.4))
    for pad in (True, False):
        yield case("NonMaxSuppressionV4", many, scores, i32(9), f32(0.2), f32(0.2), pad_to_max_output_size=pad)
        for sigma in (0.0, 0.5):
            yield case(
                "NonMaxSuppressionV5", many, scores, i32(9), f32(0.6), f32(0.2), f32(sigma), pad_to_max_output_size=pad
            )
    shared = numbers((12, 12), low=0, high=1)
    shared = (shared + shared.T) / 2
    yield case("NonMaxSuppressionWithOverlaps", shared, scores, i32(6), f32(0.5), f32(0.1))
    for q in (1, 2):
        yield case(
            "CombinedNonMaxSuppression",
            np.repeat(many[None, :, None], q, 2), numbers((1, 12, 2), low=0, high=1), i32(4), i32(6), f32(0.3),
            f32(0.2), pad_per_class=q == 1,
        )  # fmt: skip


AREAS |= {"signal": signal, "decompositions": decompositions, "boxes": boxes}


def quantization() -> Iterator[Sample]:
    x = numbers((4, 5), low=-8, high=8)
    low, high = f32(-3.1), f32(5.2)
    for bits, narrow in ((8, False), (4, True)):
        how = {"num_bits": bits, "narrow_range": narrow}
        yield case("FakeQuantWithMinMaxArgs", x, min=-3.1, max=5.2, **how)
        yield case("FakeQuantWithMinMaxArgsGradient", x / 2, x, min=-3.1, max=5.2, **how)
        yield case("FakeQuantWithMinMaxVars", x, low, high, **how)
        yield case("FakeQuantWithMinMaxVars", x, f32(0), f32(0), **how)
        yield case("FakeQuantWithMinMaxVarsGradient", x / 2, x, low, high, **how)
        lows, highs = -numbers((5,), low=0.1, high=6), numbers((5,), low=1, high=6)
        yield case("FakeQuantWithMinMaxVarsPerChannel", x, lows, highs, **how)
        yield case("FakeQuantWithMinMaxVarsPerChannelGradient", x / 2, x, lows, highs, **how)
        for signed in (True, False):
            for given in (True, False):
                flags = {"signed_input": signed, "range_given": given, "narrow_range": narrow and signed}
                y, ends = (x, (low, high)) if signed else (abs(x), (f32(0), high))
                for op in ("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV4"):
                    yield case(op, y, *ends, num_bits=bits, **flags)
                    yield case(op, y, *ends, num_bits=bits, round_mode="HALF_UP", **flags)
                yield case("QuantizeAndDequantizeV3", y, *ends, i32(bits), **flags)
        yield case("QuantizeAndDequantizeV3", x, lows, highs, i32(bits), axis=1, range_given=True)
        yield case("QuantizeAndDequantizeV4", x, lows, highs, num_bits=bits, axis=1, range_given=False)
    yield case("QuantizeAndDequantizeV4Grad", x / 2, x, low, high)


def sets() -> Iterator[Sample]:
    x = i32([3, 1, 3, 7, 1, 0])
    for op in ("Unique", "UniqueWithCounts"):
        yield case(op, x)
        yield case(op, x.astype(np.float32), out_idx="int64")
        yield case(f"{op}V2", i32([[1, 2], [0, 4], [1, 2]]), i64([0]))
    yield case("ListDiff", x, i32([1, 5]), out_idx="int64")
    yield case("DynamicPartition", numbers((6, 2)), i32([0, 2, 0, 1, 2, 0]), num_partitions=4)
    for op in ("DynamicStitch", "ParallelDynamicStitch"):
        yield case(op, [i32([0, 3]), i32([[1], [2]])], [numbers((2, 2)), numbers((2, 1, 2))])
    yield case("DynamicStitch", [i32(2), i32([0, 2])], [numbers((3,)), numbers((2, 3))])
    ordered, values = np.sort(numbers((2, 5)), 1), numbers((2, 4), seed=3)
    for op in ("LowerBound", "UpperBound"):
        yield case(op, ordered, values)
        yield case(op, i32([[1, 2, 2, 5]]), i32([[2, 0, 9]]), out_type="int64")
    for dtype in ("float32", "float64", "int32", "int64"):
        yield case("Bucketize", numbers((3, 4), dtype), boundaries=[-1.0, 0.0, 2.0])
    yield case("HistogramFixedWidth", numbers((20,)), f32([-2, 2]), i32(5))
    yield case("HistogramFixedWidth", numbers((20,), "int32", -9, 9), i32([-4, 7]), i32(6), dtype="int64")
    scores = f32([[1, 3, 2, 3], [np.inf, 0, 1, 2], [4, 4, 4, 4]])
    yield case("InTopKV2", scores, i32([2, 0, 3]), i32(2))
    yield case("InTopK", scores, i64([2, 3, 9]), k=3)
    for reverse in (False, True):
        yield case("NthElement", numbers((3, 6)), i32(2), reverse=reverse)
    yield case("ApproxTopK", numbers((2, 9)), k=3)
    yield case("UnravelIndex", i32([0, 7, 22]), i32([4, 6]))
    yield case("ReverseSequence", numbers((2, 4, 3)), i64([3, 2]), seq_dim=1)
    yield case("ReverseSequence", numbers((2, 4, 3)), i32([2, 1, 2]), seq_dim=0, batch_dim=2)
    yield case("SpaceToBatch", numbers((1, 3, 4, 2)), i32([[1, 0], [0, 0]]), block_size=2)
    yield case("BatchToSpace", numbers((4, 2, 2, 1)), i32([[1, 0], [0, 1]]), block_size=2)
    yield case("DataFormatDimMap", i32([0, 1, -1, 2]))
    yield case("DataFormatVecPermute", i32([5, 6, 7, 8]))
    yield case("DataFormatVecPermute", i32([5, 6]), src_format="NCHW", dst_format="NHWC")
    yield case("InplaceUpdate", numbers((3, 2)), i32([2, 0]), numbers((2, 2)))
    yield case("InplaceAdd", numbers((3, 2)), i32([2, 0]), numbers((2, 2)))
    yield case("InplaceSub", numbers((3, 2)), i32([2, 0]), numbers((2, 2)))
    yield case("GuaranteeConst", x)
    for value in (f32(0), f32(2), f32([]), i32([0])):
        yield case("ToBool", value)


AREAS |= {"quantization": quantization, "sets": sets}


def neural() -> Iterator[Sample]:
    x = numbers((2, 5, 6, 8))
    how = {"depth_radius": 2, "bias": 1.5, "alpha": 0.7, "beta": 0.6}
    y = samples.tf.raw_ops.LRN(input=x, **how).numpy()
    yield case("LRN", x, **how)
    yield case("LRNGrad", numbers(x.shape, seed=2), x, y, **how)
    w = numbers((3, 2, 8))
    for padding in ("SAME", "VALID"):
        how = {"strides": [1, 2, 1, 1], "rates": [1, 1, 2, 1], "padding": padding}
        y = samples.tf.raw_ops.Dilation2D(input=x, filter=w, **how).numpy()
        yield case("Dilation2D", x, w, **how)
        d = numbers(y.shape, seed=4)
        yield case("Dilation2DBackpropInput", x, w, d, **how)
        yield case("Dilation2DBackpropFilter", x, w, d, **how)
        how = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1], "padding": padding}
        for batch in (True, False):
            flags = {"include_batch_in_index": batch}
            y, at = samples.tf.raw_ops.MaxPoolWithArgmax(input=x, **how, **flags)
            yield case("MaxPoolWithArgmax", x, **how, **flags)
            d = numbers(y.shape, seed=5)
            yield case("MaxPoolGradWithArgmax", x, d, at.numpy(), **how, **flags)
        yield case("MaxPoolGradV2", x, y.numpy(), d, i32(how["ksize"]), i32(how["strides"]), padding=padding)
        d = numbers(x.shape, seed=6)
        yield case("MaxPoolGradGrad", x, y.numpy(), d, **how)
        yield case("MaxPoolGradGradV2", x, y.numpy(), d, i32(how["ksize"]), i32(how["strides"]), padding=padding)
        v, how = numbers((1, 4, 5, 4, 2)), {"ksize": [1, 2, 3, 2, 1], "strides": [1, 2, 1, 2, 1], "padding": padding}
        y = samples.tf.raw_ops.MaxPool3D(input=v, **how).numpy()
        yield case("MaxPool3DGradGrad", v, y, numbers(v.shape, seed=1), **how)
    rows, columns = i64([0, 2, 3, 5]), i64([0, 1, 3, 6])
    for overlapping in (True, False):
        d = numbers((2, 3, 3, 8))
        yield case("FractionalAvgPoolGrad", i64(x.shape), d, rows, columns, overlapping=overlapping)
        more = int(overlapping)
        y = np.stack(
            [
                np.stack([x[:, a : b + more, e : f + more].max((1, 2)) for e, f in itertools.pairwise(columns)], 1)
                for a, b in itertools.pairwise(rows)
            ],
            1,
        )
        yield case("FractionalMaxPoolGrad", x, y, d, rows, columns, overlapping=overlapping)
    x, c, h, w, b = (numbers(s, seed=i) for i, s in enumerate([(2, 3), (2, 4), (2, 4), (7, 16), (16,)]))
    peep = [numbers((4,), seed=i) for i in range(3)]
    for peephole in (True, False):
        how = {"use_peephole": peephole, "cell_clip": 1.5}
        yield case("LSTMBlockCell", x, c, h, w, *peep, b, **how)
        x3 = numbers((5, 2, 3))
        yield case("BlockLSTM", i64(5), x3, c, h, w, *peep, b, forget_bias=0.5, **how)
        yield case("BlockLSTMV2", i64(5), x3, c, h, w, *peep, b, **how)
    gru = [numbers(s, seed=i) for i, s in enumerate([(7, 8), (7, 4), (8,), (4,)])]
    r, u, cell, _ = (v.numpy() for v in samples.tf.raw_ops.GRUBlockCell(
        x=x, h_prev=h, w_ru=gru[0], w_c=gru[1], b_ru=gru[2], b_c=gru[3]))  # fmt: skip
    yield case("GRUBlockCell", x, h, *gru)
    yield case("GRUBlockCellGrad", x, h, *gru, r, u, cell, numbers((2, 4), seed=9))


AREAS["neural"] = neural


def sparse() -> Iterator[Sample]:
    at, shape = i64([[0, 1], [0, 3], [2, 0], [2, 2]]), i64([3, 4])
    v = numbers((4,))
    yield case("SparseToDense", i32(at), i32(shape), v, f32(7))
    yield case("SparseToDense", i64([1, 3]), i64([5]), f32(2), f32(0))
    for adjoint in (True, False):
        b = numbers((2, 3 if adjoint else 4))
        yield case("SparseTensorDenseMatMul", at, v, shape, b, adjoint_a=adjoint, adjoint_b=True)
        yield case("SparseTensorDenseMatMul", at, v, shape, b.T.copy(), adjoint_a=adjoint)
    yield case("SparseTensorDenseAdd", at, v, shape, numbers((3, 4)))
    for op in ("Add", "Mul", "Div"):
        yield case(f"SparseDenseCwise{op}", at, v, shape, numbers((4,), low=1))
    for op in ("Sum", "Max"):
        for axes, keep in (([0], False), ([1], True), ([-1], False)):
            yield case(f"SparseReduce{op}", at, v, shape, i32(axes), keep_dims=keep)
            yield case(f"SparseReduce{op}Sparse", at, v, shape, i32(axes), keep_dims=keep)
    yield case("SparseReorder", at[::-1].copy(), v, shape)
    yield case("SparseReshape", at, shape, i64([2, -1]))
    yield case("SparseConcat", [at, at], [v, v + 1], [shape, shape], concat_dim=1)
    yield case("SparseSplit", i64(1), at, v, shape, num_split=2)
    yield case("SparseSlice", at, v, shape, i64([0, 1]), i64([2, 9]))
    yield case("SparseSliceGrad", numbers((2,)), at, i64([0, 1]), i64([[0, 0], [0, 2]]))
    other = i64([[0, 1], [1, 1], [2, 2]])
    yield case("SparseAdd", at, v, shape, other, numbers((3,)), shape, f32(0.5))
    yield case("SparseAddGrad", numbers((5,)), at, other, i64([[0, 1], [0, 3], [1, 1], [2, 0], [2, 2]]))
    for op in ("Maximum", "Minimum"):
        yield case(f"SparseSparse{op}", at, v, shape, other, numbers((3,)), shape)
    yield case("SparseSoftmax", at, v, shape)
    yield case("SparseFillEmptyRows", at, v, shape, f32(9))
    yield case("SparseFillEmptyRowsGrad", i64([0, 1, 3, 4]), numbers((5,)))
    yield case("RaggedFillEmptyRowsGrad", i64([0, 1, 3, 4]), numbers((5,)))
    yield case("RaggedFillEmptyRows", at[:, 0].copy(), v, i64(3), f32(9))
    yield case("RaggedRange", i32([0, 5, 8]), i32([3, 5, 2]), i32([1, 1, -2]))
    splits, values = i64([0, 2, 2, 5]), numbers((5, 2))
    for indices in ([2, 0, 2], [[1, 2], [0, 0]]):
        yield case("RaggedGather", [splits], values, i32(indices), OUTPUT_RAGGED_RANK=np.ndim(indices))
    inner = i64([0, 1, 3, 3, 4, 6])
    yield case("RaggedGather", [splits, inner], numbers((6,)), i64([2, 0]), OUTPUT_RAGGED_RANK=2)
    yield case("RaggedTensorToSparse", [splits, inner], numbers((6,)))
    for shape in (i64(-1), i64([4, 2, -1])):
        yield case(
            "RaggedTensorToTensor", shape, numbers((6,)), f32(0), [splits, inner],
            row_partition_types=["ROW_SPLITS", "ROW_SPLITS"],
        )  # fmt: skip
    yield case(
        "RaggedTensorToTensor", i64([-1, -1]), numbers((4,)), f32(-1), [i64(3), i64([0, 0, 2, 2])],
        row_partition_types=["FIRST_DIM_SIZE", "VALUE_ROWIDS"],
    )  # fmt: skip


AREAS["sparse"] = sparse
