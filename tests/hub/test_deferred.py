"""JAX is imported when something asks for what only JAX can do, and nobody can tell but by looking for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tensorgraft.backends.jax import JaxBackend
from tensorgraft.backends.jax import deferred as jax_deferred
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.deferred import Deferred

PROGRAM = """
import sys, torch
import tensorgraft as tg
from tensorgraft.hub import registry
from tensorgraft.hub.deferred import Deferred
device = tg.device("jax")
model = torch.nn.Linear(3, 2).to(device)
model.load_state_dict(torch.nn.Linear(3, 2).state_dict())
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(4, 3, device=device)).sum().backward()
optimizer.step()
torch.graft.synchronize()
assert torch.graft.device_count() == 1 and torch.graft.get_device_name() == "jax (CPU)"
assert "jax" not in sys.modules and isinstance(registry.get("jax"), Deferred)
backend, x = registry.get("jax"), torch.arange(3.0, device=device)
a = tg.to_backend_array(x)
from tensorgraft.backends.jax import JaxBackend
assert type(a).__module__.startswith("jaxlib") and a.tolist() == [0.0, 1.0, 2.0]
assert registry.get("jax") is backend and type(backend) is JaxBackend and not isinstance(backend, Deferred)
assert (x + x).tolist() == [0.0, 2.0, 4.0] and torch.graft.get_device_name() == "jax (CPU)"
with tg.eager("compiled"):
    assert (x * 2).tolist() == [0.0, 2.0, 4.0]
"""


def test_a_program_of_the_cold_tier_does_without_jax() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"JAX_PLATFORMS": "cpu", "TENSORGRAFT_EAGER": "tiered", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env=environment)


def test_what_is_told_without_jax_is_what_jax_says() -> None:
    early, real = jax_deferred.DeferredJax(), JaxBackend()
    for name in dir(Backend):
        told = getattr(early, name) if not name.startswith("_") and name != "place" else print
        if not callable(told):  # what is None there, too
            assert told == getattr(real, name), name
    assert early.device_name() == real.device_name() and early.cold is real.cold
    assert isinstance(early, Deferred)


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("JAX_PLATFORMS", "cpu", True),
        ("JAX_PLATFORMS", "cuda,cpu", False),
        ("JAX_PLATFORM_NAME", "gpu", False),
        ("XLA_FLAGS", "--xla_force_host_platform_device_count=8", False),
        ("JAX_NUM_CPU_DEVICES", "2", False),
    ],
)
def test_jax_is_asked_where_its_devices_may_be_others(
    name: str, value: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv(name, value)
    assert (jax_deferred.deferred() is not None) is known


# tg.graft in a process that has imported the program's framework alone, or not even that
GRAFTS = {
    "module onto jax": """
import torch, tensorgraft as tg
apply, params, buffers = tg.graft(torch.nn.Linear(2, 2), onto="jax")
assert apply(params, buffers, torch.ones(1, 2).numpy())[0].shape == (1, 2)""",
    "JAX function onto torch": """
import jax, tensorgraft as tg, numpy as np
assert abs(tg.graft(jax.numpy.sin, onto="torch")(np.ones(2, np.float32))[0].item() - 0.84147) < 1e-4""",
    "tf.function onto jax": """
import tensorflow as tf, tensorgraft as tg, numpy as np
assert tg.graft(tf.function(lambda x: x * 2), onto="jax")(np.ones(2, np.float32)).tolist() == [2.0, 2.0]""",
    "module of TensorFlow onto jax": """
import tensorflow as tf, tensorgraft as tg
class Scaled(tf.Module):
    def __init__(self):
        self.w = tf.Variable(2.0)
    @tf.function
    def __call__(self, x):
        return x * self.w
assert tg.graft(Scaled(), onto="jax").params.keys() == {"w"}""",
}


@pytest.mark.parametrize("name", GRAFTS)
def test_programs_are_grafted_onto_what_is_not_imported(name: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", GRAFTS[name]], check=True, env=environment)
