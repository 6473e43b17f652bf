"""Functions of tensors whose derivatives are given: autograd's, of any order, and those of `torch.func`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

from tensorgraft.backends.torch import arrays
from tensorgraft.errors import DerivativeError
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.interchange import Differentiable

Tensor = torch.Tensor


def differentiable(xp: Backend, function: Differentiable) -> Callable[..., tuple[Tensor, ...]]:
    """See `Backend.differentiable`. Results share no memory with arguments, nor with each other."""
    return lambda *tensors: _run(xp, function, tensors)


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Part(torch.nn.Module):
    """A submodule of a program of another framework, which holds parameters or buffers."""

    is_grafted = True  # names and layouts of parameters are the other framework's
    _described = ("Module", "")

    def _get_name(self) -> str:
        return self._described[0]

    def extra_repr(self) -> str:
        return self._described[1]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with unsigned integers (random keys) as signed ones: PyTorch cannot read those from a
        pickle."""
        state = dict(self.__dict__)
        state["_buffers"] = {
            name: x.view(_SIGNED[x.dtype]) if x is not None and x.dtype in _SIGNED else x
            for name, x in self._buffers.items()
        }
        return {
            **state,
            "_unsigned": {n: x.dtype for n, x in self._buffers.items() if x is not None and x.dtype in _SIGNED},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        unsigned = state.pop("_unsigned")
        super().__setstate__(state)
        for name, dtype in unsigned.items():
            self._buffers[name] = self._buffers[name].view(dtype)  # type: ignore[union-attr]


def _attribute_path(name: str) -> str:
    """Return a path of attributes for a name with dots: a part that every module has as an attribute (`half`, `type`)
    gets an underscore."""
    return ".".join(part + "_" if hasattr(Part, part) else part for part in name.split("."))


class Module(Part):
    """A program of another framework with its parameters. If it is stateful, a call writes its buffers; if the program
    has training modes of its own, they are those of the submodules."""

    def __init__(
        self,
        call: Callable[..., Any],
        parameters: Mapping[str, Tensor],
        constants: Mapping[str, Tensor],
        stateful: bool,
        name: str | None,
        described: Mapping[str, tuple[str, str]],
    ) -> None:
        super().__init__()
        self._call, self._stateful = call, stateful
        self._paths = {name: _attribute_path(name) for name in (*parameters, *constants)}
        self._modes: dict[str, bool] = getattr(call, "training", {})
        for name, x in parameters.items():
            owner, _, last = self._paths[name].rpartition(".")
            self._owner(owner).register_parameter(last, torch.nn.Parameter(x))
        for name, x in constants.items():
            owner, _, last = self._paths[name].rpartition(".")
            self._owner(owner).register_buffer(last, x)
        for path, description in {"": (name or "Module", ""), **described}.items():
            self._owner(path)._described = description
        self.train(not self._modes or any(self._modes.values()))
        for path, training in self._modes.items():
            self._owner(path).training = training

    def _owner(self, path: str) -> Part:
        part: Any = self
        for name in filter(None, path.split(".")):
            if name not in part._modules:
                part.add_module(name, Part())
            part = part._modules[name]
        return part

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        parameters = dict(self.named_parameters(remove_duplicate=False))
        buffers = dict(self.named_buffers(remove_duplicate=False))
        state = {**parameters, **buffers}
        if not self._stateful:
            return self._call({name: state[path] for name, path in self._paths.items()}, *args, **kwargs)
        # a buffer that is written is not what the backward pass has kept of it
        values = {n: state[path] if path in parameters else state[path].clone() for n, path in self._paths.items()}
        if self._modes:
            training = {path: self._owner(path).training for path in self._modes}
            results, new_state = self._call.in_modes(training, values, args, kwargs)  # type: ignore[attr-defined]
        else:
            results, new_state = self._call(values, *args, **kwargs)
        with torch.no_grad():
            for name, x in new_state.items():
                state[self._paths[name]].copy_(x)
        return results

    def __prepare_scriptable__(self) -> NoReturn:
        """Raise NotImplementedError for `torch.jit.script`, which calls this."""
        raise NotImplementedError(
            "torch.jit.script compiles Python source, and this module is a program of another framework, which has none"
            " for PyTorch: use torch.compile, torch.export.export or torch.jit.trace"
        )


def _run(xp: Backend, function: Differentiable, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    transformed = _transformed()
    argnums: tuple[int, ...] = ()
    if torch.compiler.is_exporting() and not transformed:
        # an exported program keeps no derivative rules: PyTorch would differentiate the operators, perhaps differently
        tensors = [t.detach() for t in tensors]
    if torch.is_grad_enabled():
        argnums = tuple([i for i, t in enumerate(tensors) if t.requires_grad])
    if not argnums and not transformed:
        with xp.native_scope():
            return _without_shared_memory(function.primal(xp, tensors), tensors)
    call = _Call(xp, function, argnums, lean=transformed)
    return _Function.apply(call, *tensors)[: call.count]


def _transformed() -> bool:
    """Return whether this runs inside of `torch.func`, or of forward-mode differentiation."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def _without_shared_memory(results: Sequence[Array], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copy results that share memory, so that each has its own."""
    seen_ids = set(map(id, tensors))
    separate = []
    for x in results:
        separate.append(x.clone(memory_format=torch.contiguous_format) if id(x) in seen_ids else arrays.own(x))
        seen_ids.add(id(separate[-1]))
    return tuple(separate)


@dataclass
class _Call:
    xp: Backend
    function: Differentiable
    wanted: tuple[int, ...]
    lean: bool  # keeps arguments only: a transformation of PyTorch's sees no other residuals
    count: int = 0  # the number of results
    argument_of_residual: list[int | None] = field(default_factory=list)  # for each residual, the argument that it is


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        xp = call.xp
        residuals: Sequence[Array] = ()
        with xp.native_scope():
            if call.lean:
                results = call.function.primal(xp, tensors)
            else:
                try:
                    results, residuals = call.function.forward(xp, tensors, call.wanted)
                except DerivativeError:  # an error only if the derivative is requested
                    call.lean, results = True, call.function.primal(xp, tensors)
            results = _without_shared_memory(results, tensors)
        argument = {id(t): i for i, t in enumerate(tensors)}
        call.count = len(results)
        call.argument_of_residual = [argument.get(id(r)) for r in residuals]
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
        tensors, saved = ctx.saved_tensors[: ctx.count], iter(ctx.saved_tensors[ctx.count :])
        incoming = [g for g, smooth in zip(gradients, ctx.smooth, strict=False) if smooth]
        cotangents = [
            torch.zeros(shape, dtype=dtype, device=device) if g is None else _conjugate(g)
            for g, (shape, dtype, device) in zip(incoming, ctx.results, strict=True)
        ]
        argnums = tuple(i for i, needs_grad in enumerate(ctx.needs_input_grad[1:]) if needs_grad)
        if call.lean or torch.is_grad_enabled():  # to be differentiated again
            wanted_gradients: Sequence[Array] = _run(xp, call.function.pullback(argnums), [*tensors, *cotangents])
        else:
            residuals = [next(saved) if i is None else tensors[i] for i in call.argument_of_residual]
            with xp.native_scope():
                all_ = call.function.backward(xp, residuals, cotangents, call.wanted)
            wanted_gradients = [g for i, g in zip(call.wanted, all_, strict=True) if i in argnums]
        out: list[Tensor | None] = [None] * ctx.count
        for i, g in zip(argnums, wanted_gradients, strict=True):
            out[i] = _conjugate(g)
        return None, *out

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        call: _Call = ctx.call
        argnums = tuple(i for i, t in enumerate(tangents[1:]) if t is not None)
        outputs = iter(
            _run(
                call.xp,
                call.function.pushforward(argnums),
                [*ctx.saved_tensors[: ctx.count], *(t for t in tangents[1:] if t is not None)],
            )
        )
        return tuple([next(outputs) if smooth else None for smooth in ctx.smooth])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: _Call, *tensors: Tensor) -> Any:
        outputs = _run(call.xp, call.function.batched(tuple(in_dims[1:]), info.batch_size), tensors)
        call.count = len(outputs)
        return outputs, tuple([0] * len(outputs))


def _smooth(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _conjugate(t: Tensor) -> Tensor:
    """PyTorch's cotangents are conjugated, the hub's are transposed."""
    return t.conj().resolve_conj() if t.is_complex() else t
