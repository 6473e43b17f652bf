"""Rules for `ai.onnx.ml`: linear models, kernel machines, encoders and scalers; scores of classifiers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.value import Value, with_operators

DOMAIN = "ai.onnx.ml"


# ---- scores and labels -----------------------------------------------------------------------------------------------


def transformed(xp: Any, scores: Any, kind: str) -> Any:
    """Return scores (N, classes) after a `post_transform`."""
    if kind == "LOGISTIC":
        return xp.sigmoid(scores)
    if kind == "SOFTMAX":
        return xp.softmax(scores, -1)
    if kind == "SOFTMAX_ZERO":
        is_set = xp.greater(xp.abs(scores), 1e-7)
        exps = xp.where(is_set, xp.exp(xp.subtract(scores, xp.max(scores, -1, True))), xp.zeros_like(scores))
        return xp.divide(exps, xp.sum(exps, -1, True))
    if kind == "PROBIT":
        return _probit(xp, scores)
    return scores


@with_operators
def _probit(xp: Any, p: Value) -> Value:
    """Return the quantile of the normal distribution."""
    return xp.erf_inv(p * 2 - 1) * math.sqrt(2)


def of_two_classes(xp: Any, score: Any, kind: str, is_probability: bool) -> Any:
    """Return the scores (N, 2) of two classes by the score (N, 1) of the second one. Only `LOGISTIC` and `PROBIT`
    transform them: the first class has the rest to 1 of a probability, else the opposite number."""
    if kind == "LOGISTIC":
        return transformed(xp, xp.concat([xp.negative(score), score], axis=1), kind)
    other = xp.subtract(1.0, score) if is_probability or kind == "PROBIT" else xp.negative(score)
    scores = xp.concat([other, score], axis=1)
    return transformed(xp, scores, kind) if kind == "PROBIT" else scores


def regressed(xp: Any, scores: Any, kind: str) -> Any:
    """Return scores (N, targets) after a `post_transform`, of which those of one target know `PROBIT` alone."""
    return scores if scores.shape[1] == 1 and kind != "PROBIT" else transformed(xp, scores, kind)


def labelled(xp: Any, at: Any, labels: Any) -> Any:
    """Return the labels at positions. Raises TracedValueError for strings, which only the host has."""
    if not labels:
        return at
    if not isinstance(labels[0], str):
        return xp.take(xp.asarray(np.array(labels, np.int64)), at, 0)
    if xp.is_traced(at):
        raise TracedValueError(
            "labels are strings, which a compiled program cannot return: call the model without compiling it, or"
            " return the scores alone"
        )
    return np.array(labels, object)[np.asarray(xp.to_numpy(at))]


# ---- linear models, scalers and encoders -----------------------------------------------------------------------------


def _floats(xp: Any, x: Any) -> Any:
    """Return features as rows of float32."""
    x = xp.astype(x, dtypes.float32)
    return x if len(x.shape) > 1 else xp.expand_dims(x, 0)


def _row(xp: Any, values: Any, like: Any) -> Any:
    return xp.asarray(np.asarray(values, xp.dtype_of(like)))


def _linear(xp: Any, x: Any, coefficients: tuple[float, ...], count: int, intercepts: tuple[float, ...]) -> Any:
    """Return `count` linear scores of rows of x."""
    scores = xp.matmul(x, _row(xp, np.reshape(coefficients, (count, -1)).T, x))
    return xp.add(scores, _row(xp, intercepts, x)) if intercepts else scores


@rule("LinearRegressor", domain=DOMAIN)
def linear_regressor(
    xp: Any, x: Any, *, coefficients: tuple[float, ...], intercepts: tuple[float, ...] = (),
    post_transform: str = "NONE", targets: int = 1,
) -> Any:  # fmt: skip
    return regressed(xp, _linear(xp, _floats(xp, x), coefficients, targets, intercepts), post_transform)


@rule("LinearClassifier", domain=DOMAIN)
def linear_classifier(
    xp: Any, x: Any, *, coefficients: tuple[float, ...], intercepts: tuple[float, ...] = (), multi_class: int = 0,
    classlabels_ints: tuple[int, ...] = (), classlabels_strings: tuple[str, ...] = (), post_transform: str = "NONE",
) -> Any:  # fmt: skip
    x = _floats(xp, x)
    labels: Any = classlabels_ints or classlabels_strings
    count = len(coefficients) // x.shape[1]
    scores = _linear(xp, x, coefficients, count, intercepts)
    if count == 1 and len(labels) == 2:
        second = xp.astype(xp.greater(xp.squeeze(scores, 1), 0), dtypes.int64)
        return [labelled(xp, second, labels), of_two_classes(xp, scores, post_transform, True)]
    return [labelled(xp, xp.argmax(scores, 1), labels), transformed(xp, scores, post_transform)]


@rule("Scaler", domain=DOMAIN)
def scaler(xp: Any, x: Any, *, offset: tuple[float, ...], scale: tuple[float, ...]) -> Any:
    x = xp.astype(x, dtypes.float32)
    centred = xp.subtract(x, _row(xp, offset, x))
    return xp.multiply(centred, _row(xp, scale, x))


@rule("Normalizer", domain=DOMAIN)
def normalizer(xp: Any, x: Any, *, norm: str = "MAX") -> Any:
    x = xp.astype(x, dtypes.float32)
    if norm == "MAX":
        size = xp.max(x, -1, True)  # with its sign
    else:
        size = xp.sum(xp.abs(x), -1, True) if norm == "L1" else xp.sqrt(xp.sum(xp.square(x), -1, True))
    return xp.divide(x, xp.where(xp.equal(size, 0), xp.ones_like(size), size))


@rule("Binarizer", domain=DOMAIN)
def binarizer(xp: Any, x: Any, *, threshold: float = 0.0) -> Any:
    return xp.astype(xp.greater(x, threshold), xp.dtype_of(x))


@rule("Imputer", domain=DOMAIN)
def imputer(
    xp: Any, x: Any, *, imputed_value_floats: tuple[float, ...] = (), imputed_value_int64s: tuple[int, ...] = (),
    replaced_value_float: float = 0.0, replaced_value_int64: int = 0,
) -> Any:  # fmt: skip
    if dtypes.is_inexact(xp.dtype_of(x)):
        values: Any = imputed_value_floats
        missing = xp.isnan(x) if np.isnan(replaced_value_float) else xp.equal(x, replaced_value_float)
    else:
        values, missing = imputed_value_int64s, xp.equal(x, replaced_value_int64)
    return xp.where(missing, _row(xp, values, x), x)


@rule("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(xp: Any, *inputs: Any, inputdimensions: tuple[int, ...] = ()) -> Any:
    parts = []
    for i, x in enumerate(inputs):
        rows = xp.astype(x if len(x.shape) > 1 else xp.expand_dims(x, 0), dtypes.float32)
        width = inputdimensions[i] if inputdimensions else rows.shape[1]
        short = width - rows.shape[1]
        parts.append(xp.pad(rows, 0, [(0, 0, 0), (0, short, 0)]) if short else rows)
    return xp.concat(parts, axis=1)


@rule("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(
    xp: Any, x: Any, *, cats_int64s: tuple[int, ...] = (), cats_strings: tuple[str, ...] = (), zeros: int = 1
) -> Any:
    if cats_strings:
        found = np.asarray(x, object)[..., None] == np.array(cats_strings, object)
        return xp.asarray(found.astype(np.float32))
    whole = xp.astype(x, dtypes.int64)
    hot = xp.equal(xp.expand_dims(whole, -1), xp.asarray(np.array(cats_int64s, np.int64)))
    return xp.astype(hot, dtypes.float32)


KINDS = {"int64s": np.int64, "floats": np.float32, "strings": object, "tensor": None}


def _given(attributes: dict[str, Any], prefix: str) -> np.ndarray:
    for suffix, kind in KINDS.items():
        values = attributes.get(f"{prefix}_{suffix}")
        if values is not None and np.size(values):
            return np.asarray(values, kind)
    raise ValueError(f"LabelEncoder has no {prefix}")


DEFAULTS: dict[str, tuple[str, Any]] = {
    "i": ("default_int64", -1), "f": ("default_float", -0.0), "O": ("default_string", "_Unused"),
}  # fmt: skip


@rule("LabelEncoder", domain=DOMAIN)
def label_encoder(xp: Any, x: Any, *, node: Any, opset: int) -> Any:
    """Replace keys by values; what is no key by the default. Numbers are searched among sorted keys. Before opset 4
    NaN is no key."""
    attributes = node.attributes
    if "classes_strings" in attributes:  # opset 1: strings to their positions, or back
        names = np.array(attributes["classes_strings"], object)
        if isinstance(x, np.ndarray) and x.dtype == object:
            keys, values = names, np.arange(len(names))
        else:
            keys, values = np.arange(len(names)), names
    else:
        keys, values = _given(attributes, "keys"), _given(attributes, "values")
    tensor = attributes.get("default_tensor")
    name, usual = DEFAULTS.get(values.dtype.kind, ("default_int64", -1))
    default = tensor.ravel()[0] if tensor is not None else attributes.get(name, usual)
    if keys.dtype == object or values.dtype == object:
        table = dict(zip(keys.tolist(), values.tolist(), strict=True))
        of_nan = next((y for v, y in table.items() if v != v and opset >= 4), default)
        host = np.asarray(x if isinstance(x, np.ndarray) else xp.to_numpy(x))
        found = [table.get(v, of_nan if v != v else default) for v in host.ravel().tolist()]
        return np.array(found, values.dtype).reshape(host.shape)
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    dtype = xp.dtype_of(x)
    at = xp.minimum(xp.searchsorted(xp.asarray(keys.astype(dtype)), x), len(keys) - 1)
    found = xp.take(xp.asarray(values), at, 0)
    same = xp.equal(xp.take(xp.asarray(keys.astype(dtype)), at, 0), x)
    if opset >= 4 and dtypes.is_inexact(dtype) and np.isnan(keys).any():
        same = xp.logical_or(same, xp.logical_and(xp.isnan(x), xp.isnan(xp.take(xp.asarray(keys), at, 0))))
    return xp.where(same, found, xp.full((), default, values.dtype))


@rule("CategoryMapper", domain=DOMAIN, host=True)
def category_mapper(
    xp: Any, x: Any, *, cats_int64s: tuple[int, ...], cats_strings: tuple[str, ...], default_int64: int = -1,
    default_string: str = "_Unused",
) -> Any:  # fmt: skip
    if x.dtype == object:
        table: dict[Any, Any] = dict(zip(cats_strings, cats_int64s, strict=True))
        return np.array([table.get(v, default_int64) for v in x.ravel()], np.int64).reshape(x.shape)
    table = dict(zip(cats_int64s, cats_strings, strict=True))
    return np.array([table.get(v, default_string) for v in x.ravel().tolist()], object).reshape(x.shape)


@rule("ZipMap", domain=DOMAIN, host=True)
def zip_map(
    xp: Any, x: Any, *, classlabels_int64s: tuple[int, ...] = (), classlabels_strings: tuple[str, ...] = ()
) -> Any:
    """Return a dictionary a row, of labels and scores."""
    labels: Any = classlabels_int64s or classlabels_strings
    rows = x if x.ndim > 1 else x[None]
    return tuple(dict(zip(labels, map(float, row), strict=True)) for row in rows)


@rule("DictVectorizer", domain=DOMAIN, host=True)
def dict_vectorizer(
    xp: Any, x: Any, *, int64_vocabulary: tuple[int, ...] = (), string_vocabulary: tuple[str, ...] = ()
) -> Any:
    words: Any = int64_vocabulary or string_vocabulary
    row = [x.get(w, 0) for w in words]
    return np.array([row], np.int64 if all(isinstance(v, int) for v in row) else np.float32)


@rule("CastMap", domain=DOMAIN, host=True)
def cast_map(xp: Any, x: Any, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Any:
    kind: Any = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}[cast_to]
    keys = sorted(x)
    if map_form == "DENSE":
        return np.array([[x[k] for k in keys]]).astype(kind)
    row = np.zeros((1, max_map), kind)
    row[0, keys] = [x[k] for k in keys]
    return row


# ---- kernel machines -------------------------------------------------------------------------------------------------


def _kernel(xp: Any, x: Any, support: np.ndarray, kind: str, parameters: tuple[float, ...]) -> Any:
    """Return the kernel of rows of x (N, F) and of support vectors (M, F): (N, M)."""
    gamma, coefficient, degree = (*parameters, 0.0, 0.0, 3.0)[:3] if parameters else (0.0, 0.0, 3.0)
    vectors = _row(xp, support, x)
    if kind == "RBF":
        difference = xp.subtract(xp.expand_dims(x, 1), vectors)
        return xp.exp(xp.multiply(xp.sum(xp.square(difference), -1), -gamma))
    product = xp.matmul(x, xp.matrix_transpose(vectors))
    if kind == "LINEAR":
        return product
    scaled = xp.add(xp.multiply(product, gamma), coefficient)
    return xp.pow(scaled, degree) if kind == "POLY" else xp.tanh(scaled)


@rule("SVMRegressor", domain=DOMAIN)
def svm_regressor(
    xp: Any, x: Any, *, coefficients: tuple[float, ...], kernel_params: tuple[float, ...] = (),
    kernel_type: str = "LINEAR", n_supports: int = 0, one_class: int = 0, post_transform: str = "NONE",
    rho: tuple[float, ...] = (0.0,), support_vectors: tuple[float, ...] = (),
) -> Any:  # fmt: skip
    x = _floats(xp, x)
    if n_supports:
        kernel = _kernel(xp, x, np.reshape(support_vectors, (n_supports, -1)), kernel_type, kernel_params)
        scores = xp.matmul(kernel, _row(xp, np.reshape(coefficients, (-1, 1)), x))
    else:
        scores = _kernel(xp, x, np.reshape(coefficients, (1, -1)), "LINEAR", ())
    scores = xp.add(scores, float(rho[0]))
    if one_class:
        scores = xp.where(xp.greater(scores, 0), xp.ones_like(scores), xp.full_like(scores, -1))
    return regressed(xp, scores, post_transform)


@rule("SVMClassifier", domain=DOMAIN)
def svm_classifier(
    xp: Any, x: Any, *, classlabels_ints: tuple[int, ...] = (), classlabels_strings: tuple[str, ...] = (),
    coefficients: tuple[float, ...], kernel_params: tuple[float, ...] = (), kernel_type: str = "LINEAR",
    post_transform: str = "NONE", prob_a: tuple[float, ...] = (), prob_b: tuple[float, ...] = (),
    rho: tuple[float, ...], support_vectors: tuple[float, ...] = (), vectors_per_class: tuple[int, ...] = (),
) -> Any:  # fmt: skip
    """Each pair of classes has a machine; the class that wins most of them is the label."""
    x = _floats(xp, x)
    labels: Any = classlabels_ints or classlabels_strings
    if not vectors_per_class:
        scores = _linear(xp, x, coefficients, len(labels), (rho[0],))
        return [labelled(xp, xp.argmax(scores, 1), labels), transformed(xp, scores, post_transform)]
    total = sum(vectors_per_class)
    kernel = _kernel(xp, x, np.reshape(support_vectors, (total, -1)), kernel_type, kernel_params)
    pairs = _pairs(len(vectors_per_class))
    weights = _pair_weights(vectors_per_class, np.reshape(coefficients, (-1, total)))
    scores = xp.matmul(kernel, _row(xp, weights, x))
    scores = xp.add(scores, _row(xp, rho[: len(pairs)], x))
    wins = xp.greater(scores, 0)
    votes = np.zeros((2, len(pairs), len(vectors_per_class)), np.float32)
    for k, (i, j) in enumerate(pairs):
        votes[0, k, i] = votes[1, k, j] = 1
    counted = xp.add(*(
        xp.matmul(xp.astype(w, dtypes.float32), xp.asarray(v))
        for w, v in zip((wins, xp.logical_not(wins)), votes, strict=True)
    ))  # fmt: skip
    label = labelled(xp, xp.argmax(counted, 1), labels)
    if prob_a:
        scores = _coupled(xp, scores, _row(xp, prob_a, x), _row(xp, prob_b, x), len(vectors_per_class))
    elif len(pairs) == 1:
        return [label, of_two_classes(xp, scores, post_transform, post_transform != "NONE")]
    return [label, transformed(xp, scores, post_transform)]


def _pairs(count: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(count) for j in range(i + 1, count)]


def _pair_weights(counts: tuple[int, ...], alphas: np.ndarray) -> np.ndarray:
    """Return the weights of the support vectors in the machine of each pair (vectors, pairs)."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    pairs = _pairs(len(counts))
    weights = np.zeros((alphas.shape[1], len(pairs)))
    for k, (i, j) in enumerate(pairs):
        of_i, of_j = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        weights[of_i, k], weights[of_j, k] = alphas[j - 1, of_i], alphas[i, of_j]
    return weights


