"""Rules for ensembles of decision trees, as gathers: each turn moves every row one level down in every tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.frontends.onnx.rules.learners import DOMAIN, labelled, of_two_classes, regressed, transformed
from tensorgraft.hub import dtypes

COMPARISONS = {
    "BRANCH_LEQ": "less_equal", "BRANCH_LT": "less", "BRANCH_GTE": "greater_equal", "BRANCH_GT": "greater",
    "BRANCH_EQ": "equal", "BRANCH_NEQ": "not_equal",
}  # fmt: skip
MODES = (*COMPARISONS, "BRANCH_MEMBER")


@dataclass
class Trees:
    """All nodes of all trees; a leaf leads to itself."""

    feature: np.ndarray
    mode: np.ndarray  # of strings
    value: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing_is_yes: np.ndarray
    roots: np.ndarray
    members: list[Any]  # for each node, the values of its set

    def depth(self) -> int:
        """Return how many turns lead every row to a leaf. Raises ValueError for nodes that lead back."""
        level, count = self.roots, 0
        while (self.mode[level] != "LEAF").any():
            inner = level[self.mode[level] != "LEAF"]
            level = np.unique(np.concatenate([self.yes[inner], self.no[inner]]))
            count += 1
            if count > len(self.mode):
                raise ValueError("the nodes of a tree lead back to themselves")
        return count

    def leaves(self, xp: Any, x: Any) -> Any:
        """Return the leaf that each row of x (N, features) reaches in each tree: int64 (N, trees)."""
        at = xp.broadcast_to(xp.asarray(self.roots), (x.shape[0], len(self.roots)))
        dtype = xp.dtype_of(x)
        columns = [xp.asarray(a) for a in (self.feature, self.value.astype(dtype), self.yes, self.no)]
        for _ in range(self.depth()):
            feature, value, yes, no = (xp.gather(c, (at,)) for c in columns)
            features = xp.take_along_axis(x, feature, 1)
            at = xp.where(self._taken(xp, at, features, value), yes, no)
        return at

    def _taken(self, xp: Any, at: Any, features: Any, value: Any) -> Any:
        """Return whether each row takes the branch of yes."""
        kinds = [m for m in MODES if (self.mode == m).any()]
        taken = None
        for kind in kinds:
            if kind == "BRANCH_MEMBER":
                holds = self._is_member(xp, at, features)
            else:
                holds = getattr(xp, COMPARISONS[kind])(features, value)
            if taken is None:
                taken = holds
            else:
                is_kind = xp.gather(xp.asarray(self.mode == kind), (at,))
                taken = xp.where(is_kind, holds, taken)
        if self.missing_is_yes.any():
            tracks = xp.gather(xp.asarray(self.missing_is_yes), (at,))
            taken = xp.logical_or(taken, xp.logical_and(tracks, xp.isnan(features)))
        return taken

    def _is_member(self, xp: Any, at: Any, features: Any) -> Any:
        most = max(map(len, self.members))
        rows = np.full((len(self.members), most), np.nan, xp.dtype_of(features))
        for row, members in zip(rows, self.members, strict=True):
            row[: len(members)] = members
        sets = xp.gather(xp.asarray(rows), (at,))
        return xp.any(xp.equal(sets, xp.expand_dims(features, -1)), -1)


def _by_ids(given: dict[str, Any]) -> tuple[Trees, dict[tuple[int, int], int]]:
    """Return trees of attributes that name nodes by (tree, node), and the number of each node."""
    trees, nodes = given["nodes_treeids"], given["nodes_nodeids"]
    number = {key: i for i, key in enumerate(zip(trees, nodes, strict=True))}
    mode = np.array(given["nodes_modes"], object)
    itself = np.arange(len(mode))

    def targets(name: str) -> np.ndarray:
        ids = given[name]
        return np.array([i if mode[i] == "LEAF" else number[trees[i], ids[i]] for i in range(len(mode))], np.int64)

    roots = [i for i, t in enumerate(trees) if t not in trees[:i]]
    values = given.get("nodes_values_as_tensor")
    values = np.asarray(given["nodes_values"], np.float32) if values is None else values
    missing = np.array(given.get("nodes_missing_value_tracks_true") or itself * 0, bool)
    feature = np.where(mode == "LEAF", 0, np.array(given["nodes_featureids"], np.int64))
    found = Trees(
        feature, mode, values, targets("nodes_truenodeids"), targets("nodes_falsenodeids"), missing,
        np.array(roots, np.int64), [()] * len(mode),
    )  # fmt: skip
    return found, number


def _leaf_weights(
    given: dict[str, Any], prefix: str, number: dict[tuple[int, int], int], count: int, targets: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (the weights of each node for each target, whether it has one)."""
    weights = given.get(f"{prefix}_weights_as_tensor")
    weights = np.asarray(given[f"{prefix}_weights"], np.float32) if weights is None else weights
    table = np.zeros((count, targets), weights.dtype)
    has = np.zeros((count, targets), bool)
    rows = [number[key] for key in zip(given[f"{prefix}_treeids"], given[f"{prefix}_nodeids"], strict=True)]
    np.add.at(table, (rows, given[f"{prefix}_ids"]), weights)
    has[rows, given[f"{prefix}_ids"]] = True
    return table, has


