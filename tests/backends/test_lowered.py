"""What the hub's operations are on JAX for GPUs and TPUs: each is traced as it would be there, and lowered for them,
which needs neither. All dtypes with `--slow`; `REFUSED` has what JAX itself cannot lower.
"""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import jax
import numpy as np
import pytest
import torch
from tests.hub import cases, composite_cases
from tests.hub.draw import Draw

import tensorgraft as tg
from tensorgraft.backends.jax import JaxBackend
from tensorgraft.hub import registry

PLATFORMS = ("cuda", "tpu")
ROWS = {**cases.CASES, **composite_cases.COMPOSITES}
BY_VALUES = {"nonzero"}  # the shapes of the results are asked of values
REFUSED = {("tpu", "eig"): "JAX has it for CPUs and CUDA"}
# XLA emulates 64-bit numbers on TPUs, but cannot read their bits: https://github.com/jax-ml/jax/pull/21108
READ_BITS_OF_64 = {"bitcast": "asked for", "polygamma": "the sign of the gamma function, in float64"}


@pytest.fixture(scope="module")
def xp() -> JaxBackend:
    """A backend whose programs are those for an accelerator."""
    backend = JaxBackend()
    backend.for_cpu = backend.host_visible = False
    return backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is test_operation:
        whole = metafunc.config.getoption("--slow")
        rows = []
        for key, case in ROWS.items():
            one = case.dtypes[zlib.crc32(key.encode()) % len(case.dtypes)]
            rows += [(key, dtype) for dtype in (case.dtypes if whole else [one]) if key not in BY_VALUES]
        metafunc.parametrize(("key", "dtype"), rows)


def lowered(xp: JaxBackend, key: str, dtype: np.dtype, *platforms: str) -> str:
    arguments = ROWS[key].arguments(Draw(random.Random(key).randint, dtype))
    arrays: list[np.ndarray] = []

    def noted(tree: Any) -> Any:
        if isinstance(tree, tuple | list):
            return type(tree)(noted(leaf) for leaf in tree)
        if not isinstance(tree, np.ndarray):
            return lambda given: tree
        arrays.append(tree)
        n = len(arrays) - 1
        return lambda given: given[n]

    def given(tree: Any, values: Any) -> Any:
        return type(tree)(given(leaf, values) for leaf in tree) if isinstance(tree, tuple | list) else tree(values)

    places = noted(arguments)

    def program(*values: Any) -> Any:
        return getattr(xp, cases.operation(key))(*given(places, values))

    with xp.scope():
        return jax.jit(program).trace(*arrays).lower(lowering_platforms=platforms).as_text()


def test_operation(xp: JaxBackend, key: str, dtype: np.dtype) -> None:
    wanted = [platform for platform in PLATFORMS if (platform, cases.operation(key)) not in REFUSED]
    text = lowered(xp, key, dtype, *wanted)
    assert "module" in text
    if np.finfo(dtype).bits < 64 if dtype.kind in "fc" else dtype.itemsize < 8:
        assert key in READ_BITS_OF_64 or not re.search(r"bitcast_convert.*[if]64", text)
    for platform in {*PLATFORMS} - {*wanted}:
        with pytest.raises(NotImplementedError):
            lowered(xp, key, dtype, platform)


@pytest.mark.parametrize("key", ["dot_general", "convolution"])
def test_products_are_of_full_precision(xp, key):
    """No TF32 and no bfloat16 passes, unless the program asks JAX for them."""
    text = lowered(xp, key, np.dtype("float32"), "cuda")
    assert "HIGHEST" in text and "DEFAULT" not in text
    with jax.default_matmul_precision("tensorfloat32"):
        assert "HIGHEST" not in lowered(xp, key, np.dtype("float32"), "cuda")


def test_arrays_are_not_the_memory_of_the_host(xp):
    """The host is lent copies, and nothing that the caller may write later."""
    x = np.zeros(64, np.float32)
    array = xp.asarray(x)
    assert xp.over_memory(x) is None and xp.capsules([array]) is None
    assert type(xp.lend(array)) is np.ndarray
    x[:] = 1
    assert not xp.lend(array).any() and not xp.to_numpy(array).any()


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.recurrent = torch.nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.max_pool2d(self.norm(self.convolution(x)).relu(), 2)
        return self.recurrent(self.layer(x.flatten(2).mT))[0].sum()


@pytest.mark.slow_with("tpu")
@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_network_and_its_gradient(platform, monkeypatch):
    monkeypatch.setattr(registry.get("jax"), "for_cpu", False)
    apply, params, buffers = tg.graft(Network(), onto="jax")
    step = jax.value_and_grad(lambda params, x: apply(params, buffers, x)[0])
    traced = jax.jit(step).trace(params, jax.ShapeDtypeStruct((2, 3, 8, 8), np.float32))
    assert "module" in traced.lower(lowering_platforms=(platform,)).as_text()
