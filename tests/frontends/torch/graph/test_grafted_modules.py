"""Every module of PyTorch's database as a function of NumPy arrays, against PyTorch in evaluation mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_leaves, tree_map

import tensorgraft as tg

pytestmark = pytest.mark.filterwarnings("ignore")
# what their forward functions ask of values is asked of nothing that could be recorded
MODULES = {info.name: info for info in module_db if "Lazy" not in info.name}


def example(info: Any) -> tuple[torch.nn.Module, Any, Any] | None:
    """The first module of the database that PyTorch itself runs, its arguments and results."""
    torch.manual_seed(0)
    for given in info.module_inputs_func(info, "cpu", torch.float32, requires_grad=False, training=False):
        if given.forward_input is None:
            continue
        module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).eval()
        args, kwargs = tuple(given.forward_input.args), given.forward_input.kwargs
        try:
            with torch.no_grad():
                return module, (args, kwargs), module(*args, **kwargs)
        except RuntimeError:
            continue
    return None


@pytest.mark.parametrize("name", sorted(MODULES))
def test_module(name: str) -> None:
    found = example(MODULES[name])
    if found is None:
        pytest.skip("the database has no arguments that PyTorch takes")
    module, given, expected = found
    f = tg.graft(module, onto="numpy")
    args, kwargs = tree_map(lambda t: t.numpy() if isinstance(t, torch.Tensor) else t, given)
    for a, b in zip(tree_leaves(f(*args, **kwargs)), tree_leaves(expected), strict=True):
        if isinstance(b, torch.Tensor):
            assert (a.shape, a.dtype) == (b.shape, b.numpy().dtype)
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=1e-5)
