"""Programs of TensorFlow on arrays of JAX that lie on eight devices. Run by `test_on_eight_devices`."""

from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import PartitionSpec as P

import tensorgraft as tg
from tensorgraft import parallel

MESH = parallel.mesh((4, 2), ("data", "model"))
NUMBERS = np.random.RandomState(0).standard_normal((16, 12 + 4)).astype(np.float32)
X, Y = jax.numpy.asarray(NUMBERS[:, :12]), jax.numpy.asarray(NUMBERS[:, 12:])


class Net(tf.Module):
    def __init__(self) -> None:
        state = np.random.RandomState(1)
        self.up = tf.Variable(state.standard_normal((12, 16)).astype(np.float32))
        self.down = tf.Variable(state.standard_normal((16, 4)).astype(np.float32))
        self.seen = tf.Variable(tf.zeros(16), trainable=False)

    def __call__(self, x: Any) -> Any:
        h = tf.nn.relu(x @ self.up)
        self.seen.assign(0.9 * self.seen + tf.reduce_mean(h, 0))
        return h @ self.down


def test_a_model_of_tensorflow_on_a_mesh() -> None:
    apply, params, buffers = tg.graft(Net(), onto="jax")
    placed = parallel.shard_(params, MESH, {"up": (None, "model"), "down": ("model", None)})
    x, y = parallel.shard_batch((X, Y), MESH)

    def loss(params: Any, buffers: Any, x: Any, y: Any) -> Any:
        out, buffers = apply(params, buffers, x)
        return ((out - y) ** 2).mean(), buffers

    step = jax.value_and_grad(loss, has_aux=True)
    (want, seen), gradients = step(params, buffers, X, Y)
    for run in (step, jax.jit(step)):
        (value, written), found = run(placed, buffers, x, y)
        np.testing.assert_allclose(value, want, rtol=1e-5)
        np.testing.assert_allclose(written["seen"], seen["seen"], rtol=1e-5, atol=1e-6)
        for name, spec in (("up", P(None, "model")), ("down", P("model"))):
            np.testing.assert_allclose(found[name], gradients[name], rtol=1e-4, atol=1e-5)
            assert found[name].sharding.is_equivalent_to(jax.NamedSharding(found[name].sharding.mesh, spec), 2)


def test_a_function_of_tensorflow_on_a_mesh() -> None:
    w = tf.Variable(np.asarray(NUMBERS[:12, :4]))

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            out = x @ w
            loss = tf.reduce_mean((out - y) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss, out

    start = w.numpy()
    want, out = step(NUMBERS[:, :12], NUMBERS[:, 12:])
    ended = w.numpy()
    for compiled in (False, True):
        w.assign(start)
        program = tg.graft(step, onto="jax")
        value, found = (tg.jit(program) if compiled else program)(*parallel.shard_batch((X, Y), MESH))
        np.testing.assert_allclose(value, want.numpy(), rtol=1e-5)
        np.testing.assert_allclose(found, out.numpy(), rtol=1e-4, atol=1e-5)
        assert "data" in found.sharding.spec and len(found.sharding.device_set) == 8
        np.testing.assert_allclose(w.numpy(), ended, rtol=1e-4, atol=1e-5)
