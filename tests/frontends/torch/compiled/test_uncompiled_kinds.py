"""What no program can do at every call runs uncompiled, and says so."""

import copy
import subprocess
import sys

import pytest
import torch
from functorch.experimental.control_flow import map as mapped
from torch.testing._internal.two_tensor import TwoTensor

import tensorgraft as tg
from tensorgraft.transforms import UncompiledWarning

BACKENDS = pytest.mark.parametrize("backend", ["jax", "torch"])


def uncompiled(fn, *args, match):
    compiled = tg.jit(fn)
    with pytest.warns(UncompiledWarning, match=match):
        first = compiled(*args)
    return first, compiled(*args)


@BACKENDS
def test_text(backend, capsys):
    x = torch.full((2,), 1.5, device=tg.device(backend))

    def told(x):
        print(x.sum())
        return f"{x} {x[0]:.2f}"

    first, second = uncompiled(told, x, match="converts a tensor to text")
    assert first == second == told(x)
    assert capsys.readouterr().out == f"{x.sum()!r}\n" * 3


def test_the_first_draw_of_a_process():
    """NumPy imports its generators when they are first asked for."""
    program = """
import sys, numpy, torch, tensorgraft as tg
x = torch.ones(2, device=tg.device("torch"))
run = tg.jit(lambda x: x * numpy.random.random())
print(len({float(run(x)[0]) for _ in range(3)}))
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "3\n"


def test_errors_with_values():
    def raises(x):
        raise KeyError(str(x))

    x = torch.ones(2, device=tg.device("jax"))
    with pytest.warns(UncompiledWarning, match="converts a tensor to text"), pytest.raises(KeyError, match=r"1\., 1\."):
        tg.jit(raises)(x)


@BACKENDS
def test_memory_that_is_given_back(backend):
    def released(x):
        y = x + 1
        x.untyped_storage().resize_(0)
        return y * 2

    compiled = tg.jit(released)
    for warned in (True, False):
        x = torch.ones(2, device=tg.device(backend))
        if warned:
            with pytest.warns(UncompiledWarning, match="releases or allocates the memory of a storage"):
                y = compiled(x)
        else:
            y = compiled(x)
        assert y.tolist() == [4, 4]
        assert x.untyped_storage().size() == 0


def test_torchscript():
    class Module(torch.nn.Module):
        def forward(self, x):
            return x + 3

    x = torch.ones(2, device=tg.device("jax"))
    for y in uncompiled(lambda x: torch.jit.trace(Module(), (x,))(x), x, match="traces a function for TorchScript"):
        assert y.tolist() == [4, 4]


def test_operators_of_functions():
    x = torch.ones(2, 1, device=tg.device("jax"))
    for y in uncompiled(lambda x: mapped(lambda row: row * 2, x), x, match="calls map_impl"):
        assert y.tolist() == [[2], [2]]


def test_tensors_made_of_others():
    def parts(k):
        return torch.full((2,), k, device=tg.device("jax")), torch.ones(2, device=tg.device("jax"))

    compiled = tg.jit(lambda x: x + 1)
    with pytest.warns(UncompiledWarning, match="takes a TwoTensor"):
        compiled(TwoTensor(*parts(1.0)))
    assert compiled(TwoTensor(*parts(2.0))).a.tolist() == [3, 3]
    made = tg.jit(TwoTensor)
    with pytest.warns(UncompiledWarning, match="returns or keeps a TwoTensor"):
        assert made(*parts(1.0)).b.tolist() == [1, 1]


@BACKENDS
def test_containers_that_contain_themselves(backend):
    x = torch.ones(2, device=tg.device(backend))
    knot = {"x": x}
    knot["knot"] = knot
    first, second = uncompiled(lambda d: d["knot"]["x"] * 2, knot, match="takes a container that contains itself")
    assert first.tolist() == second.tolist() == [2, 2]

    def tied(x):
        made = [x * 2]
        made.append(made)
        return made, x.shape

    for made, _ in uncompiled(tied, x, match="returns a container that contains itself"):
        assert made[1] is made and made[0].tolist() == [2, 2]


@BACKENDS
@pytest.mark.parametrize(
    "use, error",
    [
        (lambda y: y.grad * 2, None),
        (lambda y: y * (2 if y.retains_grad else 3), None),
        (lambda y: y * (2 if y._backward_hooks else 3), None),
        (lambda y: y * (y.output_nr + 2), None),
        (lambda y: y.retain_grad() or y * 2, None),
        (lambda y: y.detach_() * 2, None),
        (lambda y: setattr(y, "grad", torch.ones_like(y)) or y * 2, None),
        (lambda y: y.requires_grad_(False) * 2, RuntimeError),
        (lambda y: copy.deepcopy(y) * 2, RuntimeError),
        (lambda y: y.register_post_accumulate_grad_hook(print), RuntimeError),
    ],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_histories_of_arguments(backend, use, error):
    """The trace has an argument without its `grad_fn`, and with it goes what belongs to that."""

    def outcome(fn):
        w = torch.arange(1.0, 7.0, device=tg.device(backend)).requires_grad_()
        _, y = torch.split_copy(w * 2, 3)
        y.register_hook(lambda g: g * 3)
        y.retain_grad()
        (y * 5).sum().backward(retain_graph=True)
        if error is not None:
            with pytest.raises(error):
                fn(y)
            return None
        out = fn(y)
        if out.requires_grad:
            out.sum().backward()
        return out.tolist(), w.grad.tolist(), y.is_leaf, y.retains_grad, y.grad.tolist()

    compiled, expected = tg.jit(use, compile="first"), outcome(use)
    with pytest.warns(UncompiledWarning, match="an argument with a grad_fn|of a tensor from outside"):
        assert outcome(compiled) == expected
    assert outcome(compiled) == expected
