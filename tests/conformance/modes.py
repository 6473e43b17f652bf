"""What is checked of one sample of an operator, other than derivatives (`derivatives.py`).

Each mode takes (OpInfo, SampleInput on the CPU, `Move` to the device) and raises AssertionError where they differ;
`Skip` where the CPU itself raises or the operator has no such variant for the sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from tests.conformance.compare import compare, plain
from tests.conformance.moving import Move, double
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

Tensor = torch.Tensor
# what these contain is whatever was in memory
UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)
# among equal elements any index is right: the operator, and its dimension's position among the arguments
TIES = {"topk": 1, "sort": 0, "argsort": 0, "mode": 0, "median": 0, "nanmedian": 0, "kthvalue": 1, "msort": 0}


class Skip(Exception):
    """The CPU has nothing to compare with."""


def forward(op: Any, sample: Any, move: Move) -> None:
    _call(op, op.op, sample, move)


def method(op: Any, sample: Any, move: Move) -> None:
    _call(op, op.get_method(), sample, move)


def _call(op: Any, fn: Callable[..., Any], sample: Any, move: Move) -> None:
    arguments = (sample.input, sample.args, sample.kwargs)
    _strided_only(arguments)
    there = move(arguments)
    expected = on_cpu(fn, arguments)
    actual = fn(there[0], *there[1], **there[2])
    if judge(op, sample, fn, expected, actual, move):
        compare(arguments, there, "argument afterwards")


def judge(op: Any, sample: Any, fn: Callable[..., Any], expected: Any, actual: Any, move: Move) -> bool:
    """Compare results as far as the operator determines them. False: its values are random or undefined."""
    for t in tree_leaves(actual):
        assert not isinstance(t, Tensor) or t.device == move.device, f"a result is on {t.device}"
    arguments = (sample.input, sample.args, sample.kwargs)
    if op.name in UNINITIALISED or is_random(fn, arguments):
        compare(_shapes(expected), _shapes(actual), "result")
        return False
    if op.name.rpartition(".")[2] in TIES:
        expected, actual = _by_index(op, sample, expected), _by_index(op, sample, move_back(actual))
    else:  # singular vectors have no sign: OpInfo says how to look at them
        expected, actual = sample.output_process_fn_grad(expected), sample.output_process_fn_grad(actual)

    def reference() -> Any:
        x, args, kwargs = double(arguments)
        return sample.output_process_fn_grad(fn(x, *args, **kwargs))

    compare(expected, actual, "result", reference)
    return True


def on_cpu(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The CPU's result. Raises Skip where it raises, and for sparse arguments."""
    _strided_only(arguments)
    x, args, kwargs = arguments
    torch.manual_seed(0)
    try:
        return fn(x, *args, **kwargs)
    except Exception as error:
        raise Skip(f"the CPU raises {type(error).__name__}") from None


def _strided_only(arguments: Any) -> None:
    """Before anything is moved: compressed layouts cannot be."""
    if any(isinstance(t, Tensor) and t.layout is not torch.strided for t in tree_leaves(arguments)):
        raise Skip("sparse")


