"""Calls of PyTorch's meta functions and CPU kernels for information only: without warnings, and without modes that the
program has enabled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft import warning_filters
from tensorgraft.frontends.torch.core.modes import suspended, without_autocast
from tensorgraft.frontends.torch.core.nested import map_nested
from tensorgraft.frontends.torch.dispatch.references import call_without_dynamo, known_sizes

Tensor = torch.Tensor


def call_with_warnings(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any], random: bool = True
) -> tuple[Any, list[str]]:
    """Return (what the operator returns, the warnings that it gives). Random states stay as they are (`random`: whether
    it may draw).

    PyTorch's C++ keeps its warnings until the binding ends through which Python called it: that of the program, since
    an operator called by overload has none. `apply_` is a binding around any function.
    """
    call_without_dynamo()
    result = []

    def call(_: float) -> float:
        result.append(function(*args, **kwargs))
        return 0.0

    random_fork = torch.random.fork_rng(devices=[]) if random else contextlib.nullcontext()
    with (
        suspended(),
        without_autocast(),
        known_sizes(),
        random_fork,
        warning_filters.remembered(),
        warning_filters.recorded_warnings() as texts,
    ):
        torch.zeros(1, dtype=torch.float32, device="cpu").apply_(call)
    return result[0], [text.partition(" (Triggered")[0] for text in texts]


# additional bytes after zeros that a kernel may enlarge: if it also reads its `out=`, it would read freed memory
ROOM = 1 << 20


def to_meta(args: Any, kwargs: dict[str, Any], device: str = "meta", pad: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with meta tensors of the same sizes, strides and dtypes (or zeros, padded by `pad`)."""
    stand_ins: dict[int, Tensor] = {}

    def convert(a: Any) -> Any:
        if isinstance(a, Tensor):
            if id(a) not in stand_ins:
                like = torch.empty_strided(a.size(), a.stride(), dtype=a.dtype, device="meta")
                if device != "meta":
                    elements = (like.untyped_storage().nbytes() + pad) // like.itemsize
                    like = torch.zeros(elements, dtype=a.dtype, device="cpu").as_strided(a.size(), a.stride())
                stand_ins[id(a)] = like
            return stand_ins[id(a)]
        if isinstance(a, torch.Generator):  # a generator of another device; the drawn values do not matter
            return None
        return torch.device(device) if isinstance(a, torch.device) else a

    return map_nested(convert, args), {name: map_nested(convert, a) for name, a in kwargs.items()}
