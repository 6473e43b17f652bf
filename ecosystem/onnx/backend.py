"""The interface that ONNX's tests call (`onnx.backend.base`), on tensorgraft."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.backend.base import Backend, BackendRep

from tensorgraft.frontends.onnx.element_types import STRING
from tensorgraft.frontends.onnx.models import OnnxCall, PlannedModel
from tensorgraft.frontends.onnx.reading import read
from tensorgraft.hub import registry


class Prepared(BackendRep):
    """A model on a backend, whose inputs and results are NumPy's arrays."""

    def __init__(self, model: Any, on: str) -> None:
        self.xp = registry.get(on)
        self.call = OnnxCall(PlannedModel(read(model)), self.xp)
        self.dtypes = [t.dtype for t in self.call.planned.model.graph.outputs.values()]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = dict(zip(self.call.planned.inputs, inputs, strict=False)) if not isinstance(inputs, dict) else inputs
        with self.xp.scope():
            out = self.call(self.call.planned.weights, **given)
        results = out if isinstance(out, tuple) else (out,)
        return tuple(self.host(x, t) for x, t in zip(results, self.dtypes, strict=True))

    def host(self, x: Any, dtype: Any) -> Any:
        if isinstance(x, list):
            return [self.host(v, None) for v in x]
        if x is None or isinstance(x, np.ndarray | dict):
            return x
        values = self.xp.to_numpy(x)
        return values if dtype is None or dtype in (values.dtype, STRING) else values.astype(dtype)


def backend_on(name: str) -> type[Backend]:
    """Return the backend class for ONNX's runner."""

    class OnBackend(Backend):
        @classmethod
        def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Prepared:
            return Prepared(model, name)

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

        @classmethod
        def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
            return True

    return OnBackend
