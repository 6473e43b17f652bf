"""JAX functions among PyTorch tensors: values and derivatives are those of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tensorgraft as tg

PLACES = pytest.mark.parametrize("place", ["cpu", "jax"])


def device(place):
    return torch.device("cpu") if place == "cpu" else tg.device(place)


def mlp(params, x, *, power=1):
    h = jnp.tanh(x @ params["w"] + params["b"])
    return {"y": h**power, "n": jnp.argmax(h, -1)}


def values():
    rng = np.random.default_rng(0)
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in (("w", (4, 3)), ("b", (3,)), ("x", (5, 4)))}


@PLACES
def test_values_and_gradients_of_pytrees(place):
    v = values()
    w, b, x = (torch.from_numpy(v[k]).to(device(place)).requires_grad_() for k in ("w", "b", "x"))
    f = tg.graft(mlp, onto="torch")
    out = f({"w": w, "b": b}, x, power=2)
    assert out["n"].dtype == torch.int32 and not out["n"].requires_grad
    assert out["y"].device.type == x.device.type
    out["y"].sum().backward()
    right = jax.grad(lambda p, x: mlp(p, x, power=2)["y"].sum(), (0, 1))({"w": v["w"], "b": v["b"]}, v["x"])
    for ours, theirs in ((w, right[0]["w"]), (b, right[0]["b"]), (x, right[1])):
        np.testing.assert_allclose(ours.grad.cpu(), theirs, rtol=1e-5, atol=1e-6)
    assert f.__name__ == "mlp"


@PLACES
def test_higher_derivatives(place):
    f = tg.graft(lambda x: jnp.sin(x) * x, onto="torch")
    x = torch.tensor([0.3, -1.2], device=device(place), requires_grad=True)
    (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    (k,) = torch.autograd.grad(h.sum(), x)
    right = jax.grad(lambda x: jax.grad(lambda x: jax.grad(lambda x: (jnp.sin(x) * x).sum())(x).sum())(x).sum())
    np.testing.assert_allclose(k.cpu(), right(jnp.array([0.3, -1.2])), rtol=1e-5)


@PLACES
def test_it_mixes_with_pytorchs_own_operators(place):
    f = tg.graft(jax.nn.softplus, onto="torch")
    x = torch.linspace(-2, 2, 6, device=device(place), requires_grad=True)
    y = (f(x * 2).reshape(2, 3).t() * 3).sum()
    y.backward()
    z = x.detach().cpu().requires_grad_()
    (torch.nn.functional.softplus(z * 2) * 3).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), z.grad)


def test_inside_and_outside_of_compiled_functions():
    f = tg.graft(jnp.tanh, onto="torch")
    x = torch.linspace(-1, 1, 4, device=tg.device("jax"), requires_grad=True)

    def program(x):
        return f(x * 2) + 1

    y = tg.jit(program)(x)
    y.sum().backward()
    np.testing.assert_allclose(y.detach().cpu(), np.tanh(np.linspace(-1, 1, 4) * 2) + 1, rtol=1e-6)
    np.testing.assert_allclose(x.grad.cpu(), 2 / np.cosh(np.linspace(-1, 1, 4) * 2) ** 2, rtol=1e-5)

    @tg.jit
    def gradient(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(program(x).sum(), x)[0]

    torch.testing.assert_close(gradient(x).cpu(), x.grad.cpu())


@PLACES
@pytest.mark.parametrize("wide", [False, True])
def test_the_users_64_bit_configuration_holds(place, wide):
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, device=device(place), requires_grad=True)
    n = torch.tensor([3, 4], device=device(place))
    with jax.enable_x64(wide):
        f = tg.graft(lambda x, n: (x * x, n + 1), onto="torch")
        y, m = f(x, n)
        y.sum().backward()
    assert y.dtype == (torch.float64 if wide else torch.float32)
    assert m.dtype == (torch.int64 if wide else torch.int32)
    assert x.grad.dtype == torch.float64
    assert x.grad.tolist() == [2, 4]


def test_shapes_and_python_values_are_compiled_once_each():
    traced = []

    def f(x, n):
        traced.append((x.shape, n))
        return x[:n]

    g = tg.graft(f, onto="torch")
    for n in (1, 2, 1, 2):
        assert g(torch.arange(4.0), n).tolist() == [0, 1][:n]
    assert traced == [((4,), 1), ((4,), 2), ((4,), 1), ((4,), 2)]  # without the value, too, which is undone


def test_memory_is_shared_where_it_is_aligned():
    x = torch.ones(1 << 16)
    before = x.clone()
    y = tg.graft(lambda x: x + 1, onto="torch")(x)
    y.add_(1)
    assert torch.equal(x, before) and torch.equal(y, before + 2)


def test_what_cannot_be():
    f = tg.graft(jnp.add, onto="torch")
    with pytest.raises(RuntimeError, match=r"add: expected all tensors to be on the same device, but found cpu, graft"):
        f(torch.ones(2), torch.ones(2, device=tg.device("jax")))
    with pytest.raises(RuntimeError, match=r"computed by JAX, and takes tensors on the CPU or on tg.device\('jax'\)"):
        f(torch.ones(2, device=tg.device("numpy")), 1.0)
    with pytest.raises(TypeError, match="got a set, which is neither an array of torch nor hashable"):
        f(torch.ones(2), {1})
    with pytest.raises(TypeError, match="not a int onto 'torch'"):
        tg.graft(3, onto="torch")
    x = torch.ones(2, requires_grad=True)
    y = f(x * 1, x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
