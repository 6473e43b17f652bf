"""A JAX function under `torch.jit.trace`.

Where a gradient may be asked for, a trace has one operator of ours, which calls the function: its derivative is JAX's,
other shapes are another program, and it belongs to this process. Else a trace has PyTorch's own operators, and can be
saved; it refuses other shapes than those of the example.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tensorgraft.frontends.jax.grafted import Grafted

Tensor = torch.Tensor


def traced(function: Grafted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, structure = jax.tree.flatten((args, kwargs))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    name = _name_of(function, leaves, structure)
    call = _calls[name]
    if torch.is_grad_enabled() or not call.is_operator:  # PyTorch traces again without gradients, and compares
        call.is_operator = function.is_compiled or any(t.requires_grad for t in tensors)
    if call.is_operator:
        return call.restored(torch.ops.tensorgraft.grafted(name, tensors))
    with _untraced():
        shapes = [tuple(t.shape) for t in tensors]
        graph = make_fx(call)(tensors)
    # other shapes are refused, neither broadcast nor reshaped; derivatives would be PyTorch's, of what JAX may not mean
    return call.restored(graph([t.detach().expand(s).reshape(s) for t, s in zip(tensors, shapes, strict=True)]))


class ScriptCall:
    """A function as one of the tensors among its arguments."""

    def __init__(self, function: Grafted, leaves: Sequence[Any], structure: Any) -> None:
        self.function, self.structure = function, structure
        self.is_operator = False  # in the last trace
        self.fixed = [None if isinstance(x, Tensor) else (x,) for x in leaves]
        self.results: Any = None  # their structure
        self.static: list[tuple[Any] | None] = []  # arguments that are no tensors

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        rest = iter(tensors)
        args, kwargs = jax.tree.unflatten(self.structure, [next(rest) if x is None else x[0] for x in self.fixed])
        leaves, self.results = jax.tree.flatten(self.function(*args, **kwargs))
        self.static = [None if isinstance(x, Tensor) else (x,) for x in leaves]
        return [x for x in leaves if isinstance(x, Tensor)]

    def restored(self, tensors: Sequence[Tensor]) -> Any:
        """Return the function's own results out of their tensors."""
        rest = iter(tensors)
        return jax.tree.unflatten(self.results, [next(rest) if x is None else x[0] for x in self.static])


_PROCESS = uuid.uuid4().hex
_calls: dict[str, ScriptCall] = {}  # for ever: a trace keeps the name alone
_names: dict[Any, str] = {}


def _name_of(function: Grafted, leaves: Sequence[Any], structure: Any) -> str:
    """Return the name of a call. It is the same for the same function, structure and static values, since PyTorch
    compares a trace with a second one."""
    fixed = [x for x in leaves if not isinstance(x, Tensor)]
    key = (function, structure, *[(type(x), x) if getattr(type(x), "__hash__", None) else id(x) for x in fixed])
    name = _names.get(key)
    if name is None:
        name = _names[key] = f"{function.name} {len(_calls)} of process {_PROCESS}"
        _calls[name] = ScriptCall(function, leaves, structure)
    return name


def _run(name: str, tensors: list[Tensor]) -> list[Tensor]:
    if name not in _calls:
        raise RuntimeError(
            f"a program of torch.jit.trace calls the JAX function {name.partition(' ')[0]}, which exists only in"
            " the process that traced it: to save a program for other processes, trace it where no argument or"
            " parameter requires a gradient (`module.requires_grad_(False)`), or use torch.export.export"
        )
    return _calls[name](tensors)


_library = torch.library.Library("tensorgraft", "FRAGMENT")
_library.define("grafted(str name, Tensor[] tensors) -> Tensor[]")
_library.impl("grafted", _run, "CompositeImplicitAutograd")


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    set_state: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]
    state = torch._C._get_tracing_state()
    set_state(None)
    try:
        yield
    finally:
        set_state(state)