def _aggregated(xp: Any, at: Any, weights: np.ndarray, has: np.ndarray, kind: str, trees: int) -> Any:
    """Return (N, targets) of the leaves (N, trees)."""
    values = xp.gather(xp.asarray(weights), (at,))
    if kind in ("SUM", "AVERAGE"):
        total = xp.sum(values, 1)
        return xp.divide(total, float(trees)) if kind == "AVERAGE" else total
    name = kind.lower()
    identity = xp.full((), -np.inf if name == "max" else np.inf, weights.dtype)
    reached = xp.gather(xp.asarray(has), (at,))
    best = getattr(xp, name)(xp.where(reached, values, identity), 1)
    return xp.where(xp.any(reached, 1), best, xp.zeros_like(best))


def _with_base(xp: Any, scores: Any, base: tuple[float, ...], tensor: Any) -> Any:
    """Add the base values, of which there are as many as scores, one of a single score, or none."""
    values = np.ravel(np.asarray(base, np.float32) if tensor is None else tensor)
    return xp.add(scores, xp.asarray(values.astype(xp.dtype_of(scores)))) if values.size else scores


@rule("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(
    xp: Any, x: Any, *, aggregate_function: str = "SUM", n_targets: int = 1, post_transform: str = "NONE",
    base_values: tuple[float, ...] = (), base_values_as_tensor: Any = None, node: Any = None,
) -> Any:  # fmt: skip
    given = node.attributes
    trees, number = _by_ids(given)
    weights, has = _leaf_weights(given, "target", number, len(trees.mode), n_targets)
    scores = _aggregated(xp, trees.leaves(xp, _features(xp, x)), weights, has, aggregate_function, len(trees.roots))
    scores = regressed(xp, _with_base(xp, scores, base_values, base_values_as_tensor), post_transform)
    return xp.astype(scores, dtypes.float32)


def _features(xp: Any, x: Any) -> Any:
    return x if xp.dtype_of(x) in dtypes.FLOATING else xp.astype(x, dtypes.float32)


@rule("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(
    xp: Any, x: Any, *, post_transform: str = "NONE", base_values: tuple[float, ...] = (),
    base_values_as_tensor: Any = None, classlabels_int64s: tuple[int, ...] = (),
    classlabels_strings: tuple[str, ...] = (), node: Any = None,
) -> Any:  # fmt: skip
    given = node.attributes
    labels: Any = classlabels_int64s or classlabels_strings
    trees, number = _by_ids(given)
    ids = given["class_ids"]
    weights, has = _leaf_weights(given, "class", number, len(trees.mode), len(labels))
    at = trees.leaves(xp, _features(xp, x))
    scores = _aggregated(xp, at, weights, has, "SUM", len(trees.roots))
    base = np.size(base_values if base_values_as_tensor is None else base_values_as_tensor)
    if len(labels) == 2 and base == 1:  # of the first class
        zero = xp.zeros((1,), xp.dtype_of(scores))
        scores = xp.add(scores, xp.concat([_with_base(xp, zero, base_values, base_values_as_tensor), zero], axis=0))
    else:
        scores = _with_base(xp, scores, base_values, base_values_as_tensor)
    if len(labels) == 2 and len(set(ids)) == 1:
        label, scores = _of_one_class(xp, scores, ids[0], bool((weights >= 0).all()), base, post_transform)
    else:
        label = xp.argmax(scores if base else _among_reached(xp, scores, at, has), 1)
        scores = transformed(xp, scores, post_transform)
    return [labelled(xp, label, labels), xp.astype(scores, dtypes.float32)]


