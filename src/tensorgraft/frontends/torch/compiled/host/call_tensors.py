"""Tensors of the host at a call of a compiled function: their current values, and the properties that a program
assumes."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import pytrees, schema, state
from tensorgraft.frontends.torch.core.devices import TYPE

Tensor = torch.Tensor
# PyTorch's own way to `.grad`, which a trace replaces to see who reads it
raw_gradient: Callable[[torch.Tensor], torch.Tensor | None] = torch.Tensor.grad.__get__  # type: ignore[union-attr]
set_raw_gradient: Callable[[torch.Tensor, torch.Tensor | None], None] = torch.Tensor.grad.__set__  # type: ignore[union-attr]


def on_host(x: Any) -> bool:
    """Return whether `x` is a tensor that some device other than ours computes with."""
    return isinstance(x, Tensor) and x.device.type not in (TYPE, "meta")


# ---- what a tensor is at a call --------------------------------------------------------------------------------------


class LiveTensor:
    """A tensor of the host, and a way to find the corresponding one at a call."""

    of_argument: bool
    tensor: Tensor | None = None  # the same one at every call

    def __call__(self) -> Tensor:
        raise NotImplementedError


class Argument(LiveTensor):
    of_argument = True

    def __init__(self, i: int) -> None:
        self._i = i

    def __call__(self) -> Tensor:
        leaf: Tensor = state.now.leaves[self._i]
        return leaf


class Outside(LiveTensor):
    """One that the function reaches otherwise; held, so that it is the same one at every call."""

    of_argument = False

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor = tensor

    def __call__(self) -> Tensor:
        return self.tensor


class GradientOfOutside(LiveTensor):
    """The gradient that a tensor of the host has at a call."""

    of_argument = False

    def __init__(self, leaf: Tensor) -> None:
        self._leaf = leaf

    def __call__(self) -> Tensor:
        gradient: Any = self._leaf.grad
        return gradient


class ReleasedArgument(LiveTensor):
    """An argument, in a backward pass that runs a function again when the call is over."""

    of_argument = True

    def __call__(self) -> Tensor:
        raise TracedValueError(
            "a checkpointed function, branch or loop body inside tg.jit uses a CPU tensor that is an argument,"
            " but runs again in a backward pass outside of the function, where the argument is missing: move the"
            " argument to the device"
        )


class Computed(LiveTensor):
    """A result of a step."""

    def __init__(self, step: HostStep, k: int) -> None:
        self._step, self._k = step, k
        self.of_argument = step.of_argument

    def __call__(self) -> Tensor:
        return self._step()[self._k]


class HostStep:
    """A call of an operator by the host, made again once for each call of the function."""

    def __init__(self, func: Callable[..., Any], args: Any, kwargs: Any, of_argument: bool) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        self.of_argument = of_argument

    def __call__(self) -> list[Tensor]:
        known = state.now.computed
        if self not in known:
            args, kwargs = pytrees.mapped(_current_value, (self._args, self._kwargs))
            with torch.no_grad():
                known[self] = list(filter(on_host, pytrees.leaves_of(self._func(*args, **kwargs))))
        results: list[Tensor] = known[self]
        return results


class HostSteps:
    """A description of the host's part in a call: a line for each step, with the values of its constants. Two traces of
    one function have the same lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[HostStep, str] = {}

    def add(self, what: str, of: Any) -> None:
        self.lines.append(f"{what}: {self._words(of)}")

    def _words(self, x: Any) -> str:
        if isinstance(x, Computed):
            return f"{self._step(x._step)}[{x._k}]"
        if isinstance(x, Argument):
            return f"argument {x._i}"
        if isinstance(x, LiveTensor):
            return f"{type(x).__name__} {id(x.tensor if isinstance(x, Outside) else x.__dict__.get('_leaf'))}"
        if on_host(x) and x.layout is torch.strided:
            dtype, shape, data = _bits(x)
            values = x.tolist() if x.numel() <= _SHOWN else hashlib.sha256(data).hexdigest()
            return f"{dtype} {tuple(shape)} {values}"
        if isinstance(x, functools.partial):
            return f"{self._words(x.func)} of {self._words(x.args)}"
        if isinstance(x, list | tuple):
            return f"({', '.join(map(self._words, x))})"
        if isinstance(x, dict):
            return f"{{{', '.join(f'{key}: {self._words(value)}' for key, value in x.items())}}}"
        return x.__qualname__ if isinstance(x, types.FunctionType) else str(x)

    def _step(self, step: HostStep) -> str:
        if step not in self._known:
            words = f"{self._words(step._func)}{self._words(step._args)} {self._words(step._kwargs)}"
            self._known[step] = f"step {len(self._known)}"
            self.lines.append(f"{self._known[step]}: {words}")
        return self._known[step]


_SHOWN = 8  # elements


class HostWrite(NamedTuple):
    """A write to a tensor from outside, which every call does when it is over."""

    of: LiveTensor
    value: LiveTensor  # in memory like that of the tensor


