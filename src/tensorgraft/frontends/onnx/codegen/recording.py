"""Graphs as recorded steps, with the modules around each node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from tensorgraft.codegen.recorders.recording import Scope, ScopedRecorder
from tensorgraft.codegen.recorders.sized_values import SizedValue, is_sized, said_as
from tensorgraft.frontends.onnx.codegen.scopes import ModuleScopes
from tensorgraft.frontends.onnx.graph import OnnxNode
from tensorgraft.frontends.onnx.planning import NodeCall, OnnxPlanner
from tensorgraft.frontends.onnx.values import lifted
from tensorgraft.hub.recorded.block import Var

# operators that create an array of a given size
MOST_AXES = 16  # a known array of integers with more elements is no shape
MAKERS = ("ConstantOfShape", "Expand", "EyeLike", "OneHot", "Range", "Tile")


class OnnxRecorder(ScopedRecorder):
    """Records steps of rules. `weights` are the model's, of which `transposed` are stored as (out, in)."""

    def __init__(self, weights: Collection[Var], transposed: Collection[Var]) -> None:
        super().__init__()
        self.weights, self.transposed = frozenset(weights), frozenset(transposed)
        self.transposes: dict[Var, Var] = {}  # those that the model computes, and their weights

    def asarray(self, x: Any, /) -> Any:
        return said_as(self, x) if is_sized(x) else super().asarray(np.asarray(x))


class RecordingPlanner(OnnxPlanner):
    """A planner whose steps record where they are."""

    def __init__(self, functions: Any, opsets: Any, scopes: ModuleScopes) -> None:
        super().__init__(functions, opsets)
        self.scopes = scopes
        self._outer: Scope = ()

    def inner(self) -> OnnxPlanner:
        return RecordingPlanner(self.functions, self.opsets, self.scopes)

    def observed(self, node: OnnxNode, run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        return _Observed(node, run, self.scopes.of(node))


class _Observed:
    """The function that records a node."""

    def __init__(self, node: OnnxNode, run: Callable[..., list[Any]], scope: Scope) -> None:
        self._node, self._run, self._scope = node, run, scope

    def __call__(self, xp: Any, *operands: Any) -> list[Any]:
        if not isinstance(xp, OnnxRecorder):
            return self._run(xp, *operands)
        before = xp.at_place, xp.at_scope
        xp.at_place, xp.at_scope = self._node.name or before[0], self._scope or before[1]
        try:
            return self._as_layer(xp, operands) or self._recorded(xp, operands)
        finally:
            xp.at_place, xp.at_scope = before

    def _as_layer(self, xp: OnnxRecorder, operands: Sequence[Any]) -> list[Any] | None:
        """Record a linear layer, or an embedding, if the node is one."""
        op = "" if self._node.domain else self._node.op
        first, second = (*operands, None, None)[:2]
        is_weight = type(first) is Var and first in xp.weights and first.ndim == 2
        if op == "Transpose" and is_weight and self._node.attributes.get("perm", (1, 0)) == (1, 0):
            transpose: Any = xp.matrix_transpose(first)
            xp.transposes[transpose] = first
            return [transpose]
        if op == "MatMul" and type(second) is Var:
            weight = second if second in xp.transposed else xp.transposes.get(second)
            if weight is not None:
                return [xp.linear(first, weight)]
        if op == "Gather" and is_weight and self._node.attributes.get("axis", 0) == 0 and np.ndim(second):
            return [xp.word("embedding", first, lifted(xp, second))]
        if op == "Resize" and type(first) is Var and isinstance(self._run, NodeCall):
            return self._resized(xp, first, *map(self._known, (*operands, None, None)[2:4]))
        return None

    def _known(self, x: Any) -> list[float]:
        return np.ravel(x).tolist() if isinstance(x, np.ndarray) else []

    def _resized(self, xp: OnnxRecorder, x: Var, scales: list[float], sizes: list[float]) -> list[Any] | None:
        """Record a resizing of the axes after the first two, if it is one of those that PyTorch has."""
        options = {"axes": (), "antialias": 0, "exclude_outside": 0, "cubic_coeff_a": -0.75, **self._node.attributes}
        mode, places = options.get("mode", "nearest"), options.get("coordinate_transformation_mode", "half_pixel")
        wanted = [int(m) for m in sizes] or [int(n * s) for n, s in zip(x.shape, scales, strict=False)]
        exact = not scales or all(n * s == m for n, s, m in zip(x.shape, scales, wanted, strict=True))
        ranks = {"linear": (3, 4, 5), "cubic": (4,), "nearest": (3, 4, 5)}
        is_kept = len(wanted) == x.ndim and tuple(wanted[:2]) == x.shape[:2] and exact
        is_plain = not options["axes"] and not options["antialias"] and not options["exclude_outside"]
        is_stretched = options.get("keep_aspect_ratio_policy", "stretch") == "stretch"
        if not (is_kept and is_plain and is_stretched and x.dtype.kind == "f" and x.ndim in ranks.get(mode, ())):
            return None
        size = tuple(wanted[2:])
        if mode == "nearest":
            is_usual = places == "asymmetric" and options.get("nearest_mode") == "floor"
            return [xp.word("resize", x, size)] if is_usual else None
        corners = places == "align_corners"
        is_usual = places == "half_pixel" or (places in ("pytorch_half_pixel", "align_corners") and min(size) > 1)
        if not is_usual or options["cubic_coeff_a"] != -0.75:
            return None
        return [xp.word("resize", x, size, method=mode, **({"corners": True} if corners else {}))]

    def _recorded(self, xp: OnnxRecorder, operands: Sequence[Any]) -> list[Any]:
        results = self._run(xp, *operands)
        if not isinstance(self._run, NodeCall) or not any(self._is_created(x, operands) for x in results):
            return results
        steps = self._run.unfolded(xp, *operands)
        return [
            SizedValue.of(x, s) if type(s) is Var and isinstance(x, np.ndarray) and x.shape == s.shape else x
            for x, s in zip(results, steps, strict=True)
        ]

    def _is_created(self, x: Any, operands: Sequence[Any]) -> bool:
        """Return whether a known result is an array of the program, made to a size here or by a node before."""
        if not isinstance(x, np.ndarray) or x.size < 2 or x.dtype == object:
            return False
        if self._node.op in MAKERS or any(map(is_sized, operands)):
            return True
        table = operands[0] if operands else None  # a part of one: positions up to a length
        return self._node.op in ("Gather", "Slice") and isinstance(table, np.ndarray) and table.size > MOST_AXES
