"""A module as a recorded program: `tg.graft(module, onto="numpy")`.

PyTorch is needed while a signature is recorded; recorded programs need only NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import SUPPORTED_NODES

from tensorgraft.frontends.torch.compiled.guards.assumptions import surroundings
from tensorgraft.frontends.torch.core.devices import recording_slot
from tensorgraft.frontends.torch.graph.module_state import ModuleState
from tensorgraft.frontends.torch.graph.pure_function import PureFunction
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded.function import CallSignature, Recorded, RecordingFunction
from tensorgraft.hub.recorded.tracing import program_backend
from tensorgraft.hub.sparse_arrays import SparseArray


class GraftedFunction(RecordingFunction):
    """A module as a function of arrays of `xp`, with the current values of its parameters and buffers. Programs are
    recorded again if the module's modes change."""

    weights_label = "buffers"
    stateless = "call .eval() of the module before, or graft it onto 'tensorflow' or 'jax'"

    def __init__(self, module: torch.nn.Module, xp: Backend) -> None:
        recording_slot(program_backend())
        with xp.scope():
            params, buffers = ModuleState(module).arrays(xp)
            weights = {name: np.array(xp.to_numpy(a)) for name, a in {**params, **buffers}.items()}
        super().__init__(xp, type(module).__name__, weights)
        self.module = module
        self._params, self._buffers = list(params), list(buffers)
        self._pure = PureFunction(module, program_backend(), "seed=... (an int, or two integers)")
        self._modes: tuple[Any, ...] = ()

    def recorded(self, signature: CallSignature) -> Recorded:
        modes = (tuple(m.training for m in self.module.modules()), surroundings(self.module))
        if modes != self._modes or not self._pure.holds():  # other programs; one is saved for each signature
            self.programs.clear()
            self._run.clear()
            self._pure.forget()
            self._modes = modes
        return super().recorded(signature)

    def evaluate(self, weights: dict[str, Array], args: Any, kwargs: Any, seed: Array | None) -> tuple[Any, Any]:
        params = {name: weights[name] for name in self._params}
        buffers = {name: weights[name] for name in self._buffers}
        out, new_values = self._pure.call(params, buffers, args, kwargs, seed)
        return _known(out), new_values


def _known(tree: Any) -> Any:
    """Replace containers of other classes that PyTorch registers, and saved files cannot have, by lists."""
    if type(tree) is SparseArray:
        return tree
    if isinstance(tree, tuple):
        return tuple(map(_known, tree))
    if isinstance(tree, dict):
        return {key: _known(x) for key, x in tree.items()}
    if type(tree) is not list and type(tree) in SUPPORTED_NODES:
        tree = SUPPORTED_NODES[type(tree)].flatten_fn(tree)[0]
    return list(map(_known, tree)) if type(tree) is list else tree