def written_by(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors of the host that an operator writes."""
    sig = schema.signature(func)
    names: Collection[str] = sig.written
    if not names and func is not torch.ops.aten.native_batch_norm.default:
        return []
    bound = sig.bind(args, kwargs)
    if not names and bound["training"]:  # a write that its schema does not declare
        names = ("running_mean", "running_var")
    return [t for name in names for t in pytrees.leaves_of(bound.get(name)) if on_host(t)]


def write_copies(func: Any, *args: Any, **kwargs: Any) -> list[Tensor]:
    """Call an operator that writes its operands with copies of their memory. Return the written copies and the other
    results."""
    memory = {t.untyped_storage()._cdata for t in written_by(func, args, kwargs)}
    copies: dict[int, Any] = {}

    def copied_if_written(x: Any) -> Any:
        writes = on_host(x) and x.layout is torch.strided and x.untyped_storage()._cdata in memory
        return copied(x, copies) if writes else x

    args, kwargs = pytrees.mapped(copied_if_written, (args, kwargs))
    targets = written_by(func, args, kwargs)
    out = pytrees.leaves_of(func(*args, **kwargs))
    return [*targets, *(t for t in out if on_host(t) and all(t is not w for w in targets))]


def copied(t: Tensor, copies: dict[int, Any]) -> Tensor:
    """Return a tensor with the geometry of `t` in a copy of its memory. `copies`: the existing copies, which are
    reused."""
    if t.layout is not torch.strided or t.is_conj() or t.is_neg() or t.is_quantized:
        return t.clone()
    storage = t.untyped_storage()
    if storage._cdata not in copies:
        copies[storage._cdata] = storage.clone()
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(
        copies[storage._cdata], t.storage_offset(), t.size(), t.stride()
    )


def seen_as(dtype: torch.dtype, size: Any, stride: Any, offset: int, of: Tensor) -> Tensor:
    """Return another view of a tensor's memory."""
    return torch.empty(0, dtype=dtype, device=of.device).set_(of.untyped_storage(), offset, size, stride)


def _current_value(x: Any) -> Any:
    return x() if isinstance(x, LiveTensor) else x


class ValueGuard:
    """Values that Python has asked for are still the same."""

    def __init__(self, live: LiveTensor, values: Tensor) -> None:
        self._live, self._values = live, _bits(values)

    def hold(self, leaves: Sequence[Any]) -> bool:
        with calling(leaves):
            return _bits(self._live()) == self._values

    def failure(self, names: dict[int, str]) -> str:
        name = names.get(id(self._live.tensor), "a CPU tensor")
        return f"{name}, which is on the CPU and of which Python asks for the value, has another one"


class GeometryGuard:
    """A tensor from outside (or its gradient) still has the shape, strides and dtype that the program was made for."""

    def __init__(self, tensor: Tensor, gradient: bool = False) -> None:
        self._tensor, self._gradient = tensor, gradient
        self._expected_key = self._current_key()

    def _current_key(self) -> Any:
        t = self._tensor.grad if self._gradient else self._tensor
        return None if t is None else _geometry_key(t)

    def hold(self, leaves: Sequence[Any]) -> bool:
        return bool(self._current_key() == self._expected_key)

    def failure(self, names: dict[int, str]) -> str:
        name = names.get(id(self._tensor), "a CPU tensor")
        return f"{name}{'.grad' if self._gradient else ''} has another shape, dtype or strides"


class MemoryGuard:
    """Tensors from outside lie in their memory as they did, and have the same of it in common."""

    def __init__(self, known: Sequence[tuple[Tensor, LiveTensor]]) -> None:
        outside = [(t, live) for t, live in known if isinstance(live, Argument | Outside)]
        self._lives = [live for _, live in outside]
        self._before = _memory_of([t for t, _ in outside])

    def hold(self, leaves: Sequence[Any]) -> bool:
        with calling(leaves):
            return _memory_of([live() for live in self._lives]) == self._before

    def failure(self, names: dict[int, str]) -> str:
        return "CPU tensors, of which some are written, have other memory in common"


HostGuard = ValueGuard | GeometryGuard | MemoryGuard


class calling:
    """The time in which a compiled function is called with `leaves`."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._leaves = leaves

    def __enter__(self) -> None:
        state.now.leaves = self._leaves

    def __exit__(self, *_: object) -> None:
        state.now.leaves = ()
        if state.now.computed:
            state.now.computed = {}


def _geometry_key(t: Tensor) -> tuple[Any, ...]:
    return t.dtype, t.shape, t.stride(), t.device, t.requires_grad


def _memory_of(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Return the memory of each tensor: the first tensor with the same memory, the offset, the size of the storage,
    lazy bits."""
    strided = [(t, t.untyped_storage()) for t in tensors if t.layout is torch.strided]
    first = {storage._cdata: k for k, (_, storage) in reversed(list(enumerate(strided)))}
    return [(first[s._cdata], int(t.storage_offset()), s.nbytes(), t.is_conj(), t.is_neg()) for t, s in strided]


def _bits(t: Tensor) -> tuple[Any, ...]:
    """Equal for equal values alone: zeros have signs, and NaN is itself."""
    t = t.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return t.dtype, t.shape, t.reshape(-1).view(torch.uint8).numpy().tobytes()


class HostTensors(Protocol):
    """The interface of `HostWatch`, which follows tensors of the host through a traced function."""

    may_write: bool
    roots: dict[int, tuple[Tensor, LiveTensor]]

    def live(self, t: Tensor) -> LiveTensor | None: ...
    def inside_kernel(self, t: Tensor) -> LiveTensor | None: ...
    def note_gradient(self, leaf: Tensor, gradient: Tensor) -> None: ...
