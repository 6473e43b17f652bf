"""Attributes that a program gives to tensors are what they are at each call of a compiled function."""

import pytest
import torch

import tensorgraft as tg

pytestmark = pytest.mark.filterwarnings("error::tensorgraft.transforms.UncompiledWarning")
BACKENDS = pytest.mark.parametrize("backend", ["jax", "torch"])


def marked(backend, **attributes):
    tensor = torch.ones(2, device=tg.device(backend))
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


@BACKENDS
def test_of_arguments(backend):
    scaled = tg.jit(lambda x: x * getattr(x, "scale", 1))
    assert scaled(marked(backend)).tolist() == [1, 1]
    for scale in (3, 4, None, torch.full((2,), 5.0, device=tg.device(backend))):
        x = marked(backend) if scale is None else marked(backend, scale=scale)
        assert scaled(x).equal(x * (1 if scale is None else scale))
    assert tg.jit(lambda x: x + hasattr(x, "mark"))(marked(backend, mark=None)).tolist() == [2, 2]


@BACKENDS
def test_of_arguments_with_a_history(backend):
    x = torch.ones(2, device=tg.device(backend), requires_grad=True) * 2

    def counted(x):
        x.calls = getattr(x, "calls", 0) + 1
        return x * x.calls

    counted = tg.jit(counted)
    assert [counted(x).tolist() for _ in range(3)] == [[2, 2], [4, 4], [6, 6]]
    assert x.calls == 3


@BACKENDS
def test_of_what_is_reached(backend):
    weight = torch.nn.Parameter(torch.ones(2, device=tg.device(backend)))
    plain = tg.jit(lambda x: x * 2 if "no_decay" in vars(weight) else x + weight)
    x = marked(backend)
    assert plain(x).tolist() == [2, 2]
    weight.no_decay = True
    x *= 4
    assert plain(x).tolist() == [8, 8]
    del weight.no_decay
    assert plain(x).tolist() == [5, 5]


@BACKENDS
def test_that_are_written(backend):
    weight = marked(backend)

    def marks(x):
        weight.seen, x.seen = 1, x * 2
        return x + weight

    marks = tg.jit(marks)
    for k in (1, 2, 3):
        x = marked(backend) * k
        weight.__dict__.clear()
        marks(x)
        assert weight.seen == 1
        assert x.seen.tolist() == [2 * k, 2 * k]


@BACKENDS
def test_of_results(backend):
    def named(x):
        y = x + 1
        y.label = "y"
        return y, [y * 2]

    named = tg.jit(named)
    for _ in range(2):
        y, (z,) = named(marked(backend))
        assert y.label == "y"
        assert not vars(z)


def test_objects_of_results():
    def named(x):
        y = x + 1
        y.base = x
        return y

    x = marked("jax")
    with pytest.warns(tg.transforms.UncompiledWarning, match="with an attribute that is a tensor"):
        assert tg.jit(named)(x).base is x


def test_say_why_a_call_is_traced_again():
    scaled = tg.jit(lambda x: x * x.scale)
    scaled(marked("jax", scale=2))
    scaled(marked("jax", scale=3))
    assert "attributes {'scale': 3}, was {'scale': 2}" in tg.explain(scaled, marked("jax", scale=3)).this_call[0]


# ---- tensors that wrap others ----------------------------------------------------------------------------------------


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return op(*[x.inner if isinstance(x, Wrapper) else x for x in args], **(kwargs or {}))


class Holder:
    """Has a tensor that wraps another one, and functions of both."""

    def __init__(self, device):
        self.device = device
        self.wrapper = Wrapper(torch.ones(2, device=device))

    def read(self, x):
        return self.wrapper + x

    def write(self, x):
        self.wrapper.inner.add_(x)
        return self.wrapper + x

    def replace(self, x):
        self.wrapper.inner = self.wrapper.inner + x
        return self.wrapper + x

    def keep(self, x):
        before, self.wrapper = self.wrapper, Wrapper(x * 2)
        return before + x

    def calls(self, fn):
        for k in range(12):
            yield fn(torch.full((2,), float(k), device=self.device)).tolist()
            if k % 4 == 1:
                self.wrapper.inner.add_(1)
            elif k % 4 == 2:
                self.wrapper.inner = torch.full((2,), float(k), device=self.device)
            elif k % 4 == 3:
                self.wrapper = Wrapper(torch.full((2,), float(k), device=self.device))


@BACKENDS
@pytest.mark.parametrize("name", ["read", "write", "replace"])
def test_of_tensors_that_wrap_others(backend, name):
    ours, expected = Holder(tg.device(backend)), Holder("cpu")
    assert [*ours.calls(tg.jit(getattr(ours, name)))] == [*expected.calls(getattr(expected, name))]


@BACKENDS
@pytest.mark.filterwarnings("default::tensorgraft.transforms.UncompiledWarning")
def test_a_kept_tensor_that_wraps_another(backend):
    ours, expected = Holder(tg.device(backend)), Holder("cpu")
    with pytest.warns(tg.transforms.UncompiledWarning, match="keeps a Wrapper, a tensor subclass that wraps other"):
        found = [*ours.calls(tg.jit(ours.keep))]
    assert found == [*expected.calls(expected.keep)]
