"""What a compiled function hands out is of the kind that the function has made: leaves of autograd, parameters, tensors
of a program's own classes, objects that hold modules of Python."""

import contextlib
import warnings
from typing import ClassVar

import pytest
import torch

import tensorgraft as tg
from tensorgraft.transforms import UncompiledWarning


class Plain(torch.Tensor):
    pass


class Labelled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


BACKENDS = pytest.mark.parametrize("backend", ["jax", "torch"])


def looks(tensor):
    return type(tensor), tensor.requires_grad, tensor.is_leaf, tensor.tolist()


@BACKENDS
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.zeros_like(x, requires_grad=True),
        lambda x: torch.nn.Parameter(x * 2),
        lambda x: torch.nn.Parameter(x * 2, requires_grad=False),
        lambda x: torch.nn.Linear(2, 1, device=x.device).requires_grad_(False).bias * 0,
        lambda x: {"weight": torch.nn.Parameter(x + 1)}["weight"],
    ],
)
def test_results(fn, backend):
    x = torch.ones(2, device=tg.device(backend))
    compiled = tg.jit(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledWarning)
        first, second = compiled(x), compiled(x)
    assert looks(first) == looks(second) == looks(fn(x))
    assert first is not second


@BACKENDS
def test_modules(backend):
    x = torch.ones(2, device=tg.device(backend))
    made = tg.jit(lambda x: torch.nn.Linear(2, 1, device=x.device))(x)
    made(x).backward()
    assert all(isinstance(p, torch.nn.Parameter) and p.grad is not None for p in made.parameters())


@BACKENDS
def test_with_what_is_computed_of_them(backend):
    def fn(x):
        weight = torch.nn.Parameter(x * 2)
        return weight, (weight * 3).sum()

    with pytest.warns(UncompiledWarning, match="a new leaf of autograd"):
        weight, loss = tg.jit(fn)(torch.ones(2, device=tg.device(backend)))
    loss.backward()
    assert weight.grad.tolist() == [3, 3]


@BACKENDS
def test_with_their_gradients(backend):
    def fitted(x):
        weight = torch.zeros_like(x, requires_grad=True)
        (weight * x).sum().backward()
        return weight

    with pytest.warns(UncompiledWarning, match="a new leaf of autograd"):
        weight = tg.jit(fitted)(torch.ones(2, device=tg.device(backend)))
    assert weight.grad.tolist() == [1, 1]


@BACKENDS
@pytest.mark.parametrize("kind", [Plain, Labelled])
def test_subclasses(kind, backend):
    x = torch.ones(2, device=tg.device(backend))
    labelled = x.as_subclass(kind)
    doubled = tg.jit(lambda x: x * 2 if type(x) is kind else x)
    assert type(doubled(labelled)) is type(doubled(labelled)) is kind
    assert type(doubled(x)) is torch.Tensor  # not the trace of the other
    assert type(tg.jit(lambda x: [x.as_subclass(kind)])(x * 1)[0]) is kind
    labelled.scale = 3
    scaled = tg.jit(lambda x: x * x.scale)
    scaled(labelled)
    labelled.scale = 4
    assert scaled(labelled).tolist() == [4, 4]


class Told(torch.Tensor):
    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Endless(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*args, **kwargs or {})  # and so on, as long as nobody disables it


@BACKENDS
@pytest.mark.parametrize("default", [False, True])
def test_subclasses_are_told_of_the_program_alone(default, backend):
    device = tg.device(backend)
    x = torch.ones(2, device=device)
    add = tg.jit(lambda x: x + 1)
    of_class = tg.jit(lambda x: (torch.add(x, 1).as_subclass(Endless), type(x) is Endless))
    Told.calls.clear()
    with device if default else contextlib.nullcontext():
        results = [add(x.as_subclass(Told)) for _ in range(3)]
        assert Told.calls == ["add"] * 3  # as without `tg.jit`, and of nothing that this has looked at
        assert [type(y) for y in results] == [Told] * 3
        for _ in range(2):
            assert [type(of_class(x)[0]), of_class(x)[1]] == [Endless, False]
            with torch._C.DisableTorchFunctionSubclass():
                assert [type(y) for y in of_class(x.as_subclass(Endless))] == [Endless, bool]


def test_parameters_are_no_tensors():
    kinds = tg.jit(lambda x: x + isinstance(x, torch.nn.Parameter))
    x = torch.zeros(2, device=tg.device("jax"))
    assert kinds(x).tolist() == [0, 0]
    assert kinds(torch.nn.Parameter(x, requires_grad=False)).tolist() == [1, 1]


def test_objects_with_modules_of_python():
    made = tg.jit(lambda x: (x.sin(), warnings.catch_warnings(record=True)))
    x = torch.ones(2, device=tg.device("jax"))
    (_, first), (_, second) = made(x), made(x)
    assert type(first) is type(second) is warnings.catch_warnings
    assert first is not second


class Held:
    def __init__(self, tensor):
        self.tensor = tensor


@BACKENDS
@pytest.mark.parametrize("replaced", [False, True])
def test_an_object_that_is_given_is_handed_back(replaced, backend):
    """Each call returns its own argument, also where an earlier one put another tensor into it before the trace."""
    device = tg.device(backend)

    @tg.jit
    def total(x, held):
        held.tensor.add_(x)
        return {"sum": held.tensor + x, "held": held}

    for start in (0.0, 5.0, 7.0):
        held = Held(torch.full((2,), start, device=device))
        for step in range(3):
            result = total(torch.ones(2, device=device), held)
            assert result["held"] is held
            assert result["sum"].tolist() == [start + step + 2] * 2
            if replaced:
                held.tensor = held.tensor.clone()
