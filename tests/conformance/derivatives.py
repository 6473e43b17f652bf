"""Derivatives of one sample of an operator: by PyTorch's autograd, backwards and forwards, and by torch.func.

Each mode takes (OpInfo, SampleInput on the CPU whose differentiable tensors require a gradient, `Move` to the device)
and raises AssertionError where the device's derivatives differ from the CPU's; `Skip` where the CPU has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.autograd.forward_ad as fwd
from tests.conformance.compare import compare, plain
from tests.conformance.modes import TIES, UNINITIALISED, Skip
from tests.conformance.moving import Move, double
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

Tensor = torch.Tensor
LARGEST_JACOBIAN = 4096  # elements


class Function:
    """A sample as a function of the tensors that are differentiated: `fn(*fn.inputs)` is the tuple of the results
    that can be differentiated. `place` takes arguments and random cotangents to where the function runs."""

    def __init__(self, op: Any, sample: Any, place: Callable[[Any], Any]) -> None:
        self.op, self.process, self.place = op, sample.output_process_fn_grad, place
        arguments = (sample.input, sample.args, sample.kwargs)
        _suitable(op, sample)
        self.flat, self.tree = tree_flatten(place(arguments))
        positions: dict[int, list[int]] = {}  # a tensor given twice is one input
        for i, t in enumerate(tree_leaves(arguments)):
            if isinstance(t, Tensor) and t.requires_grad:
                positions.setdefault(id(t), []).append(i)
        if not positions:
            raise Skip("no input can be differentiated")
        self.positions = list(positions.values())
        self.inputs = tuple(self.flat[at[0]].detach().requires_grad_() for at in self.positions)
        self._seed = 0

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        flat = list(self.flat)
        for at, t in zip(self.positions, inputs, strict=True):
            for i in at:
                flat[i] = t
        x, args, kwargs = tree_unflatten(flat, self.tree)
        out = self.process(self.op.gradcheck_wrapper(self.op.op, x, *args, **kwargs))
        return tuple(t for t in tree_leaves(out) if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex()))

    def random_like(self, tensors: Any) -> list[Tensor]:
        """The same numbers for every device and dtype."""
        self._seed += 1
        generator = torch.Generator().manual_seed(self._seed)

        def draw(t: Tensor) -> Tensor:
            parts = torch.rand((2, *t.shape), generator=generator, dtype=torch.float64) * 2 - 1
            values = torch.complex(parts[0], parts[1]) if t.is_complex() else parts[0]
            return self.place(values.to(t.dtype))

        return [draw(t) for t in tensors]


def backward(op: Any, sample: Any, move: Move) -> None:
    _check(op, sample, move, lambda f: _gradients(f, f(*f.inputs), f.inputs))


def gradgrad(op: Any, sample: Any, move: Move) -> None:
    def both(f: Function) -> Any:
        outs = [t for t in f(*f.inputs) if t.requires_grad]
        cotangents = [t.requires_grad_() for t in f.random_like(outs)]
        first = torch.autograd.grad(outs, f.inputs, cotangents, create_graph=True, allow_unused=True)
        first = _zeros_for_none(first, f.inputs)
        if not any(t.requires_grad for t in first):
            raise Skip("the gradient is constant")
        return first, _gradients(f, first, (*f.inputs, *cotangents))

    _check(op, sample, move, both)


def forward_ad(op: Any, sample: Any, move: Move) -> None:
    """Forward mode; and through the backward pass, where OpInfo says that it can be."""

    def along(f: Function) -> Any:
        tangents = f.random_like(f.inputs)
        with fwd.dual_level():
            duals = [fwd.make_dual(x, t) for x, t in zip(f.inputs, tangents, strict=True)]
            outs = f(*duals)
            made = [_tangent(t) for t in outs]
            outs = [t for t in outs if t.requires_grad]
            if op.supports_fwgrad_bwgrad and outs:
                cotangents = [
                    fwd.make_dual(*pair) for pair in zip(f.random_like(outs), f.random_like(outs), strict=True)
                ]
                grads = torch.autograd.grad(outs, duals, cotangents, create_graph=True, allow_unused=True)
                made += [_tangent(t) for t in _zeros_for_none(grads, f.inputs)]
        return made

    _check(op, sample, move, along)


def _tangent(t: Tensor) -> Tensor:
    primal, tangent = fwd.unpack_dual(t)
    return torch.zeros_like(primal) if tangent is None else tangent


def jvp(op: Any, sample: Any, move: Move) -> None:
    def both(f: Function) -> Any:
        inputs = tuple(t.detach() for t in f.inputs)
        return torch.func.jvp(f, inputs, tuple(f.random_like(inputs)))

    _check(op, sample, move, both)


def jacrev(op: Any, sample: Any, move: Move) -> None:
    def jacobians(f: Function) -> Any:
        inputs = tuple(t.detach() for t in f.inputs)
        elements = sum(t.numel() for t in f(*inputs)) * sum(t.numel() for t in inputs)
        if elements > LARGEST_JACOBIAN:
            raise Skip("too large")

        def real(*inputs: Tensor) -> Any:  # it takes no complex results
            return tuple(torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in f(*inputs))

        return torch.func.jacrev(real, argnums=tuple(range(len(inputs))))(*inputs)

    _check(op, sample, move, jacobians)


def vmap(op: Any, sample: Any, move: Move) -> None:
    """Over two of the first tensor: the sample's own, and (where it is floating point) one slightly larger."""
    if not _suitable(op, sample):
        raise Skip("no tensor to map over")

    def mapped(place: Callable[[Any], Any]) -> Any:
        flat, tree = tree_flatten(place((sample.input, sample.args, sample.kwargs)))
        first = next(i for i, t in enumerate(flat) if isinstance(t, Tensor))

        def call(t: Tensor) -> Any:
            x, args, kwargs = tree_unflatten([*flat[:first], t, *flat[first + 1 :]], tree)
            out = sample.output_process_fn_grad(op.gradcheck_wrapper(op.op, x, *args, **kwargs))
            return [t for t in tree_leaves(out) if isinstance(t, Tensor)]

        x = flat[first].detach()
        other = x + 0.01 if x.is_floating_point() or x.is_complex() else x
        return torch.func.vmap(call, randomness="different")(torch.stack([x, other]))

    _compare(op, mapped, move)


