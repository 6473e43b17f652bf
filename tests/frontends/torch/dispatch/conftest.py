"""The devices of tests of dispatch."""

import pytest

import tensorgraft as tg

BACKENDS = ["numpy", "jax"]


@pytest.fixture(params=BACKENDS)
def device(request):
    if request.param == "jax":
        pytest.importorskip("jax")
    return tg.device(request.param)


@pytest.fixture(scope="module")
def jax_device():
    pytest.importorskip("jax")
    return tg.device("jax")
