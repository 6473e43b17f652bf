"""PyTorch's own tests that take a device: its test tools make a class of each for every device that they know, and one
of Python's is among them once it is there."""

from __future__ import annotations

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
    """Give the tools of a later release the decorators of an earlier one that they have no more; they do nothing."""

    def absent(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda function=None, *arguments, **options: function

    for name in modules:
        module: Any = importlib.import_module(name)
        module.__getattr__ = absent
