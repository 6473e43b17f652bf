"""Operators of `com.microsoft` with random inputs, against onnxruntime."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from onnx import helper
from tests.frontends.onnx.differential import MICROSOFT, check, equal, reference, single
from tests.frontends.onnx.differential import actual as results

import tensorgraft as tg
from tensorgraft.errors import TracedValueError

rng = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def small(*shape: int) -> np.ndarray:
    """Return scales."""
    return np.asarray(rng.random(shape) * 0.05 + 0.01, np.float32)


def byte(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.asarray(rng.integers(info.min, info.max + 1, size=shape), dtype)


def weight(*shape: int) -> np.ndarray:
    """Return int8 of 7 bits: without VNNI onnxruntime adds two products with uint8 in 16 bits, which saturate."""
    return np.asarray(rng.integers(-64, 64, size=shape), np.int8)


def scalar(x: float) -> np.ndarray:
    return np.array(x, np.float32)


def compare(
    op: str, inputs: list[Any], attributes: dict[str, Any] | None = None, outputs: int = 1, domain: str = MICROSOFT,
    constants: tuple[int, ...] = (), rtol: float = 1e-4, atol: float = 1e-5,
) -> None:  # fmt: skip
    net = single(op, inputs, attributes, domain=domain, outputs=outputs, constants=constants)
    check(net, inputs, ("numpy", "tensorflow"), rtol, atol)


def test_activations() -> None:
    x = real(2, 3, 4)
    for op in ("Gelu", "FastGelu", "QuickGelu"):
        compare(op, [x])
    compare("BiasGelu", [x, real(4)])
    compare("FastGelu", [x, real(4)])
    compare("QuickGelu", [x], {"alpha": 1.3})


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("second", [0, 1])
def test_products(first: int, second: int) -> None:
    attributes = {"transA": first, "transB": second}
    a = real(2, 4, 3) if first else real(2, 3, 4)
    b = real(2, 5, 4) if second else real(2, 4, 5)
    compare("FusedMatMul", [a, b], attributes | {"alpha": 0.7})
    leaky = {"activation": "LeakyRelu", "activation_alpha": 0.2, "alpha": 0.7, "beta": 0.3}
    compare("FusedGemm", [a[0], b[0], real(5)], attributes | leaky)
    a = real(4, 2, 3) if first else real(3, 2, 4)
    compare("FusedMatMul", [a, b], attributes | {"transBatchA": 1})
    whole = byte(4, 3) if first else byte(3, 4)
    other = weight(5, 4) if second else weight(4, 5)
    bias = rng.integers(-99, 99, size=5).astype(np.int32)
    given = [whole, scalar(0.02), byte(), other, small(5), byte(5, dtype=np.int8), bias]
    compare("QGemm", given, attributes | {"alpha": 0.7})
    compare("QGemm", [*given[:4], scalar(0.03), byte(dtype=np.int8), bias, scalar(0.4), byte()], attributes)


def test_convolutions() -> None:
    x, w, b = real(1, 2, 5, 5), real(4, 2, 3, 3), real(4)
    for name, numbers in (("Relu", []), ("LeakyRelu", [0.2]), ("Clip", [-0.3, 0.4]), ("HardSigmoid", [0.3, 0.4])):
        attributes = {"activation": name, "pads": [1, 0, 1, 1], "strides": [2, 1]}
        compare("FusedConv", [x, w, b], attributes | ({"activation_params": numbers} if numbers else {}))
    compare("FusedConv", [x, w, b, real(1, 4, 3, 3)], {"activation": "Relu"})
    compare("ConvTransposeWithDynamicPads", [x, real(2, 4, 3, 3), np.array([1, 0, 1, 1]), b], {"strides": [2, 2]})


@pytest.mark.parametrize("skip", [(2, 3, 4), (1, 3, 4), (3, 4)])
def test_normalisation_of_sums(skip: tuple[int, ...]) -> None:
    for op, count in (("SkipLayerNormalization", 3), ("SkipSimplifiedLayerNormalization", 2)):
        inputs = [real(2, 3, 4), real(*skip), *(real(4) for _ in range(count))]
        for epsilon in ({}, {"epsilon": 0.1}):
            net = single(op, inputs, epsilon, domain=MICROSOFT, outputs=4)
            for i in (1, 2):  # training's
                net.graph.node[0].output[i] = ""
            del net.graph.output[1:3]
            check(net, inputs, ("numpy", "tensorflow"), 1e-4, 1e-5)
    compare("SimplifiedLayerNormalization", [real(2, 3, 4), real(4)], {"axis": -1}, 2, domain="")


def test_embeddings() -> None:
    ids, kinds, places = (rng.integers(0, n, size=(2, 3)).astype(np.int32) for n in (9, 2, 8))
    mask = np.array([[1, 1, 1], [1, 0, 0]], np.int32)
    tables = [real(9, 4), real(8, 4), real(2, 4), real(4), real(4)]
    compare("EmbedLayerNormalization", [ids, kinds, *tables, mask, places], outputs=3)
    compare("EmbedLayerNormalization", [ids, None, *tables[:2], None, *tables[3:]], outputs=2)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_crops(mode: str) -> None:
    regions = np.sort(rng.random((3, 2, 2)) * 1.3 - 0.15, axis=1).reshape(3, 4).astype(np.float32)
    for size in ((4, 5), (1, 3)):
        inputs = [real(2, 2, 6, 7), regions, np.array([0, 1, 1], np.int32), np.array(size, np.int32)]
        compare("CropAndResize", inputs, {"mode": mode, "extrapolation_value": 0.7})


def test_others() -> None:
    compare("Inverse", [real(2, 3, 3) + 3 * np.eye(3, dtype=np.float32)])
    compare("Trilu", [real(2, 3, 4), np.array(1)], {"upper": 0})
    compare("Pad", [real(2, 3), np.array([1, 0, 0, 2]), real(1)], {"mode": "constant"})
    compare("ExpandDims", [real(2, 3), np.array(1, np.int32)])
    compare("GridSample", [real(1, 2, 4, 5), real(1, 3, 3, 2)], {"mode": "bicubic", "padding_mode": "border"})
    compare("CDist", [real(3, 4), real(5, 4)], {"metric": "euclidean"})
    compare("Unique", [np.array([3, 1, 3, 2], np.float32)], outputs=3)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantised_elements(dtype: Any) -> None:
    def q(*shape: int) -> np.ndarray:
        return byte(*shape, dtype=dtype)

    def kind() -> tuple[np.ndarray, np.ndarray]:
        return small(), np.asarray(q() // 4, dtype)

    lowest = np.array(np.iinfo(dtype).min, dtype)
    for op in ("QLinearAdd", "QLinearMul"):
        compare(op, [q(2, 3, 4), *kind(), q(3, 4), *kind(), scalar(0.2), kind()[1]])
    compare("QLinearSigmoid", [q(30), *kind(), scalar(1 / 256), lowest])
    compare("QLinearLeakyRelu", [q(30), *kind(), *kind()], {"alpha": 0.1})
    for opset, axis in ((13, -1), (12, 1)):
        given = [q(3, 4, 5), *kind(), scalar(1 / 256), lowest]
        compare("QLinearSoftmax", given, {"axis": axis, "opset": opset}, constants=(1, 2, 3, 4), atol=1)
    compare("QLinearConcat", [*kind(), q(2, 3), *kind(), q(2, 2), *kind()], {"axis": 1})
    compare("QLinearWhere", [rng.random((2, 3)) < 0.5, q(2, 3), *kind(), q(2, 3), *kind(), *kind()])
    compare("MatMulIntegerToFloat", [q(3, 4), weight(4, 5), small(), small(5), q(), None, real(5)])
    compare("QuantizeLinear", [real(2, 3, 4), small(3), q(3)], {"axis": 1})
    compare("DequantizeLinear", [q(2, 3, 4), small(3), q(3)], {"axis": 1})
    compare("NhwcMaxPool", [q(1, 5, 6, 3)], {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 1, 0]})
    for last in (0, 1):
        x = q(2, 5, 6, 3) if last else q(2, 3, 5, 6)
        where = {"channels_last": last}
        compare("QLinearGlobalAveragePool", [x, *kind(), *kind()], where)
        pool = where | {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
        for counts in (0, 1):
            compare("QLinearAveragePool", [x, *kind(), *kind()], pool | {"count_include_pad": counts})
        w = [weight(4, 3, 3, 3), small(4), np.zeros(4, np.int8)]
        bias = rng.integers(-99, 99, size=4).astype(np.int32)
        compare("QLinearConv", [x, *kind(), *w, scalar(0.4), kind()[1], bias], where | {"pads": [1, 1, 1, 1]})


def test_quantised_products() -> None:
    compare("DynamicQuantizeMatMul", [real(2, 3, 4), byte(4, 5), small(5), byte(5)], rtol=1e-3, atol=1e-3)
    for bits in (4, 8):
        for columns, size in ((64, 32), (33, 16)):
            blocks = -(-columns // size)
            weight, scales = byte(5, blocks, size * bits // 8), small(5 * blocks)
            attributes = {"K": columns, "N": 5, "bits": bits, "block_size": size}
            for zeros in (None, byte(5 * -(-blocks * bits // 8))):
                inputs = [real(2, 3, columns), weight, scales, zeros, None, real(5)]
                constants = (1, 2) if zeros is None else (1, 2, 3)
                compare("MatMulNBits", inputs, attributes, constants=constants, rtol=1e-3, atol=1e-4)
    inputs = [real(3, 33), weight[:, :, :8], scales, None, rng.integers(0, 3, size=33).astype(np.int32)]
    compare("MatMulNBits", inputs, attributes | {"bits": 4}, constants=(1, 2, 4), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_embeddings(bits: int, zeros: bool) -> None:
    inputs = [byte(6, 64 * bits // 8), np.array([[3, 1], [0, 5]]), small(6, 4), byte(6, 4 * bits // 8)]
    attributes = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    compare("GatherBlockQuantized", inputs[: 3 + zeros], attributes, constants=(0, 2, 3))


MASKS = {
    "none": None,
    "lengths": np.array([4, 2], np.int32),
    "ends and starts": np.array([4, 3, 1, 0], np.int32),
    "keys": np.array([[1, 1, 1, 0], [0, 1, 1, 1]], np.int32),
    "keys of queries": (np.eye(4, dtype=np.int32) | (np.arange(4) == 1))[None].repeat(2, 0),
}


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_attention(mask: str, causal: int) -> None:
    attributes = {"num_heads": 2, "unidirectional": causal}
    compare("Attention", [real(2, 4, 6), real(6, 48), real(48), MASKS[mask]], attributes)
    if mask == "none":
        past = real(2, 2, 2, 3, 8)
        compare("Attention", [real(2, 4, 6), real(6, 48), None, None, past], attributes, 2)
        compare("Attention", [real(2, 4, 6), real(6, 48), None, None, None, real(1, 1, 4, 4)], attributes)
        compare("Attention", [real(2, 4, 6), real(6, 40)], attributes | {"qkv_hidden_sizes": [16, 16, 8], "scale": 0.3})
        inputs = [byte(2, 4, 6), weight(6, 48), real(48), scalar(0.02), scalar(0.01), MASKS["keys"][:, :1]]
        inputs += [byte(), np.array(2, np.int8), past]
        inputs[5] = np.array([7, 5], np.int32)
        compare("QAttention", inputs, attributes, 2, constants=(1, 3, 4, 6, 7))
    if mask != "ends and starts":
        inputs = [real(2, 4, 16), real(2, 4, 16), real(2, 4, 8), real(40), MASKS[mask]]
        compare("MultiHeadAttention", inputs, attributes)


def test_attention_by_other_keys() -> None:
    query, key, value = real(2, 4, 16), real(2, 2, 6, 8), real(2, 2, 6, 8)
    compare("MultiHeadAttention", [query, key, value], {"num_heads": 2})
    inputs = [query, query, query, None, None, real(1, 2, 4, 10), key, value]
    compare("MultiHeadAttention", inputs, {"num_heads": 2, "unidirectional": 1, "scale": 0.2}, 3)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    angles = rng.normal(size=(20, 4)).astype(np.float32)
    places, rotation = rng.integers(0, 20, size=(2, 3)), [np.cos(angles), np.sin(angles)]
    attributes = {"interleaved": interleaved}
    compare("RotaryEmbedding", [real(2, 3, 16), np.array([2]), *rotation], attributes)
    compare("RotaryEmbedding", [real(2, 2, 3, 8), places, *rotation], attributes)
    part = attributes | {"num_heads": 2, "rotary_embedding_dim": 8}
    compare("RotaryEmbedding", [real(2, 3, 32), places, *rotation], part)


def grouped(queries: int, packed: bool = False) -> list[Any]:
    if packed:
        return [real(2, queries, 128), None, None]
    return [real(2, queries, 64), real(2, queries, 32), real(2, queries, 32)]


@pytest.mark.parametrize("extra", [{}, {"local_window_size": 3}, {"softcap": 3.0}, {"smooth_softmax": 1}])
@pytest.mark.parametrize("rotary", [0, 1])
def test_grouped_queries(rotary: int, extra: dict[str, Any]) -> None:
    angles = rng.normal(size=(40, 8)).astype(np.float32)
    rotation = [np.cos(angles), np.sin(angles)] if rotary else [None, None]
    attributes = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": rotary, **extra}

    def whole(*numbers: int) -> list[np.ndarray]:
        *ends, total = numbers
        return [np.array(ends, np.int32), np.array(total, np.int32)]

    for packed in (False, True):  # the first tokens
        inputs = [*grouped(5, packed), None, None, *whole(4, 4, 5), *rotation]
        compare("GroupQueryAttention", inputs, attributes, 3)
    inputs = [*grouped(1), real(2, 2, 6, 16), real(2, 2, 6, 16), *whole(6, 6, 7), *rotation]
    compare("GroupQueryAttention", inputs, attributes, 3)
    inputs[5] = np.array([6, 3], np.int32)  # rows of other lengths: the cache's rest is not defined
    net = single("GroupQueryAttention", inputs, attributes, domain=MICROSOFT, outputs=3)
    for on in ("numpy", "jax"):
        equal(results(net, inputs, on)[0], reference(net, inputs)[0], on, 1e-4, 1e-5)
    bias, sink = real(1, 1, 5, 5), real(4)
    if not extra:
        given = [*grouped(5), None, None, *whole(4, 4, 5), *rotation, None]
        compare("GroupQueryAttention", [*given, bias], attributes, 3)
        compare("GroupQueryAttention", [*given, None, sink], attributes, 3)


# ---- operators that onnxruntime has no kernel of on the CPU, against the operators that they stand for ---------------


def composed(op: str, inputs: list[Any], attributes: dict[str, Any], nodes: list[Any], atol: float = 1e-5) -> None:
    """Compare an operator with nodes that have the inputs x0, x1, ... and the output y0, in onnxruntime."""
    net = single(op, inputs, attributes, domain=MICROSOFT)
    other = single(op, inputs, domain=MICROSOFT)
    del other.graph.node[:]
    other.graph.node.extend(nodes)
    (want,) = reference(other, inputs)
    for on in ("numpy", "tensorflow"):
        equal(results(net, inputs, on)[0], want, on, 1e-4, atol)


def node(op: str, inputs: str, output: str, domain: str = "", **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], domain=domain, **attributes)


@pytest.mark.parametrize("op", ["NhwcConv", "NhwcFusedConv"])
def test_convolutions_of_channels_last(op: str) -> None:
    attributes = {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2], "group": 2}
    activation = {"activation": "LeakyRelu", "activation_params": [0.2]} if op == "NhwcFusedConv" else {}
    nodes = [node("Transpose", "x0", "a", perm=[0, 3, 1, 2]), node("Conv", "a x1 x2", "b", **attributes)]
    nodes += [node("LeakyRelu", "b", "c", alpha=0.2 if activation else 1.0)]
    nodes += [node("Transpose", "c", "y0", perm=[0, 2, 3, 1])]
    composed(op, [real(2, 6, 7, 4), real(6, 2, 3, 2), real(6)], attributes | activation, nodes)


@pytest.mark.parametrize("value", [0.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("attributes", [{}, {"isinf_only": 1}, {"isnan_only": 1}])
def test_all_are_finite(value: float, attributes: dict[str, int]) -> None:
    inputs = [real(2, 3), np.array([1, value], np.float32)]
    strange = np.isinf(value) * ("isnan_only" not in attributes) or np.isnan(value) * ("isinf_only" not in attributes)
    net = single("IsAllFinite", inputs, attributes, domain=MICROSOFT)
    for on in ("numpy", "tensorflow"):
        (found,) = results(net, inputs, on)
        assert found.dtype == bool and found.shape == () and found == (not strange)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_means_of_quantised_values(keepdims: int, dtype: Any) -> None:
    inputs = [byte(2, 3, 4, dtype=dtype), scalar(0.3), byte(dtype=dtype), scalar(0.2), byte(dtype=dtype)]
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[0, 2])
    nodes = [axes, node("DequantizeLinear", "x0 x1 x2", "a"), node("ReduceMean", "a axes", "b", keepdims=keepdims)]
    nodes += [node("QuantizeLinear", "b x3 x4", "y0")]
    composed("QLinearReduceMean", inputs, {"axes": [0, 2], "keepdims": keepdims}, nodes, atol=1)


def test_attention_of_packed_values() -> None:
    """Queries, keys and values of a head follow each other: (N, L, heads, 3, E); or keys and values do."""
    n, length, heads, width = 2, 3, 2, 4
    q, k, v = (real(n, length, heads, width) for _ in range(3))
    flat = [x.reshape(n, length, heads * width) for x in (q, k, v)]
    (want,) = reference(single("MultiHeadAttention", flat, {"num_heads": heads}, domain=MICROSOFT), flat)
    for inputs in ([np.stack([q, k, v], 3)], [flat[0], np.stack([k, v], 3)]):
        net = single("MultiHeadAttention", inputs, {"num_heads": heads}, domain=MICROSOFT)
        for on in ("numpy", "tensorflow"):
            equal(results(net, inputs, on)[0], want, on, 1e-4, 1e-5)


def test_products_with_activations() -> None:
    nodes = [node("MatMul", "x0 x1", "a"), node("FastGelu", "a x2", "y0", MICROSOFT)]
    composed("GemmFastGelu", [real(2, 3, 4), real(4, 5), real(5)], {}, nodes)
    attributes = {"alpha": 0.7, "transA": 1, "transB": 1}
    for name, numbers in (("Relu", {}), ("LeakyRelu", {"alpha": 0.2}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.4})):
        nodes = [node("FusedMatMul", "x0 x1", "a", MICROSOFT, **attributes), node(name, "a", "y0", **numbers)]
        activation = {"activation": name, **{f"activation_{k}": x for k, x in numbers.items()}}
        composed("FusedMatMulActivation", [real(2, 4, 3), real(2, 5, 4)], attributes | activation, nodes)


@pytest.mark.parametrize("pool", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_regions_with_samples_by_their_size(pool: str, coordinates: str) -> None:
    regions = np.array(
        [[0, 0, 20, 9], [3.3, 2.1, 4.9, 30.2], [5, 5, 5.2, 5.1], [-4, -3, 8, 40], [9, 9, 2, 3]], np.float32
    )
    inputs = [real(2, 3, 8, 9), regions, np.array([0, 1, 0, 1, 1])]
    attributes = {"mode": pool, "coordinate_transformation_mode": coordinates, "output_height": 2, "output_width": 3,
                  "spatial_scale": 0.5}  # fmt: skip
    net = single("RoiAlign", inputs, attributes)
    check(net, inputs, ("numpy", "jax", "torch", "tensorflow"), 1e-4, 1e-5)
    apply, params, buffers = tg.graft(net, onto="jax")
    with pytest.raises(TracedValueError, match="set sampling_ratio"):
        jax.jit(apply)(params, buffers, *inputs)


def test_what_is_not_computed_is_refused() -> None:
    net = single("MatMulNBits", [real(2, 32), byte(5, 1, 24), small(5)], {"K": 32, "N": 5, "bits": 6, "block_size": 32},
                 domain=MICROSOFT)  # fmt: skip
    with pytest.raises(NotImplementedError, match="of 6 bits"):
        results(net, [real(2, 32), byte(5, 1, 24), small(5)], "numpy")