class _Drawing(TorchDispatchMode):
    """Notes whether an operator that may draw random numbers was called."""

    drawn = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.drawn |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def is_random(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Whether another seed gives another result. OpInfo sets one for some operators: that one is changed, too."""
    seeded = torch.manual_seed

    def result(seed: int) -> list[Tensor]:
        x, args, kwargs = Move(torch.device("cpu"))(arguments)
        with mock.patch("torch.manual_seed", lambda given: seeded(given + seed)):
            torch.manual_seed(0)
            return [plain(t).clone() for t in tree_leaves(fn(x, *args, **kwargs)) if isinstance(t, Tensor)]

    with _Drawing() as mode:
        first = result(1)
    return mode.drawn and any(
        a.shape != b.shape or not torch.equal(a.nan_to_num(), b.nan_to_num())
        for seed in range(2, 30)
        for a, b in zip(first, result(seed), strict=True)
    )


def _shapes(tree: Any) -> Any:
    return [torch.empty_like(plain(t)).zero_() for t in tree_leaves(tree) if isinstance(t, Tensor)]


def move_back(tree: Any) -> Any:
    return Move(torch.device("cpu"))(tree)


def _by_index(op: Any, sample: Any, result: Any) -> Any:
    """The result with its indices replaced by the elements that they point at."""
    source = sample.input.detach()
    given = [*sample.args, *([None] * 2)]
    dim = sample.kwargs.get("dim", given[TIES[op.name.rpartition(".")[2]]])
    leaves, _ = tree_flatten(result)
    found = []
    whole = (dim is None and op.name in ("median", "nanmedian")) or source.ndim == 0
    indices = len(leaves) - 1 if len(leaves) > 1 or op.name == "argsort" else None
    for i, t in enumerate(leaves):
        t = plain(t)
        if i != indices or whole:
            found.append(t)
        else:
            at = -1 if dim is None or isinstance(dim, bool) else dim
            keep = t if t.ndim == source.ndim else t.unsqueeze(at)
            found.append(source.gather(at, keep))
    return found


def inplace(op: Any, sample: Any, move: Move) -> None:
    if sample.broadcasts_input or not isinstance(sample.input, Tensor):
        raise Skip("no in-place form")
    _strided_only((sample.input, sample.args, sample.kwargs))
    variants = [v for v in (op.get_inplace(), op.get_inplace_operator()) if v is not None]
    for fn in variants:
        arguments = Move(torch.device("cpu"))((sample.input, sample.args, sample.kwargs))
        there = move.afresh()((sample.input, sample.args, sample.kwargs))
        random = not op.get_inplace() or is_random(op.op, (sample.input, sample.args, sample.kwargs))
        expected = on_cpu(fn, arguments)
        actual = fn(there[0], *there[1], **there[2])
        assert actual is there[0], "an in-place operator returns its first argument"
        if random and op.get_inplace():
            expected, actual = _shapes(expected), _shapes(actual)

        def reference(fn: Any = fn) -> Any:
            x, args, kwargs = double((sample.input, sample.args, sample.kwargs))
            return fn(x.clone(), *args, **kwargs)

        compare(expected, actual, f"{getattr(fn, '__name__', fn)}", reference)


def out(op: Any, sample: Any, move: Move) -> None:
    """`out=` of the right size, of no elements, of another size (with its warning) and of other strides."""
    arguments = (sample.input, sample.args, sample.kwargs)
    expected = on_cpu(op.op, arguments)
    tensors = tree_leaves(expected)
    if not tensors or not all(isinstance(t, Tensor) for t in tensors):
        raise Skip("no tensors come out")
    random = op.name in UNINITIALISED or is_random(op.op, arguments)

    def call(outs: list[Tensor], arguments: Any) -> tuple[Any, list[str]]:
        x, args, kwargs = arguments
        given = outs[0] if isinstance(expected, Tensor) else tuple(outs)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            result = op.op(x, *args, **kwargs, out=given)
        texts = [str(w.message).partition(" (Triggered")[0] for w in seen]
        return result, [text for text in texts if "was resized" in text]

    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "exact": lambda t: torch.empty_like(t),
        "empty": lambda t: t.new_empty(0),
        "wrong": lambda t: t.new_empty((*t.shape, 2) if t.numel() else (1,)),
        "strided": lambda t: t.new_empty((*t.shape, 2))[..., 0],
    }
    for kind, make in kinds.items():
        here = [make(t.detach()) for t in tensors]
        there = move.afresh()(here)
        try:
            want, warned = call(here, arguments)
        except Exception:  # not every operator takes every `out=`; error inputs are another mode
            continue
        if not random and kind == "strided" and not _alike(expected, want):
            continue  # some CPU kernels write a strided `out` wrongly
        got, warns = call(there, move(arguments))
        is_out = [[any(a is o for o in outs) for a in tree_leaves(r)] for r, outs in ((want, here), (got, there))]
        assert is_out[0] == is_out[1], f"{kind}: `out` is not returned"
        assert warns == warned, f"{kind}: warns {warns}, the CPU {warned}"
        if random:
            want, got = _shapes(want), _shapes(got)

        def reference() -> Any:
            x, args, kwargs = double(arguments)
            return op.op(x, *args, **kwargs)

        if op.name.rpartition(".")[2] in TIES:
            want, got = _by_index(op, sample, want), _by_index(op, sample, move_back(got))
        want, got = sample.output_process_fn_grad(want), sample.output_process_fn_grad(got)
        compare(want, got, f"out, {kind}", reference)


def _alike(expected: Any, actual: Any) -> bool:
    try:
        compare(expected, actual, "")
    except AssertionError:
        return False
    return True


def strides(op: Any, sample: Any, move: Move) -> None:
    """Strides as on the CPU: of the sample as it is, and with its tensors' axes in another order in memory."""
    if op.name in UNINITIALISED - {"empty_like"}:
        raise Skip("strides are its arguments")
    for permuted in (False, True):
        arguments = (sample.input, sample.args, sample.kwargs)
        if permuted:
            arguments = _reordered(arguments)
        expected = [t for t in tree_leaves(on_cpu(op.op, arguments)) if isinstance(t, Tensor)]
        x, args, kwargs = move.afresh()(arguments)
        actual = [t for t in tree_leaves(op.op(x, *args, **kwargs)) if isinstance(t, Tensor)]
        for want, got in zip(expected, actual, strict=True):
            if want.numel() < 2 or want.shape != got.shape:  # the strides of single elements mean nothing
                continue
            significant = [i for i, n in enumerate(want.shape) if n > 1]
            here, there = ([t.stride()[i] for i in significant] for t in (want, got))
            assert here == there, f"strides {got.stride()}, the CPU gives {want.stride()} for {tuple(want.shape)}" + (
                " from arguments in another memory order" if permuted else ""
            )


def _reordered(tree: Any) -> Any:
    """channels_last where there are four or five axes, else the axes stored in reverse."""

    def leaf(t: Any) -> Any:
        if not isinstance(t, Tensor) or t.ndim < 2 or t.is_conj() or t.is_neg():
            return t
        order = [0, *range(2, t.ndim), 1] if t.ndim in (4, 5) else [*range(t.ndim)][::-1]
        back = [order.index(i) for i in range(t.ndim)]
        return t.detach().permute(order).contiguous().permute(back).requires_grad_(t.requires_grad)

    return tree_map(leaf, tree)


def error(op: Any, sample: Any, move: Move) -> None:
    """`sample` is an ErrorInput: the device raises what the CPU raises."""
    wrong = sample.sample_input
    arguments = (wrong.input, wrong.args, wrong.kwargs)
    _strided_only(arguments)
    x, args, kwargs = move(arguments)
    try:
        op.op(arguments[0], *arguments[1], **arguments[2])
    except Exception as raised:
        kind = type(raised)
    else:
        raise Skip("the CPU raises nothing")
    with pytest.raises(kind) as caught:
        op.op(x, *args, **kwargs)
    accidental = caught.type is NotImplementedError and kind is not NotImplementedError
    assert not accidental, f"NotImplementedError, the CPU raises {kind.__name__}"