@with_operators
def _coupled(xp: Any, scores: Value, a: Value, b: Value, count: int) -> Value:
    """Return probabilities of the classes (N, C) by those of the pairs (Wu, Lin and Weng 2004, second approach).

    The iteration ends for each row at its own tolerance, as libsvm's does: what it returns depends on where it ends.
    """
    first = xp.clip(xp.sigmoid(-(scores * a + b)), 1e-7, 1 - 1e-7)
    r: dict[tuple[int, int], Value] = {}
    for k, (i, j) in enumerate(_pairs(count)):
        r[i, j] = xp.squeeze(xp.take_slice(first, 1, k, k + 1), 1)
        r[j, i] = 1.0 - r[i, j]

    def entry(i: int, j: int) -> Value:
        return -r[j, i] * r[i, j] if i != j else sum(xp.square(r[k, i]) for k in range(count) if k != i)

    matrix = xp.stack([xp.stack([entry(i, j) for j in range(count)], axis=1) for i in range(count)], axis=1)
    p = xp.full((scores.shape[0], count), 1 / count, scores.dtype)
    for _ in range(100):
        product = xp.sum(matrix * xp.expand_dims(p, 1), 2)
        total = xp.sum(p * product, 1, True)
        is_open = xp.max(abs(product - total), 1, True) >= 0.005 / count
        if not xp.is_traced(is_open) and not xp.to_numpy(is_open).any():
            break
        p = xp.where(is_open, _coupling_step(xp, matrix, p, product, total, count), p)
    return p


def _coupling_step(xp: Any, matrix: Value, p: Value, product: Value, total: Value, count: int) -> Value:
    """Return the probabilities after each was moved once, in turn."""
    for i in range(count):
        row = xp.squeeze(xp.take_slice(matrix, 1, i, i + 1), 1)
        own, at = xp.take_slice(row, 1, i, i + 1), xp.take_slice(product, 1, i, i + 1)
        step = (total - at) / own
        total = (total + step * (step * own + at * 2.0)) / xp.square(step + 1.0)
        product = (product + step * row) / (step + 1.0)
        p = (p + step * xp.asarray(np.eye(count, dtype=np.float32)[i])) / (step + 1.0)
    return p
