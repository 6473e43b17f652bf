"""A module as a recorded program: `tg.graft(module, onto="numpy")`.

PyTorch is there while a signature is recorded; what is recorded needs NumPy alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import SUPPORTED_NODES

from tensorgraft.frontends.torch.compiled.guards.assumptions import surroundings
from tensorgraft.frontends.torch.core.devices import recording_slot
from tensorgraft.frontends.torch.graph.pure_function import PureFunction, state_of
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded.function import SEED, CallSignature, Function, Recorded, specs_of
from tensorgraft.hub.recorded.structure import flatten, unflatten
from tensorgraft.hub.recorded.tracing import program_backend, record


class GraftedFunction(Function):
    """A module as a function of arrays of `xp`, with its parameters and buffers as they are now. It is recorded when it
    is called with arguments that look new, or in other modes."""

    def __init__(self, module: torch.nn.Module, xp: Backend) -> None:
        recording_slot(program_backend())
        with xp.scope():
            params, buffers = state_of(module, xp)
            weights = {name: np.array(xp.to_numpy(a)) for name, a in {**params, **buffers}.items()}
        super().__init__(xp, type(module).__name__, weights)
        self.module = module
        self._params, self._buffers = list(params), list(buffers)
        self._pure = PureFunction(module, program_backend(), "seed=... (an int, or two integers)")
        self._modes: tuple[Any, ...] = ()

    def recorded(self, signature: CallSignature) -> Recorded:
        modes = (tuple(m.training for m in self.module.modules()), surroundings(self.module))
        if modes != self._modes:  # other programs, of which one is saved for each signature
            self.programs.clear()
            self._run.clear()
            self._modes = modes
        program = self.programs.get(signature)
        if program is None:
            program = self.programs[signature] = self._record(signature)
        return program

    def _record(self, signature: CallSignature) -> Recorded:
        results: Any = None

        def run(xp: Backend, *arrays: Array) -> list[Array]:
            nonlocal results
            remaining = iter(arrays)
            params = {name: next(remaining) for name in self._params}
            buffers = {name: next(remaining) for name in self._buffers}
            args, kwargs = unflatten(signature.arguments, remaining)
            out, new_values = self._pure.call(params, buffers, args, kwargs, next(remaining, None))
            if new_values:
                raise ValueError(
                    f"{self.__name__} writes its buffers ({', '.join(new_values)}), but a plain function has no"
                    " state: call .eval() of the module before, or graft it onto 'tensorflow' or 'jax'"
                )
            results, flat = flatten(_known(out), xp.operand, f"what {self.__name__} returns")
            return flat

        specs = [*specs_of(self.weights.values()), *signature.specs, *[SEED] * signature.seeded]
        program = record(run, specs)
        return Recorded(program, results)


def _known(tree: Any) -> Any:
    """Containers of other classes, which PyTorch knows and files do not, as lists of what is in them."""
    if isinstance(tree, tuple):
        return tuple(map(_known, tree))
    if isinstance(tree, dict):
        return {key: _known(x) for key, x in tree.items()}
    if type(tree) is not list and type(tree) in SUPPORTED_NODES:
        tree = SUPPORTED_NODES[type(tree)].flatten_fn(tree)[0]
    return list(map(_known, tree)) if type(tree) is list else tree
