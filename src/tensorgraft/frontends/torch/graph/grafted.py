"""`tg.graft(module, onto=...)`: a module as JAX, TensorFlow and NumPy know functions.

For JAX it is a pure function and its state, for TensorFlow a `tf.Module`, which has the state (both are a
`pure_function`); for NumPy it is recorded (`grafted_program`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from tensorgraft.frontends.torch.core.devices import recording_slot, slot_named
from tensorgraft.frontends.torch.graph import exported
from tensorgraft.frontends.torch.graph.grafted_program import GraftedFunction
from tensorgraft.frontends.torch.graph.module_state import ModuleState
from tensorgraft.frontends.torch.graph.pure_function import PureFunction
from tensorgraft.frontends.torch.quantized import tensors as quantized
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded.tracing import program_backend
from tensorgraft.quantization import policy

Tensor = torch.Tensor
Arrays = Mapping[str, Array]


class GraftedModule(NamedTuple):
    """A module as a pure function.

    `out, buffers = apply(params, buffers, *args, key=None, **kwargs)`: arrays for tensors, and the module's own results
    with arrays for tensors. `params` and `buffers` have the names of `state_dict()`; of tied parameters, the first.
    """

    apply: Callable[..., tuple[Any, dict[str, Array]]]
    params: dict[str, Array]
    buffers: dict[str, Array]


def graft_module(module: Any, onto: str) -> Any:
    """Return a module or an exported program as `Grafted` (JAX), a `tf.Module` (TensorFlow) or a `Function` (NumPy).
    The module is not changed, and each call uses its current modes."""
    slot = slot_named(onto)
    xp = slot.backend
    if xp.grafted_as is None:
        raise TypeError(f"tg.graft takes a torch.nn.Module onto 'jax', 'tensorflow' or 'numpy', not onto {onto!r}")
    if exported.is_exported(module):
        device = recording_slot(program_backend()).device if xp.grafted_as == "program" else slot.device
        module = exported.on_device(module, device)
    _make_dense(module, onto)
    if xp.grafted_as == "program":
        return GraftedFunction(module, xp)
    with xp.scope():
        params, buffers = ModuleState(module).arrays(xp)
    if xp.grafted_as == "function":
        return GraftedModule(PureFunction(module, xp), params, buffers)
    return _native_module(module, xp, params, buffers)


def _make_dense(module: torch.nn.Module, onto: str) -> None:
    """Return state as dense arrays, which is counted; raises an error if products would give other numbers."""
    state = [*module.named_parameters(), *module.named_buffers()]
    schemes = {name: quantized.array_of(t).scheme for name, t in state if quantized.is_quantized(t)}
    for name, scheme in schemes.items():
        if scheme.activation is not None:
            raise NotImplementedError(
                f"tg.graft onto {onto!r}: {name} is quantised as {scheme}, which also quantises activations; the"
                " function would use its dense weight, and return different results: call tg.dequantize on the"
                f" weight first, or move the model, module.to(tg.device({onto!r}))"
            )
    if schemes:
        policy.missing("tg.graft", ", ".join(f"{scheme} {name}" for name, scheme in schemes.items()))


def _native_module(module: torch.nn.Module, xp: Backend, params: dict[str, Array], buffers: dict[str, Array]) -> Any:
    function = PureFunction(module, xp, "seed=... (an int, or two integers)")

    def call(values: Arrays, *args: Any, seed: Any = None, **kwargs: Any) -> tuple[Any, dict[str, Array]]:
        state = {name: values[name] for name in params}, {name: values[name] for name in buffers}
        with xp.scope():
            return function.call(*state, args, kwargs, seed)

    trained = {name: a for name, a in params.items() if name in function.state.trained}
    fixed = {name: a for name, a in {**params, **buffers}.items() if name not in function.state.trained}
    return xp.module(call, trained, fixed, stateful=True, name=type(module).__name__)
