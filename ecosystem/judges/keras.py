"""What Keras' tests import from the `conftest` of its repository, which its packages do not have.

The tests run under `tensorgraft run`, where Keras' PyTorch backend finds an accelerator.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest


def skip_if_backend(backend: str, reason: str) -> Any:
    import keras

    return pytest.mark.skipif(keras.backend.backend() == backend, reason=reason)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "requires_trainable_backend: not of NumPy and OpenVINO")
    conftest = ModuleType("conftest")
    conftest.skip_if_backend = skip_if_backend  # type: ignore[attr-defined]
    sys.modules.setdefault("conftest", conftest)