MODES = {f.__name__: f for f in (backward, gradgrad, forward_ad, jvp, jacrev, vmap)}


def _suitable(op: Any, sample: Any) -> list[Tensor]:
    """The tensors of a sample that has one answer."""
    here = [t for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, Tensor)]
    if any(t.layout is not torch.strided for t in here):
        raise Skip("sparse")
    if op.name in TIES and sample.input.unique().numel() < sample.input.numel():
        raise Skip("equal elements: either may be taken, and gets the gradient")
    return here


def _gradients(f: Function, outs: Any, inputs: Any) -> Any:
    outs = [t for t in outs if t.requires_grad]
    if not outs:
        raise Skip("no result can be differentiated")
    return _zeros_for_none(torch.autograd.grad(outs, inputs, f.random_like(outs), allow_unused=True), inputs)


def _zeros_for_none(tensors: Any, like: Any) -> list[Tensor]:
    return [torch.zeros_like(b) if a is None else a for a, b in zip(tensors, like, strict=True)]


def _check(op: Any, sample: Any, move: Move, derive: Callable[[Function], Any]) -> None:
    _compare(op, lambda place: derive(Function(op, sample, place)), move)


def _compare(op: Any, derive: Callable[[Callable[[Any], Any]], Any], move: Move) -> None:
    """`derive` with what places its arguments, on the CPU and on the device."""

    def on_cpu(seed: int) -> list[Tensor]:
        with seeds_moved_by(seed):
            torch.manual_seed(0)
            return [plain(t).clone() for t in tree_leaves(derive(Move(torch.device("cpu"))))]

    try:
        expected = on_cpu(0)
        random = op.name in UNINITIALISED or any(_differ(expected, on_cpu(seed)) for seed in (1, 2))
    except Skip:
        raise
    except Exception as error:
        raise Skip(f"the CPU raises {type(error).__name__}: {error}") from None
    actual = tree_leaves(derive(move))
    for t in actual:
        assert t.device == move.device, f"a derivative is on {t.device}"
    if random:
        expected, actual = ([torch.zeros_like(plain(t)) for t in part] for part in (expected, actual))
    compare(
        expected,
        actual,
        "derivative",
        lambda: tree_leaves(derive(lambda tree: double(Move(torch.device("cpu"))(tree)))),
    )


def _differ(first: list[Tensor], second: list[Tensor]) -> bool:
    return any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True))


@contextlib.contextmanager
def seeds_moved_by(n: int) -> Iterator[None]:
    """OpInfo gives random operators a seed of its own in every call: another one, then."""
    seed = torch.manual_seed
    with mock.patch.object(torch, "manual_seed", lambda s: seed(s + n)):
        yield
