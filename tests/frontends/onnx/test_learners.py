"""Operators of `ai.onnx.ml` with random attributes, against onnxruntime."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import onnx
import pytest
from tests.frontends.onnx.differential import ML, actual, check, single

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def floats(rng: Any, *shape: int) -> list[float]:
    return [float(v) for v in rng.normal(size=shape).astype(np.float32).ravel()]


def trees(rng: Any, prefix: str, ids: list[int], every: bool, positive: bool, missing: bool) -> dict[str, Any]:
    """Return the attributes of random trees of 4 features, whose leaves have weights of `every` id, or of some."""
    a: dict[str, Any] = collections.defaultdict(list)
    modes = MODES if rng.random() < 0.5 else (str(rng.choice(MODES)),)

    def build(tree: int, depth: int) -> int:
        me = len([t for t in a["nodes_treeids"] if t == tree])
        row = len(a["nodes_modes"])
        is_leaf = depth == 0 or rng.random() < 0.2
        a["nodes_treeids"].append(tree)
        a["nodes_nodeids"].append(me)
        a["nodes_featureids"].append(int(rng.integers(4)))
        a["nodes_modes"].append("LEAF" if is_leaf else str(rng.choice(modes)))
        a["nodes_values"].append(float(rng.integers(-2, 3)))
        a["nodes_missing_value_tracks_true"].append(int(missing and rng.random() < 0.5))
        for branch in ("nodes_truenodeids", "nodes_falsenodeids"):
            a[branch].append(0)
        if not is_leaf:
            for branch in ("nodes_truenodeids", "nodes_falsenodeids"):
                a[branch][row] = build(tree, depth - 1)
            return me
        for i in ids if every else rng.permutation(ids)[: rng.integers(1, len(ids) + 1)]:
            a[f"{prefix}_treeids"].append(tree)
            a[f"{prefix}_nodeids"].append(me)
            a[f"{prefix}_ids"].append(int(i))
            (weight,) = floats(rng, 1)
            a[f"{prefix}_weights"].append(abs(weight) if positive else weight)
        return me

    for tree in range(int(rng.choice([1, 2, 7]))):
        build(tree, 3)
    return dict(a)


def features(rng: Any, missing: bool) -> np.ndarray:
    x = rng.integers(-2, 3, size=(int(rng.choice([1, 30])), 4)).astype(np.float32)
    if missing:
        x[rng.random(x.shape) < 0.3] = np.nan
    return x


@pytest.mark.parametrize("seed", range(24))
def test_regressors_of_trees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    targets, missing, every = seed % 3 + 1, seed % 2 == 0, seed % 4 > 1
    a = trees(rng, "target", list(range(targets)), every, False, missing)
    a |= {"n_targets": targets, "aggregate_function": ("SUM", "AVERAGE", "MIN", "MAX")[seed // 3 % 4]}
    a["post_transform"] = TRANSFORMS[seed // 6]
    if every:
        a["base_values"] = floats(rng, targets)
    x = features(rng, missing)
    check(single("TreeEnsembleRegressor", [x], a, domain=ML), [x])


@pytest.mark.parametrize("seed", range(24))
def test_classifiers_of_trees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, missing, every = (2, 3, 4)[seed % 3], seed % 2 == 0, seed % 4 > 1
    ids = list(range(classes)) if classes > 2 else [seed // 3 % 2]
    a = trees(rng, "class", ids, every, seed // 8 == 1, missing)
    a["post_transform"] = TRANSFORMS[seed // 6]
    labels = [f"class {i}" for i in range(classes)] if seed // 4 % 2 else [3 * i + 1 for i in range(classes)]
    a["classlabels_strings" if seed // 4 % 2 else "classlabels_int64s"] = labels
    if every and (classes > 2 or ids == [0]):
        a["base_values"] = floats(rng, classes if classes > 2 else 1)
    x = features(rng, missing)
    check(single("TreeEnsembleClassifier", [x], a, domain=ML, outputs=2), [x])


def test_a_classifier_of_two_classes_with_weights_returns_the_top_class() -> None:
    """Onnxruntime returns 1 or 0, by the sign of the second score, whatever the labels are."""
    rng = np.random.default_rng(3)
    a = trees(rng, "class", [0, 1], True, True, False) | {"classlabels_int64s": [7, 9], "post_transform": "NONE"}
    x = features(rng, False)
    label, scores = actual(single("TreeEnsembleClassifier", [x], a, domain=ML, outputs=2), [x], "numpy")
    np.testing.assert_array_equal(label, np.array([7, 9])[scores.argmax(1)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", range(4))
def test_ensembles_with_sets(function: int, dtype: Any) -> None:
    rng = np.random.default_rng(function)
    tensor = onnx.numpy_helper.from_array
    modes = np.array([6, 0, 5, 6, 3], np.uint8)
    a = {
        "n_targets": 2, "aggregate_function": function, "tree_roots": [0], "nodes_featureids": [0, 1, 2, 3, 0],
        "nodes_truenodeids": [1, 0, 1, 2, 3], "nodes_trueleafs": [0, 1, 1, 1, 1],
        "nodes_falsenodeids": [2, 3, 4, 4, 5], "nodes_falseleafs": [0, 0, 0, 1, 1],
        "nodes_missing_value_tracks_true": [0, 1, 0, 1, 1], "nodes_modes": tensor(modes),
        "nodes_splits": tensor(rng.integers(-2, 3, size=5).astype(dtype)),
        "membership_values": tensor(np.array([1, 2, np.nan, -1, 0, np.nan], dtype)),
        "leaf_targetids": [0, 1, 0, 1, 0, 1], "leaf_weights": tensor(rng.normal(size=6).astype(dtype)),
    }  # fmt: skip
    x = features(rng, True).astype(dtype)
    check(single("TreeEnsemble", [x], a, domain=ML, opset=5), [x], on=("numpy", "tensorflow"))


@pytest.mark.parametrize("seed", range(16))
def test_kernel_machines(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, kernel = seed % 3 + 2, ("LINEAR", "POLY", "RBF", "SIGMOID")[seed % 4]
    counts = [int(v) for v in rng.integers(1, 4, size=classes)]
    total, pairs = sum(counts), classes * (classes - 1) // 2
    shared = {"kernel_type": kernel, "kernel_params": [0.3, 0.5, 2.0], "support_vectors": floats(rng, total, 3)}
    a = shared | {
        "coefficients": floats(rng, classes - 1, total), "vectors_per_class": counts, "rho": floats(rng, pairs),
        "classlabels_ints": [2 * i + 1 for i in range(classes)], "post_transform": TRANSFORMS[seed // 4],
    }  # fmt: skip
    if seed % 2:
        a |= {"prob_a": floats(rng, pairs), "prob_b": floats(rng, pairs)}
    x = rng.normal(size=(6, 3)).astype(np.float32)
    check(single("SVMClassifier", [x], a, domain=ML, outputs=2), [x], rtol=1e-4, atol=1e-4)
    a = shared | {"coefficients": floats(rng, total), "n_supports": total, "rho": [0.2], "one_class": seed // 4 % 2}
    check(single("SVMRegressor", [x], a, domain=ML), [x], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3])
def test_linear_models(targets: int, transform: str) -> None:
    rng = np.random.default_rng(targets)
    labels = [f"class {i}" for i in range(max(targets, 2))]
    a = {"coefficients": floats(rng, targets, 3), "intercepts": floats(rng, targets), "post_transform": transform}
    for x in (rng.normal(size=(5, 3)).astype(np.float32), rng.integers(-3, 4, size=(5, 3)), np.ones(3)):
        check(single("LinearClassifier", [x], {**a, "classlabels_strings": labels}, domain=ML, outputs=2), [x])
        x = x.astype(np.float32)
        check(single("LinearRegressor", [x], {**a, "targets": targets}, domain=ML), [x])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_scaling_and_encoding(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, size=(4, 3)).astype(dtype)
    x[0] = 0
    for k in (1, 3):
        check(single("Scaler", [x], {"offset": floats(rng, k), "scale": floats(rng, k)}, domain=ML), [x])
    for norm in ("MAX", "L1", "L2"):
        check(single("Normalizer", [x], {"norm": norm}, domain=ML), [x])
    widths = [x[:, :1], x[:, :3], x[:, :2]]
    check(single("FeatureVectorizer", widths, {"inputdimensions": [2, 3, 1]}, domain=ML), widths)
    at = np.array([2, 0])
    for rows in (x, x[1]):
        check(single("ArrayFeatureExtractor", [rows, at], domain=ML), [rows, at])
    if dtype == np.float32:
        check(single("Binarizer", [x], {"threshold": 0.5}, domain=ML), [x])
        for missing in (2.0, float("nan")):
            y = np.where(x == 1, missing, x).astype(dtype)
            a = {"imputed_value_floats": floats(rng, 3), "replaced_value_float": missing}
            check(single("Imputer", [y], a, domain=ML), [y])
    if dtype != np.int32:
        check(single("OneHotEncoder", [x], {"cats_int64s": [2, 0, 1], "zeros": 1}, domain=ML), [x])


def test_labels() -> None:
    keys: dict[str, Any] = {"int64s": [4, 5, 6], "floats": [4.0, 5.0, float("nan")], "strings": ["a", "b", "c"]}
    values = {"int64s": [7, 8, 9], "floats": [0.5, 0.25, 2.0], "strings": ["x", "y", "z"]}
    inputs: dict[str, Any] = {
        "int64s": np.array([4, 9, 6]), "floats": np.array([4, 9, np.nan], np.float32),
        "strings": np.array(["a", "zz", "c"], object),
    }  # fmt: skip
    for kind, x in inputs.items():
        for to, numbers in values.items():
            for opset in (2, 4):
                a = {f"keys_{kind}": keys[kind], f"values_{to}": numbers}
                check(single("LabelEncoder", [x], a, domain=ML, opset=opset), [x])
    words = inputs["strings"]
    categories = {"cats_strings": ["b", "a", "c"], "cats_int64s": [4, 5, 6]}
    for x in (words, inputs["int64s"]):
        check(single("CategoryMapper", [x], categories, domain=ML), [x], on=("numpy",))
    check(single("OneHotEncoder", [words], {"cats_strings": ["b", "a"], "zeros": 1}, domain=ML), [words])
    check(single("ArrayFeatureExtractor", [words, np.array([[1]])], domain=ML), [words, np.array([[1]])])
    scores = np.array([[0.25, 0.75]], np.float32)
    check(single("ZipMap", [scores], {"classlabels_strings": ["u", "v"]}, domain=ML), [scores])
