"""Numbers of Python that a traced function has read of tensors, as PyTorch's C++ holds them: nodes of `torch.SymFloat`
and `torch.SymInt`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.core.traced_values import asked_for_value

SYMBOLIC = frozenset({torch.SymFloat, torch.SymInt})


class ScalarNode:
    """The node of a number that is the value of a tensor without axes, float64 or int64. Whoever asks it for the number
    gets a TracedValueError."""

    def __init__(self, compute: Callable[[], torch.Tensor], floating: bool) -> None:
        self._compute, self._floating = compute, floating

    @functools.cached_property
    def tensor(self) -> torch.Tensor:
        """The tensor, which is computed when it is needed: a sum that a call adds to a number of Python is not."""
        with torch.no_grad():
            return self._compute()

    def is_int(self) -> bool:
        return not self._floating

    def is_float(self) -> bool:
        return self._floating

    def is_bool(self) -> bool:
        return False

    is_nested_int = is_bool

    def is_symbolic(self) -> bool:
        return True

    def str(self) -> str:
        return "traced"

    _graph_repr = str

    def __getattr__(self, name: Any) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise asked_for_value(self.tensor)


def tensor_of(number: Any) -> torch.Tensor:
    """Return the tensor that has the value of a symbolic number. Raises TypeError for a symbolic number of another
    tracer."""
    if not isinstance(number.node, ScalarNode):
        raise TypeError(f"a {type(number).__name__} that is not of tg.jit: expected a Python number")
    return number.node.tensor
