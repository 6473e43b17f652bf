"""Functions of tensors whose derivatives are given: autograd's, of any order, and those of `torch.func`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

from tensorgraft.backends.torch import arrays
from tensorgraft.hub.backend import Backend, Differentiable

Tensor = torch.Tensor


def differentiable(xp: Backend, function: Differentiable) -> Callable[..., tuple[Tensor, ...]]:
    """See `Backend.differentiable`. Results share no memory with arguments, nor with each other."""
    return lambda *tensors: _run(xp, function, tensors)


class Module(torch.nn.Module):
    """A program of another framework, with what it learns."""

    def __init__(
        self, call: Callable[..., Any], parameters: Mapping[str, Tensor], constants: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self._call = call
        self._names = [*parameters, *constants]
        for name, x in parameters.items():
            owner, _, last = name.rpartition(".")
            self._owner(owner).register_parameter(last, torch.nn.Parameter(x))
        for name, x in constants.items():
            owner, _, last = name.rpartition(".")
            self._owner(owner).register_buffer(last, x)

    def _owner(self, path: str) -> torch.nn.Module:
        found: torch.nn.Module = self
        for name in filter(None, path.split(".")):
            if name not in found._modules:
                found.add_module(name, torch.nn.Module())
            found = found.get_submodule(name)
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        held = {
            **dict(self.named_parameters(remove_duplicate=False)),
            **dict(self.named_buffers(remove_duplicate=False)),
        }
        return self._call({name: held[name] for name in self._names}, *args, **kwargs)

    def __prepare_scriptable__(self) -> NoReturn:
        """What `torch.jit.script` asks for."""
        refuse_script("this module")


def refuse_script(name: str) -> NoReturn:
    raise NotImplementedError(
        f"torch.jit.script compiles Python source, and {name} is a program of another framework, which has none for"
        " PyTorch: use torch.compile, torch.export.export or torch.jit.trace"
    )


def _run(xp: Backend, function: Differentiable, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    transformed = _transformed()
    wanted: tuple[int, ...] = ()
    if torch.compiler.is_exporting() and not transformed:
        # an exported program keeps no rules: PyTorch would differentiate the operators, which may not be what is meant
        tensors = [t.detach() for t in tensors]
    if torch.is_grad_enabled():
        wanted = tuple([i for i, t in enumerate(tensors) if t.requires_grad])
    if not wanted and not transformed:
        with xp.native_scope():
            return _apart(function.primal(xp, tensors), tensors)
    call = _Call(xp, function, wanted, lean=transformed)
    return _Function.apply(call, *tensors)[: call.count]


def _transformed() -> bool:
    """Inside of `torch.func`, or of forward-mode differentiation."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def _apart(results: Sequence[Tensor], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`results` in memory of their own."""
    seen = set(map(id, tensors))
    found = []
    for x in results:
        found.append(x.clone(memory_format=torch.contiguous_format) if id(x) in seen else arrays.own(x))
        seen.add(id(found[-1]))
    return tuple(found)


@dataclass
class _Call:
    xp: Backend
    function: Differentiable
    wanted: tuple[int, ...]
    lean: bool  # keeps arguments only: a transformation of PyTorch's sees no other residuals
    count: int = 0  # of results
    places: list[int | None] = field(default_factory=list)  # of each residual: the argument that it is


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        xp = call.xp
        residuals: Sequence[Tensor] = ()
        with xp.native_scope():
            if call.lean:
                results = call.function.primal(xp, tensors)
            else:
                results, residuals = call.function.forward(xp, tensors, call.wanted)
            results = _apart(results, tensors)
        argument = {id(t): i for i, t in enumerate(tensors)}
        call.count = len(results)
        call.places = [argument.get(id(r)) for r in residuals]
        return (*results, *(r.detach() for r in residuals if id(r) not in argument))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        call, *tensors = inputs
        ctx.call, ctx.count = call, len(tensors)
        ctx.results = [(t.shape, t.dtype, t.device) for t in output[: call.count] if _smooth(t)]
        ctx.smooth = [_smooth(t) for t in output[: call.count]]
        ctx.mark_non_differentiable(*[t for i, t in enumerate(output) if i >= call.count or not _smooth(t)])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output[call.count :])
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        call: _Call = ctx.call
        xp = call.xp
        tensors, kept = ctx.saved_tensors[: ctx.count], iter(ctx.saved_tensors[ctx.count :])
        given = [g for g, smooth in zip(gradients, ctx.smooth, strict=False) if smooth]
        cotangents = [
            torch.zeros(shape, dtype=dtype, device=device) if g is None else _conjugate(g)
            for g, (shape, dtype, device) in zip(given, ctx.results, strict=True)
        ]
        wanted = tuple(i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed)
        if call.lean or torch.is_grad_enabled():  # to be differentiated again
            found: Sequence[Tensor] = _run(xp, call.function.pullback(wanted), [*tensors, *cotangents])
        else:
            residuals = [next(kept) if i is None else tensors[i] for i in call.places]
            with xp.native_scope():
                all_ = call.function.backward(xp, residuals, cotangents, call.wanted)
            found = [g for i, g in zip(call.wanted, all_, strict=True) if i in wanted]
        out: list[Tensor | None] = [None] * ctx.count
        for i, g in zip(wanted, found, strict=True):
            out[i] = _conjugate(g)
        return None, *out

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        call: _Call = ctx.call
        wanted = tuple(i for i, t in enumerate(tangents[1:]) if t is not None)
        made = iter(
            _run(
                call.xp,
                call.function.pushforward(wanted),
                [*ctx.saved_tensors[: ctx.count], *(t for t in tangents[1:] if t is not None)],
            )
        )
        return tuple([next(made) if smooth else None for smooth in ctx.smooth])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: _Call, *tensors: Tensor) -> Any:
        made = _run(call.xp, call.function.batched(tuple(in_dims[1:]), info.batch_size), tensors)
        call.count = len(made)
        return made, tuple([0] * len(made))


def _smooth(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _conjugate(t: Tensor) -> Tensor:
    """PyTorch's cotangents are conjugated, the hub's are transposed."""
    return t.conj().resolve_conj() if t.is_complex() else t
