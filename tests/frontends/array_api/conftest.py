"""Every backend that is installed, as `device=`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tensorgraft as tg
from tensorgraft.hub import registry

BACKENDS = registry.backends()
# JAX and TensorFlow compile for every shape
EXAMPLES = {name: 100 if name in ("numpy", "torch") else 10 for name in BACKENDS}


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """A backend, which is the default device as long as the test runs."""
    before = registry.default()
    tg.set_default_device(request.param)
    yield request.param
    tg.set_default_device(before)
