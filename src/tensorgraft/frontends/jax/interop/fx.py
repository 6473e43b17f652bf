"""A JAX function under `torch.fx.symbolic_trace`: a call in the graph."""

from __future__ import annotations

import re
from typing import Any

import jax
import torch

from tensorgraft.frontends.jax.grafted import Grafted


def node(function: Grafted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Proxy:
    def target(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    target.__name__ = "grafted_" + re.sub(r"\W+", "", function.name)  # a name for the graph's code: not "<lambda>"
    proxy = next(x for x in jax.tree.leaves((args, kwargs)) if isinstance(x, torch.fx.Proxy))
    return proxy.tracer.create_proxy("call_function", target, args, kwargs)
