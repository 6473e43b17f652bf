"""What a user writes, read by type checkers alone (`make dist-check` runs mypy --strict and pyright on it)."""

from typing import assert_type

import numpy as np
import torch

import tensorgraft as tg
import tensorgraft.array_api as xp
import tensorgraft.nn as nn
import tensorgraft.operators as ops


def arrays() -> None:
    x = xp.zeros((3, 4), dtype=xp.float32, device="numpy")
    assert_type(x, xp.Array)
    assert_type(x[1:], xp.Array)
    assert_type(x.T, xp.Array)
    assert_type(x + 1, xp.Array)
    assert_type(2.0 * x @ x.T, xp.Array)
    assert_type(-x, xp.Array)
    assert_type(x < 3, xp.Array)
    assert_type(x == 3, xp.Array)
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.ndim, int)
    assert_type(xp.sin(x), xp.Array)
    assert_type(xp.add(x, 2), xp.Array)
    assert_type(xp.sum(x, axis=0), xp.Array)
    assert_type(xp.linalg.vector_norm(x), xp.Array)
    assert_type(xp.fft.fft(x), xp.Array)
    assert_type(xp.where(x > 0, x, 0), xp.Array)
    assert_type(xp.pi, float)
    x[1:].T[0] = 5.0
    x += 1
    assert_type(x, xp.Array)
    assert_type(float(xp.sum(x)), float)
    assert_type(x.to_device("jax"), xp.Array)
    y = tg.inplace_update(x, xp.ones((4,), device=x.device))
    print(len(x), list(x), bool(x[0, 0]), np.asarray(x), y, x.tolist(), x.device)
    values = xp.unique_counts(x)
    print(values.counts, xp.finfo(xp.float32).eps, xp.isdtype(x.dtype, "real floating"))


def transforms() -> None:
    @tg.jit
    def step(x: xp.Array, n: int) -> xp.Array:
        return xp.sum(x) * n

    @tg.jit(guard_values=True)
    def other(x: xp.Array) -> tuple[xp.Array, int]:
        return x, 1

    x = xp.ones(3)
    assert_type(step(x, 2), xp.Array)
    assert_type(other(x), tuple[xp.Array, int])
    gradient = tg.grad(lambda x: xp.sum(xp.sin(x) ** 2))(x)
    value, gradients = tg.value_and_grad(step)(x, 2)
    print(gradient, value, gradients, tg.vmap(xp.sum)(x), tg.jvp, tg.vjp, tg.jacobian, tg.hessian)
    print(tg.cond(True, lambda: x, lambda: x), tg.fori_loop(0, 3, lambda i, c: c + i, x))
    print(tg.while_loop(lambda c: xp.sum(c) < 3, lambda c: c + 1, x), tg.scan(lambda c, y: (c, y), x, x))
    print(tg.explain(step, x, 2), tg.lazy, tg.load, tg.source, tg.__version__)
    with tg.autocast("jax"), tg.eager("compiled"):
        pass


def modules() -> None:
    class Net(tg.Module):
        linear: nn.Linear
        size: int = tg.transforms.field(static=True)

        def __call__(self, x: xp.Array) -> xp.Array:
            return xp.tanh(self.linear(x))

    net = Net(nn.Linear(3, 4, key=tg.random.key(0)), 4)
    assert_type(net.size, int)
    assert_type(net(xp.ones(3)), xp.Array)
    dynamic, static = tg.transforms.partition(net, tg.transforms.is_array)
    print(tg.transforms.combine(dynamic, static), tg.random.normal(tg.random.key(0), (3,)))


def operators() -> None:
    a = ops.FunctionLinearOperator(
        lambda v: 2.0 * v, ((1000,), "float32"), device="numpy", tags="positive_semidefinite"
    )
    estimate = ops.trace(a, method="xtrace", k=50, seed=0)
    print(estimate.value, estimate.standard_error, a @ a, a.T, 2 * a)
    print(ops.linear_solve(a, xp.ones(1000)).value)


def tensors() -> None:
    device = tg.device("jax")
    assert_type(device, torch.device)
    model = torch.nn.Linear(8, 1).to(device)

    @tg.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).sum()
        return loss

    assert_type(step(torch.randn(2, 8, device=device)), torch.Tensor)
    tg.quantize_(model, "int8_per_channel")
    grafted = tg.graft(model, onto="jax")
    print(grafted, tg.torch.fallbacks(), tg.torch.operators, tg.backends(), tg.to_backend_array(torch.ones(3)))
    tg.set_default_device("numpy")
    tg.set_compile_cache(None)
    mesh = tg.parallel.mesh((4, 2), ("data", "model"))
    tg.parallel.shard_(model, mesh, {"*.up.weight": ("model", None)})
    try:
        tg.scatter_update(torch.ones(3), (0,), torch.ones(1))
    except (tg.TracedValueError, tg.ShapeError, tg.FallbackError, tg.BackendNotAvailableError, tg.CheckError):
        raise
