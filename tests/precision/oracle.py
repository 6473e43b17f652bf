"""What the installed PyTorch's autocast does with each operator, on any device, without having one.

An operator is called on tensors that only claim to be on the device. What arrives below autocast (casts, then the first
operator that computes) says what its kernel did.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

KEYS = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU", "graft": "AutocastPrivateUse1"}
FULL, LOW = torch.float32, torch.bfloat16
VALUES: dict[str, Any] = {
    "int": 1,
    "float": 1.0,
    "number": 1,
    "bool": False,
    "List[int]": [1, 1],
    "List[float]": [1.0, 1.0],
    "List[bool]": [True, True],
}


class Reached(Exception):
    """The call came to an operator that computes."""


class Claiming(torch.Tensor):
    """A 4 x 4 tensor without values; `seen` is what was done with such tensors since it was emptied."""

    seen: tuple[list[torch.dtype], list[torch.dtype]] = ([], [])  # dtypes cast to; of the first operator's `dtype`

    @staticmethod
    def __new__(cls, dtype: torch.dtype, device: str) -> Claiming:
        place = torch.device(device, None if device == "cpu" else 0)  # PyTorch asks a device for its current index
        return torch.Tensor._make_wrapper_subclass(cls, (4, 4), dtype=dtype, device=place)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            cls.seen[0].append(kwargs["dtype"])
            return Claiming(kwargs["dtype"], args[0].device.type)
        cls.seen[1].extend(x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.dtype))
        if func in (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default) and args[2]:  # half to float
            cls.seen[1].append(FULL)
        raise Reached


def arguments(op: Any, device: str, dtypes: list[torch.dtype], **given: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments for every parameter without a default; tensors take the dtypes in turn, the last for all the rest."""
    left = iter(dtypes)

    def tensor() -> Claiming:
        return Claiming(next(left, dtypes[-1]), device)

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for a in op._schema.arguments:
        kind = str(a.type)
        if a.name in given:
            kwargs[a.name] = given[a.name]
            continue
        if a.has_default_value():
            continue
        if kind == "Tensor":
            value: Any = tensor()
        elif kind == "List[Tensor]":
            value = [tensor(), tensor()]
        elif kind == "List[Optional[Tensor]]":
            value = [Claiming(torch.int64, device)]
        elif kind.startswith("Optional"):
            value = None
        elif kind == "str":
            value = "ab,bc->ac" if a.name == "equation" else "fro"
        else:
            value = VALUES[kind]
        if a.kwarg_only or kwargs:
            kwargs[a.name] = value
        else:
            args.append(value)
    return args, kwargs


def casts(op: Any, device: str, *dtypes: torch.dtype, **given: Any) -> tuple[list[torch.dtype], list[torch.dtype]]:
    """(dtypes cast to, dtypes given to the first operator that computes)."""
    Claiming.seen = ([], [])
    args, kwargs = arguments(op, device, list(dtypes), **given)
    try:
        op(*args, **kwargs)
    except Reached:
        pass
    except Exception as error:  # arguments that make no sense are complained of after the casts
        if "unsafe to autocast" in str(error):
            raise
    return Claiming.seen


def kind(op: Any, device: str) -> str:
    try:
        from_full, asked = casts(op, device, FULL)
    except RuntimeError:
        return "banned"
    from_low, _ = casts(op, device, LOW)
    if LOW in from_full:
        return "lower_precision_fp"
    has_dtype = any(a.name == "dtype" for a in op._schema.arguments)
    if has_dtype and FULL in (*asked, *from_low) and FULL not in casts(op, device, LOW, dtype=LOW)[0]:
        return "fp32_set_opt_dtype"
    if FULL in from_low:
        return "fp32"
    if FULL in asked:
        return "fp32_append_dtype"
    return "promote" if FULL in casts(op, device, FULL, LOW)[0] else "none"


def table(device: str) -> dict[str, str]:
    """Overload -> kind, of every operator that has an autocast kernel for the device."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(KEYS[device])
    before = torch.get_autocast_dtype(device)
    torch.set_autocast_dtype(device, LOW)
    torch.set_autocast_enabled(device, True)
    try:
        found = {}
        named = re.compile("imname|[.]names_")  # by names of axes, which went in 2.13
        for name in sorted(n.removeprefix("aten::") for n in names if not named.search(n)):
            packet, _, overload = name.partition(".")
            found[name] = kind(getattr(getattr(torch.ops.aten, packet), overload or "default"), device)
        return found
    finally:
        torch.set_autocast_enabled(device, False)
        torch.set_autocast_dtype(device, before)
