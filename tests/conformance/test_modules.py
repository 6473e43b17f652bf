"""PyTorch's module database (ModuleInfo) on every backend, against CPU PyTorch, in training and evaluation mode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.conformance import cases
from tests.conformance.compare import compare
from tests.conformance.modes import Skip, is_random
from tests.conformance.moving import Move
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.filterwarnings("ignore")
CASES = cases.module_cases


def test_module(case: cases.Case, device: torch.device, samples: int) -> None:
    info = cases.modules()[case.name]
    compared = 0
    for training in (False, True):
        torch.manual_seed(0)
        inputs = info.module_inputs_func(
            info, "cpu", getattr(torch, case.dtype), requires_grad=case.mode == "backward", training=training
        )
        for given in inputs[:: max(1, len(inputs) // (2 * samples))]:
            if given.forward_input is None:
                continue
            module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
            module.to(getattr(torch, case.dtype)).train(training)
            try:
                globals()[f"check_{case.mode}"](module, given.forward_input, device)
            except Skip:
                continue
            compared += 1
    if not compared:
        pytest.skip("no input that the CPU can do")


def check_forward(module: torch.nn.Module, given: Any, device: torch.device) -> None:
    _run(module, given, device)


def check_backward(module: torch.nn.Module, given: Any, device: torch.device) -> None:
    """Gradients of every parameter and input for the same random cotangents."""
    here, there, random = _run(module, given, device)
    if random:
        raise Skip("random")
    cotangents = [torch.randn_like(t) for t in here.differentiable()]
    if not cotangents:
        raise Skip("no gradient")
    compare(here.gradients(cotangents), there.gradients([c.to(device) for c in cotangents]), "gradients")


def check_transfer(module: torch.nn.Module, given: Any, device: torch.device) -> None:
    """There and back: parameters stay what they are, the state fits, copies are copies."""
    module(*given.args, **given.kwargs)  # lazy modules get their parameters
    kinds = {name: type(p) for name, p in module.named_parameters()}
    state = {name: value for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}
    there = copy.deepcopy(module).to(device)
    assert {name: type(p) for name, p in there.named_parameters()} == kinds
    assert all(p.device == device and p.is_leaf for p in there.parameters())
    compare(state, {n: v for n, v in there.state_dict().items() if n in state}, "state")
    other = copy.deepcopy(there)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    compare(dict(module.named_parameters()), dict(there.named_parameters()), "parameters beside a changed copy")
    other.load_state_dict(module.state_dict())
    back = other.to("cpu")
    compare(state, {n: v for n, v in back.state_dict().items() if n in state}, "state after the way back")


class _Ran:
    """A module, its inputs, and what came out."""

    def __init__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self.module, self.args, self.kwargs = module, args, kwargs
        self.result = module(*args, **kwargs)

    def differentiable(self) -> list[torch.Tensor]:
        return [t for t in tree_leaves(self.result) if isinstance(t, torch.Tensor) and t.requires_grad]

    def gradients(self, cotangents: list[torch.Tensor]) -> list[torch.Tensor]:
        given = [t for t in tree_leaves((self.args, self.kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        return list(
            torch.autograd.grad(
                self.differentiable(), [*parameters, *given], cotangents, allow_unused=True, materialize_grads=True
            )
        )


def _run(module: torch.nn.Module, given: Any, device: torch.device) -> tuple[_Ran, _Ran, bool]:
    """The module on the CPU and on the device, compared; and whether it is random."""
    args, kwargs = given.args, given.kwargs
    there = copy.deepcopy(module).to(device)
    moved = Move(device)((args, kwargs))
    try:
        random = is_random(lambda m, *a, **k: copy.deepcopy(module)(*a, **k), (None, args, kwargs))
        here = _Ran(module, args, kwargs)
    except Exception as error:
        raise Skip(f"the CPU raises {type(error).__name__}") from None
    ran = _Ran(there, *moved)
    if not random:
        compare(here.result, ran.result, "result", lambda: _double(module, given))
        compare(dict(module.named_buffers()), dict(there.named_buffers()), "buffers")
    for t in tree_leaves(ran.result):
        assert not isinstance(t, torch.Tensor) or t.device == device, f"a result is on {t.device}"
    return here, ran, random


def _double(module: torch.nn.Module, given: Any) -> Any:
    from tests.conformance.moving import double

    args, kwargs = double((given.args, given.kwargs))
    return copy.deepcopy(module).double()(*args, **kwargs)