def _of_one_class(xp: Any, scores: Any, column: int, is_probability: bool, base: int, kind: str) -> tuple[Any, Any]:
    """Return (the class, its scores) for trees whose leaves have weights of one class of two: probabilities tell the
    second class by one half, other scores by their sign. The class without weights has the score 0."""
    score = xp.take_slice(scores, 1, column, column + 1)
    label = xp.astype(xp.greater(xp.squeeze(score, 1), 0.5 if is_probability else 0), dtypes.int64)
    if column == 0 and base < 2:
        return label, of_two_classes(xp, score, kind, is_probability)
    none = xp.zeros_like(score)
    return label, transformed(xp, xp.concat([none, score] if column else [score, none], axis=1), kind)


def _among_reached(xp: Any, scores: Any, at: Any, has: np.ndarray) -> Any:
    """Return scores, and minus infinity for classes for which no reached leaf has a weight."""
    leaves = has.any(1)
    if has[leaves].all():
        return scores
    reached = xp.any(xp.gather(xp.asarray(has), (at,)), 1)
    return xp.where(reached, scores, xp.full((), -np.inf, xp.dtype_of(scores)))


@rule("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(
    xp: Any, x: Any, *, aggregate_function: int = 1, leaf_targetids: tuple[int, ...], leaf_weights: Any,
    membership_values: Any = None, n_targets: int = 1, nodes_falseleafs: tuple[int, ...],
    nodes_falsenodeids: tuple[int, ...], nodes_featureids: tuple[int, ...], nodes_missing_value_tracks_true: Any = (),
    nodes_modes: Any, nodes_splits: Any, nodes_trueleafs: tuple[int, ...], nodes_truenodeids: tuple[int, ...],
    post_transform: int = 0, tree_roots: tuple[int, ...],
) -> Any:  # fmt: skip
    inner, leaves = len(nodes_featureids), len(leaf_targetids)
    yes = np.array(nodes_truenodeids) + np.where(nodes_trueleafs, inner, 0)
    no = np.array(nodes_falsenodeids) + np.where(nodes_falseleafs, inner, 0)
    ends = np.arange(inner, inner + leaves)
    mode = np.array([*(MODES[m] for m in np.ravel(nodes_modes)), *["LEAF"] * leaves], object)
    tracks = np.array([*(nodes_missing_value_tracks_true or [0] * inner), *[0] * leaves], bool)
    trees = Trees(
        np.array([*nodes_featureids, *[0] * leaves], np.int64), mode,
        np.concatenate([np.ravel(nodes_splits), np.zeros(leaves)]), np.concatenate([yes, ends]).astype(np.int64),
        np.concatenate([no, ends]).astype(np.int64), tracks, np.array(tree_roots, np.int64),
        _memberships(mode, membership_values),
    )  # fmt: skip
    weights = np.zeros((inner + leaves, n_targets), leaf_weights.dtype)
    has = np.zeros((inner + leaves, n_targets), bool)
    weights[ends, list(leaf_targetids)] = leaf_weights
    has[ends, list(leaf_targetids)] = True
    kind = ("AVERAGE", "SUM", "MIN", "MAX")[aggregate_function]
    scores = _aggregated(xp, trees.leaves(xp, x), weights, has, kind, len(tree_roots))
    return regressed(xp, scores, ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[post_transform])


def _memberships(mode: np.ndarray, values: Any) -> list[Any]:
    """Return the set of each node, of which the values are separated by NaN."""
    sets: list[list[float]] = [[]]
    for v in np.ravel(values) if values is not None else ():
        if np.isnan(v):
            sets.append([])
        else:
            sets[-1].append(float(v))
    remaining = iter(sets)
    return [next(remaining) if m == "BRANCH_MEMBER" else () for m in mode]
