"""An ONNX model as a program that `tg.source` writes down."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from tensorgraft.codegen.program import Evaluation, by_path, cosines
from tensorgraft.codegen.recorders.frames import Watched, framed
from tensorgraft.codegen.recorders.sized_values import said_as
from tensorgraft.codegen.trace import SourceTrace
from tensorgraft.frontends.onnx.codegen.normalisation import with_group_norms
from tensorgraft.frontends.onnx.codegen.recording import OnnxRecorder, RecordingPlanner
from tensorgraft.frontends.onnx.codegen.recurrent import module_attributes, with_recurrent_layers
from tensorgraft.frontends.onnx.codegen.scopes import (
    ModuleScopes,
    class_name,
    transposed_weights,
    weight_names,
    with_shared_values,
    without_shared_names,
)
from tensorgraft.frontends.onnx.graph import OnnxModel
from tensorgraft.frontends.onnx.models import OnnxCall, PlannedModel
from tensorgraft.frontends.onnx.values import lifted
from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.recorded.block import Var, mapped


class OnnxProgram:
    """A model, whose weights have the names of `codegen.scopes.weight_names`."""

    framework = "onnx"

    def __init__(self, model: OnnxModel) -> None:
        model = with_recurrent_layers(with_group_norms(without_shared_names(model)))
        graph, depths = with_shared_values(model.graph)
        model = replace(model, graph=graph)
        modules = {n: module_attributes(n, graph.initializers) for n in graph.nodes if n.op == "RecurrentModule"}
        self._scopes = ModuleScopes(depths, {n: (n.attributes["kind"], held) for n, held in modules.items()})
        self.planned = PlannedModel(model, RecordingPlanner(model.functions, model.opsets, self._scopes))
        self.names = weight_names(model, self.planned.weights)
        self._transposed = transposed_weights(model, self.planned.weights)
        title = os.path.basename(model.path).removesuffix(".onnx") if model.path else self.planned.name
        self.name = class_name(re.sub(r"\W+", "_", title).strip("_") or "model")
        self.origin = f"{model.path or self.planned.name} (ONNX {onnx.__version__}, opset {model.opsets.get('', 1)})"
        self._inputs = [re.sub(r"\W+", "_", name) for name in self.planned.inputs]

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]]:
        values = self.planned.bound(args, kwargs)
        return [x for x in values if x is not None], lambda new: (tuple(new), {})

    def extent_names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[list[str | None]]:
        """Return the names that the model gives to the extents of its inputs."""
        pairs = zip(self.planned.inputs.values(), self.planned.bound(args, kwargs), strict=True)
        return [[n if isinstance(n, str) else None for n in kind.shape or ()] for kind, x in pairs if x is not None]

    def resized(self, x: Any, shape: tuple[int, ...]) -> Any:
        values = self.numpy(x)
        for axis, n in enumerate(shape):
            if values.shape[axis] != n:
                values = np.take(values, np.arange(n) % values.shape[axis], axis=axis)
        return values

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)

    def _stored(self, name: str, x: Any) -> np.ndarray:
        """Return a weight as it is stored beside the file."""
        return np.ascontiguousarray(np.asarray(x).T) if name in self._transposed else np.asarray(x)

    # ---- its own results -------------------------------------------------------------------------------------------

    def evaluate(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool, same_numbers: bool = False
    ) -> Evaluation:
        """The results on NumPy, and gradients by the hub's tape."""
        if same_numbers:
            return Evaluation({}, {}, {}, "results are not compared: each framework has random numbers of its own")
        planned, xp = self.planned, registry.get("numpy")
        call = OnnxCall(planned, xp)
        inputs = [None if x is None else self.numpy(x) for x in planned.bound(args, kwargs)]
        outputs = {k: np.asarray(x) for k, x in by_path(call(planned.weights, *inputs)).items()}
        found: dict[str, np.ndarray] = {}
        trained = [n for n in planned.weights if n in planned.trained]
        if gradients and trained:
            weights = {n: np.asarray(x) for n, x in planned.weights.items()}

            def total(tape: Any, *arrays: Any) -> tuple[Any, ...]:
                values = {**weights, **dict(zip(trained, arrays, strict=True))}
                out = planned.plan(tape, *inputs, *(values[n] for n in planned.weights), None)
                return (_weighted_sum(tape, [lifted(tape, x) for x in out]),)

            with xp.scope():
                results, pull = xp.vjp(total, *(weights[n] for n in trained))
                cotangents = pull([np.ones_like(x) for x in results])
            found = {self.names[n]: self._stored(n, g) for n, g in zip(trained, cotangents, strict=True)}
        buffers = {self.names[n]: self._stored(n, x) for n, x in planned.weights.items() if n not in planned.trained}
        return Evaluation(outputs, found, buffers)

    # ---- the trace -------------------------------------------------------------------------------------------------

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SourceTrace:
        """Raises TracedValueError where an operator needs values for a shape."""
        planned = self.planned
        if planned.draws:
            raise NotImplementedError(f"{planned.name} draws random numbers, which are not written as source")
        examples = planned.bound(args, kwargs)
        inputs = [None if x is None else Var(tuple(np.shape(x)), self.numpy(x).dtype) for x in examples]
        values = {n: self._stored(n, x) for n, x in planned.weights.items()}
        stored = {n: Var(tuple(x.shape), x.dtype) for n, x in values.items()}
        xp = OnnxRecorder(stored.values(), [stored[n] for n in self._transposed])
        with xp.recording() as calls, xp.scope():
            out = planned.plan(xp, *inputs, *stored.values(), None)
            results = [xp.variable(lifted(xp, said_as(xp, x))) for x in out]
        result = results[0] if len(results) == 1 else tuple(results)
        arguments = [(n, x) for n, x in zip(self._inputs, inputs, strict=True) if x is not None]
        names = list(planned.model.graph.outputs)
        watched = Watched(
            self._scopes.calls,
            list(zip(names, results, strict=True)),
            {n: {-1: n} for n in names if n.isidentifier()},
            frozenset(),
            lambda tree, became: mapped(lambda x: x, tree),
        )
        root, (result, _), used = framed(xp, watched, calls, (result, {}), arguments, self.name)
        root.kind, root.is_module = self.name, True
        used_names = [n for n, v in stored.items() if v in used]
        return SourceTrace(
            framework="onnx",
            name=root.kind,
            root=root,
            arguments=arguments,
            result=result,
            parameters={self.names[n]: stored[n] for n in used_names if n in planned.trained},
            buffers={self.names[n]: stored[n] for n in used_names if n not in planned.trained},
            written={},
            aliases={},
            weights={self.names[n]: values[n] for n in used_names},
            notes=xp.notes,
        )


def _weighted_sum(xp: Any, arrays: list[Any]) -> Any:
    """Return the sum of the inexact arrays, each times its `cosines`."""
    total = None
    for x in arrays:
        if dtypes.is_inexact(xp.dtype_of(x)):
            part = xp.sum(xp.multiply(x, xp.asarray(cosines(x.shape).astype(xp.dtype_of(x)))))
            total = part if total is None else xp.add(total, xp.astype(part, xp.dtype_of(total)))
    return total
