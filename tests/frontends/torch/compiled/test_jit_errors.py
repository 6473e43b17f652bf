"""What a compiled function raises is what its eager code raises, and what it has done before that stays done."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensorgraft as tg

pytestmark = pytest.mark.sampled


def ones(x, *shape):
    return torch.ones(*shape, device=x.device)


ERRORS = {  # of functions of a float32 tensor of shape (2, 3)
    "a product": lambda x: x @ ones(x, 5, 3),
    "a batched product": lambda x: torch.vmap(lambda a: a @ a)(x[..., None]),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "shapes that do not broadcast": lambda x: x + ones(x, 4),
    "a view of another size": lambda x: x.view(7),
    "a view of a transpose": lambda x: x.t().view(6),
    "a view of another dtype": lambda x: x[:, :1].view(torch.float64),
    "an index": lambda x: x[5],
    "an axis": lambda x: x.movedim(0, 4),
    "a slice": lambda x: x.narrow(0, 1, 5),
    "chunks": lambda x: x.chunk(0),
    "sections": lambda x: x.tensor_split(0),
    "cat": lambda x: torch.cat([x, ones(x, 2, 2)]),
    "gather": lambda x: x.gather(5, ones(x, 1, 1).long()),
    "topk": lambda x: x.topk(9),
    "a value of several": lambda x: x.item(),
    "a truth value of several": lambda x: bool(x),
    "NumPy": lambda x: x.numpy(),
    "a dtype": lambda x: torch.linalg.inv(x.long()),
    "a result of another dtype": lambda x: torch.add(x, 1, out=x.long()),
    "in place, other shapes": lambda x: x.add_(ones(x, 5, 2, 3)),
    "in place, an expanded tensor": lambda x: x[:1].expand(4, 3).add_(1),
    "in place, a leaf": lambda x: ones(x, 2, 3).requires_grad_().add_(1),
    "an assignment": lambda x: x.__setitem__(0, ones(x, 7)),
    "data that is no tensor": lambda x: setattr(x, "data", 3),
    "two devices": lambda x: x + torch.ones(2, 3),
    "a convolution": lambda x: F.conv1d(x[None], ones(x, 3, 5, 1)),
    "a layer": lambda x: nn.Linear(7, 2, device=x.device)(x),
    "a loss": lambda x: F.cross_entropy(x, ones(x, 5).long()),
    "a probability": lambda x: F.dropout(x, 3.0),
    "interpolation": lambda x: F.interpolate(x, size=3),
    "a deviation": lambda x: torch.normal(0.0, -1.0, (2,), device=x.device),
    "an extent": lambda x: torch.full((-1,), 2.0, device=x.device),
    "no gradient": lambda x: x.sum().backward(),
    "an attribute": lambda x: x.no_such_method(),
}


@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", ERRORS)
def test_errors_leave_what_was_done_before_them(name, backend):
    def outcome(jit):
        done = []

        def f(x):
            done.append(len(done))
            return ERRORS[name](x)

        f, errors = jit(f), []
        for _ in range(2):
            with pytest.raises(Exception) as raised:
                f(torch.ones(2, 3, device=tg.device(backend)))
            errors.append((type(raised.value), str(raised.value)))
        return done, errors

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.transforms.UncompiledWarning)
        assert outcome(tg.jit) == outcome(lambda f: f)


@pytest.mark.parametrize("backend", tg.backends())
def test_an_error_in_the_second_call(backend):
    def outcome(jit):
        seen = []

        def f(x):
            seen.append(len(seen))
            if len(seen) == 2:
                raise KeyError("two")
            return x + len(seen)

        f, given = jit(f), []
        for _ in range(4):
            try:
                given.append(f(torch.ones(2, device=tg.device(backend))).tolist())
            except KeyError:
                given.append(None)
        return given, seen

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.transforms.UncompiledWarning)
        assert outcome(tg.jit) == outcome(lambda f: f) == ([[2.0, 2.0], None, [4.0, 4.0], [5.0, 5.0]], [0, 1, 2, 3])


@pytest.mark.parametrize("backend", tg.backends())
def test_autograd_errors_leave_what_was_done_before_them(backend):
    def outcome(jit):
        seen, leaf, twice = [1], torch.ones(2, device=tg.device(backend)).requires_grad_(), None

        def written(x):
            nonlocal seen
            seen += [3.0]
            x.mul_(0.5)

        def backward_twice(x):
            v = x * 1.0
            twice.register_hook(lambda g: g * 2)
            v.sum().backward()
            v.sum().backward()

        with pytest.raises(RuntimeError, match="leaf Variable"):
            jit(written)(leaf)
        twice, run = torch.ones(2, device=tg.device(backend)).requires_grad_(), jit(backward_twice)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="second time"):
                run(twice[None])
        return seen, leaf.tolist(), twice.grad.tolist()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.transforms.UncompiledWarning)
        assert outcome(tg.jit) == outcome(lambda f: f)
