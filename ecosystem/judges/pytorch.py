"""PyTorch's own tests that take a device: its test tools make a class of each for every device that they know, and one
of Python's is among them once it is there."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import pytest

TOOLS = tuple(
    f"torch.testing._internal.common_{name}"
    for name in ("utils", "cuda", "device_type", "dtype", "methods_invocations", "nn")
)


def pytest_configure(config: pytest.Config) -> None:
    import torch

    backend = config.getoption("--suite-on")
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = "privateuse1" if backend else "cpu"
    if backend:
        import tensorgraft as tg

        torch.zeros(1, device=tg.device(backend))
    complete(*TOOLS)


def complete(*modules: str) -> None:
    """Give the tools of a later release the names of an earlier one that they have no more: lists of operators, which
    have the references among them now, and decorators, which do nothing."""

    def absent(module: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        operators = vars(module).get(name.removesuffix("_and_refs"))
        return (lambda function=None, *arguments, **options: function) if operators is None else operators

    for name in modules:
        module: Any = importlib.import_module(name)
        module.__getattr__ = functools.partial(absent, module)
