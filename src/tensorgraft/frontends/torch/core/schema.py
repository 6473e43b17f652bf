"""Schemas of operators: which arguments are written, and the in-place and `out=` overloads of a functional operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Overload = torch.library.OpOverload

# arguments that say where and how a result is laid out: the front end's business, not a kernel's
PLACEMENT = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"})


def overload(name: str) -> Overload | None:
    """Return the overload of `torch.ops.aten` for a name like "add.Tensor" or "relu"; None if this PyTorch lacks it."""
    packet, _, overload_name = name.partition(".")
    overloads = getattr(torch.ops.aten, packet, None)
    return None if overloads is None else getattr(overloads, overload_name or "default", None)


def short_name(op: Overload) -> str:
    """Return the name without its namespace: "aten::add.Tensor" becomes "add.Tensor"."""
    return op.name().partition("::")[2]


def has_kernel(op: Overload, key: str) -> bool:
    """Return True if the dispatcher has a kernel of an operator for a key."""
    return bool(op.has_kernel_for_dispatch_key(key))  # type: ignore[arg-type]  # it takes names, too


def python_function(op: Overload) -> Callable[..., Any] | None:
    """Return the function or method of PyTorch's Python interface that calls an operator: of the overload that its
    arguments have. None if there is none."""
    packet = short_name(op).partition(".")[0]
    for functions in (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase):
        if (function := getattr(functions, packet, None)) is not None:
            return function
    return None


def runs_on_cpu(op: Overload) -> bool:
    """Return True if PyTorch computes the operator on the CPU, with a kernel or as a composite of others."""
    composites = "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"
    return any(has_kernel(op, key) for key in ("CPU", *composites))


def has_composite(op: Overload) -> bool:
    """Return True if the dispatcher decomposes the operator above autograd, where a kernel would cut its gradient."""
    return has_kernel(op, "CompositeImplicitAutograd") and not has_kernel(op, "Autograd")


@dataclass(frozen=True)
class Signature:
    """The parts of a schema that dispatch needs."""

    names: tuple[str, ...]
    positional: tuple[str, ...]
    defaults: dict[str, Any]
    types: dict[str, str]
    written: tuple[str, ...]  # arguments that are written, in order
    returns_written: bool  # every result is one of them
    returns: tuple[str, ...] = field(default=())  # types of the results

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, defaults filled in."""
        bound = dict(self.defaults)
        bound.update(zip(self.positional, args, strict=False))
        bound.update(kwargs)
        return {name: bound[name] for name in self.names if name in bound}


@functools.cache
def signature(op: Overload) -> Signature:
    schema = op._schema
    arguments = schema.arguments
    written_names = tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
    returns = schema.returns
    return Signature(
        names=tuple(a.name for a in arguments),
        positional=tuple(a.name for a in arguments if not a.kwarg_only),
        # the one default dtype of a schema (`dtype=long`) is given as its number
        defaults={
            a.name: torch.int64 if a.name == "dtype" and a.default_value == 4 else a.default_value
            for a in arguments
            if a.has_default_value()
        },
        types={a.name: str(a.type) for a in arguments},
        written=written_names,
        returns_written=bool(written_names)
        and all(r.alias_info is not None and r.alias_info.is_write for r in returns),
        returns=tuple(str(r.type) for r in returns),
    )


def _shape_of(op: Overload, skip: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    sig = signature(op)
    return tuple((name, sig.types[name]) for name in sig.names if name not in skip and name not in PLACEMENT)


def is_out(op: Overload) -> bool:
    """Return True for an `out=` overload, which writes an argument given by name (`torch.Tag.out`, from PyTorch 2.13
    on)."""
    return any(a.kwarg_only and a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments)


def derived(op: Overload) -> dict[str, Overload]:
    """Return the in-place and `out=` overloads of the functional `op`, by kind."""
    overloads: dict[str, Overload] = {}
    packet, _, overload_name = short_name(op).partition(".")
    shape = _shape_of(op)
    same_name = overload(f"{packet}_.{overload_name}" if overload_name else f"{packet}_")
    if same_name is not None:
        candidates = [same_name]
    else:  # "pow_.Scalar" is what "pow.Tensor_Scalar" is in place
        inplace_ = getattr(torch.ops.aten, f"{packet}_", None)
        candidates = [] if inplace_ is None else [getattr(inplace_, name) for name in inplace_.overloads()]
        candidates = [c for c in candidates if [t for _, t in _shape_of(c)] == [t for _, t in shape]]
    for inplace in candidates:
        sig = signature(inplace)
        names_agree = [n for n, _ in _shape_of(inplace)] == [n for n, _ in shape]
        if not has_composite(inplace) and sig.written == sig.names[:1] and names_agree:
            overloads["inplace"] = inplace
    family = getattr(torch.ops.aten, packet)
    for name in family.overloads():
        candidate = getattr(family, name)
        sig = signature(candidate)
        if not is_out(candidate) or has_composite(candidate):
            continue
        plain = tuple(n for n in signature(op).names if n not in ("dtype",) or n in sig.names)
        own_shape = tuple((n, t) for n, t in _shape_of(op) if n in plain)
        if _shape_of(candidate, skip=sig.written) == own_shape:
            overloads["out"] = candidate
    return overloads


def functional_of(op: Overload) -> Overload | None:
    """Return the functional overload of the `out=` overload `op`: it has the same arguments without the written
    ones."""
    if not is_out(op):
        return None
    outs = tuple(a.name for a in op._schema.arguments if a.kwarg_only and a.alias_info is not None)
    family = getattr(torch.ops.aten, short_name(op).partition(".")[0])
    candidates = (getattr(family, name) for name in family.overloads())
    own_shape = _shape_of(op, skip=outs)
    return next((c for c in candidates if not is_out(c) and _shape_of(c) == own_shape), None)
