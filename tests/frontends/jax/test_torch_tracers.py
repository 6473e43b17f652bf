"""Functions and models of JAX on PyTorch under `torch.compile`, `torch.export`, `torch.jit`, `torch.fx`, `torch.func`:
values and derivatives are those of the function itself."""

import subprocess
import sys
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx

import tensorgraft as tg

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _anew():
    torch._dynamo.reset()
    torch.manual_seed(0)


@jax.custom_vjp
def doubled(x):
    return jnp.sin(x)


doubled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g * jnp.cos(x),))


def program(x, *, scale=2.0):
    """With a rule that no other framework finds out, ties, and constants."""
    return {"y": jax.nn.relu(doubled(x)) * scale + jnp.arange(8.0), "n": jnp.argmax(x, -1)}


def graft():
    return tg.graft(program, onto="torch")


class Model(torch.nn.Module):
    """A function and a model of JAX among layers of PyTorch."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.grafted = tg.graft(eqx.nn.MLP(8, 3, 16, 1, key=jax.random.key(0)), onto="torch")
        self.f = graft()

    def forward(self, x):
        return self.grafted(self.f(self.first(x))["y"].sum(0))


def slopes(fn, x, parameters=()):
    """The result and the gradients of a call."""
    x = x.detach().clone().requires_grad_()
    out = fn(x)
    out = out["y"] if isinstance(out, dict) else out
    return [out.detach(), *torch.autograd.grad((out**2).sum(), [x, *parameters])]


def close(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


X = torch.linspace(-2, 2, 32).reshape(4, 8)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor", "tensorgraft"])
@pytest.mark.slow_with("inductor")
def test_compiled_by_pytorch(backend):
    f, model = graft(), Model()
    close(slopes(torch.compile(f, backend=backend, fullgraph=True), X), slopes(f, X))
    parameters = list(model.parameters())
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for x in (X, X + 1):
        close(slopes(compiled, x, parameters), slopes(model, x, parameters))


def test_training_a_compiled_model():
    model, same = Model(), Model()
    same.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for run, m in ((compiled, model), (same, same)):
        optimizer = torch.optim.Adam(m.parameters(), 0.01)
        for k in range(3):
            optimizer.zero_grad()
            (run(X + k) ** 2).sum().backward()
            optimizer.step()
    close(model.state_dict().values(), same.state_dict().values())


def test_autocast_is_not_for_what_jax_means():
    w = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    f = tg.graft(lambda x: x @ w, onto="torch")
    with torch.autocast("cpu"):
        assert torch.compile(f, backend="aot_eager", fullgraph=True)(X).dtype == torch.float32


SIZED = {
    "softmax": lambda x: jax.nn.softmax(x @ jnp.ones((8, 8)), -1) * x.shape[0],
    "reshape": lambda x: x.reshape(-1, 2, 4).transpose(1, 0, 2).reshape(2, -1),
    "arange": lambda x: x + jnp.arange(x.shape[0])[:, None],
    "norm": lambda x: jax.vmap(eqx.nn.LayerNorm(8))(x),
    "scan": lambda x: jax.lax.scan(lambda h, y: (jnp.tanh(h + y), h), jnp.zeros(x.shape[0]), x.T)[0],
    "difference": lambda x: x[1:] - x[:-1],
}


@pytest.mark.parametrize("name", SIZED)
def test_one_program_for_many_sizes(name):
    f = tg.graft(SIZED[name], onto="torch")
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(f, backend=counter, fullgraph=True)
    for n in (4, 5, 7, 6):
        x = torch.randn(n, 8)
        close(slopes(compiled, x), slopes(f, x))
    assert counter.frame_count == 2  # of one size, and of any
    torch._dynamo.reset()
    x = torch.randn(5, 8)
    torch._dynamo.mark_dynamic(x, 0)
    close([compiled(x)], [f(x)])


def test_programs_that_need_numbers_are_compiled_for_each_size():
    f = tg.graft(lambda x: x * 2 if x.shape[0] > 4 else -x, onto="torch")
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    for n in (4, 5, 7, 6):
        x = torch.randn(n, 8)
        close(slopes(compiled, x), slopes(f, x))


def test_what_dynamo_does_not_take_runs_outside_of_the_graph():
    f = tg.graft(lambda key, x: (jax.random.uniform(key, x.shape) * x, "name"), onto="torch")
    key = jax.random.key(0)
    found, name = torch.compile(f, backend="aot_eager")(key, X)
    close([found], [f(key, X)[0]])
    assert name == "name"


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode):
    f = tg.graft(lambda x: jnp.sin(x).sum() + doubled(x).sum(), onto="torch")
    slope = torch.func.grad(f)
    for fn in (f, slope) if mode != "symbolic" else (f,):
        graph = make_fx(fn, tracing_mode=mode)(X)
        close([graph(X + 1)], [fn(X + 1)])


def test_exported_programs_need_pytorch_alone(tmp_path):
    model = Model()
    exported = torch.export.export(model, (X,))
    close([exported.module()(X + 1)], [model(X + 1)])
    with pytest.raises(RuntimeError, match="does not require grad"):  # the operators' derivative would be another one
        only = torch.nn.Module()
        only.forward = lambda x: graft()(x)["y"]
        torch.export.export(only, (X,)).module()(X.clone().requires_grad_()).sum().backward()
    torch.export.save(exported, tmp_path / "model.pt2")
    torch.save((X + 1, model(X + 1).detach()), tmp_path / "io.pt")
    code = (
        "import sys, torch\n"
        f"m = torch.export.load({str(tmp_path / 'model.pt2')!r}).module()\n"
        f"x, y = torch.load({str(tmp_path / 'io.pt')!r})\n"
        "torch.testing.assert_close(m(x), y)\n"
        "assert not {'jax', 'tensorgraft'} & set(sys.modules)"
    )
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_export_with_open_sizes():
    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.f = tg.graft(SIZED["softmax"], onto="torch")

        def forward(self, x):
            return self.f(x) + 1

    rows = Rows()
    exported = torch.export.export(rows, (X,), dynamic_shapes=({0: torch.export.Dim("rows")},)).module()
    for n in (3, 6):
        x = torch.randn(n, 8)
        close([exported(x)], [rows(x)])
    with pytest.raises(Exception, match="strict=False"):
        torch.export.export(rows, (X,), strict=True)


def traced(fn, x, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        return torch.jit.trace(fn, (x,), **options)


def test_jit_trace_with_derivatives():
    f, model = graft(), Model()
    again = traced(f, X.clone().requires_grad_(), strict=False)
    for x in (X + 1, torch.randn(6, 8)):  # other values, and another size
        close(slopes(again, x), slopes(f, x))
    parameters = list(model.parameters())
    again = traced(model, X)
    for x in (X + 1, torch.randn(6, 8)):
        close(slopes(again, x, parameters), slopes(model, x, parameters))


def test_jit_trace_to_be_saved(tmp_path):
    model = Model().requires_grad_(False)
    again = traced(model, X)
    close([again(X + 1)], [model(X + 1)])
    assert "tensorgraft::" not in str(again.inlined_graph)
    torch.jit.save(again, tmp_path / "model.pt")
    close([torch.jit.load(tmp_path / "model.pt")(X + 1)], [model(X + 1)])
    with pytest.raises(RuntimeError, match="must match the existing size"):
        again(torch.randn(6, 8))
    with pytest.raises(RuntimeError, match="does not require grad"):
        traced(lambda x: graft()(x)["y"], X)(X.clone().requires_grad_()).sum().backward()
    # compiled programs are called, too
    compiled = tg.jit(tg.graft(lambda x: jnp.sin(x), onto="torch"))
    close([traced(compiled, X)(X + 1)], [torch.sin(X + 1)])
    with pytest.raises(RuntimeError, match="in the process that traced it"):
        torch.ops.tensorgraft.grafted("f 0 of process another", [X])


def test_jit_script_is_refused():
    for program in (graft(), Model().grafted, Model()):
        with pytest.raises(NotImplementedError, match=r"torch\.jit\.script compiles Python source"):
            torch.jit.script(program)


def test_a_call_in_a_graph_of_fx():
    model = Model()
    graph = torch.fx.symbolic_trace(model)
    parameters = list(model.parameters())
    assert sum(n.op == "call_function" and "grafted" in n.target.__name__ for n in graph.graph.nodes) == 2
    close(slopes(graph, X + 1, parameters), slopes(model, X + 1, parameters))


def test_torch_func_of_models():
    model = Model()
    parameters = {k: v.detach() + 0.1 for k, v in model.named_parameters()}

    def loss(parameters, x):
        return (torch.func.functional_call(model, parameters, (x,)) ** 2).sum()

    found = torch.func.grad(loss)(parameters, X)
    model.load_state_dict(parameters)
    close(found.values(), torch.autograd.grad((model(X) ** 2).sum(), list(model.parameters())))
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, torch.stack([X, X + 1]))
    close([g[0] for g in each.values()], found.values())
    f = graft()
    slope = torch.func.grad(lambda x: f(x)["y"].sum())
    close([torch.compile(slope, backend="aot_eager")(X)], [slope(X)])
