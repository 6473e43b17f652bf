"""SmoothQuant: moves the outliers of activations, which are hard to round, into weights (Xiao et al., arXiv
2211.10438)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

Pairs = Mapping[str, str | Sequence[str]]
_SMALLEST = 1e-5


def smooth_(model: nn.Module, pairs: Pairs, batches: Iterable[Any], *, strength: float = 0.5) -> nn.Module:
    """Make the inputs of Linears easy to round: divide channel j of what a normalisation gives by s_j, and multiply
    column j of the weights that take it by s_j, s_j = max|x_j|^strength / max|w_j|^(1 - strength). The model computes
    what it computed.

    Arguments:
        model: a `torch.nn.Module` on any device.
        pairs: names of `LayerNorm`s or `RMSNorm`s, each with the name, or names, of all the Linears that take what it
            gives, and nothing else does.
        batches: inputs of the model, tensors or tuples of arguments, by which it is measured.
        strength: from 0 (weights as even as can be) to 1 (activations).

    Returns the model. Raises ValueError for names, modules and shapes that do not fit, Linears that no batch reaches,
    and values that are not finite; the model is left as it was.
    """
    if not 0.0 <= strength <= 1.0:
        raise ValueError(f"smooth_: expected strength from 0 to 1, got {strength}")
    pairs_found = [_pair(model, name, [ls] if isinstance(ls, str) else list(ls)) for name, ls in pairs.items()]
    largest = largest_inputs(
        model, {name: linear for _, linears in pairs_found for name, linear in linears.items()}, batches
    )
    factors = []
    with torch.no_grad():
        for norm, linears in pairs_found:
            x = torch.stack([largest[name] for name in linears]).amax(0)
            w = torch.stack([linear.weight.abs().amax(0).float() for linear in linears.values()]).amax(0)
            scale = x.clamp(min=_SMALLEST) ** strength / w.clamp(min=_SMALLEST) ** (1 - strength)
            if not bool(torch.isfinite(scale).all()):
                raise ValueError(f"smooth_: a weight of {', '.join(linears)} has NaN or infinite values")
            factors.append((norm, linears, scale))
        for norm, linears, scale in factors:
            norm.weight.copy_(norm.weight / scale)
            if getattr(norm, "bias", None) is not None:
                norm.bias.copy_(norm.bias / scale)
            for linear in linears.values():
                linear.weight.copy_(linear.weight * scale)
    return model


def largest_inputs(
    model: nn.Module, modules: Mapping[str, nn.Module], batches: Iterable[Any]
) -> dict[str, torch.Tensor]:
    """Return the greatest magnitude of each channel, (K,) float32, of what goes into modules while the model computes
    batches, in evaluation mode. Raises ValueError for values that are not finite, and for modules that are not
    reached."""
    largest: dict[str, torch.Tensor] = {}

    def noting(name: str) -> Any:
        def note(_: nn.Module, args: tuple[Any, ...]) -> None:
            x = args[0].detach().float()
            most = x.abs().reshape(-1, x.shape[-1]).amax(0)
            if not bool(torch.isfinite(most).all()):
                raise ValueError(
                    f"calibration: the input of {name}, of shape {tuple(x.shape)}, has NaN or infinite values:"
                    " find the batch, or replace them (nan_to_num)"
                )
            largest[name] = torch.maximum(largest[name], most) if name in largest else most

        return note

    modes = [(m, m.training) for m in model.modules()]
    hooks = [module.register_forward_pre_hook(noting(name)) for name, module in modules.items()]
    try:
        model.eval()
        with torch.no_grad():
            for batch in batches:
                model(*batch) if isinstance(batch, tuple | list) else model(batch)
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    if missing := [name for name in modules if name not in largest]:
        raise ValueError(f"calibration: no batch reached {', '.join(missing)}")
    return largest


def _pair(model: nn.Module, name: str, linear_names: list[str]) -> tuple[Any, dict[str, Any]]:
    named = dict(model.named_modules())
    if unknown := [n for n in (name, *linear_names) if n not in named]:
        raise ValueError(f"smooth_: the model has no module {', '.join(map(repr, unknown))}")
    norm: Any = named[name]
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm) or norm.weight is None or len(norm.normalized_shape) != 1:
        raise ValueError(f"smooth_: expected {name} to be a LayerNorm or RMSNorm of one axis with weights, got {norm}")
    linears: dict[str, Any] = {n: named[n] for n in linear_names}
    holders = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    for n, linear in linears.items():
        if not isinstance(linear, nn.Linear) or linear.in_features != norm.normalized_shape[0]:
            raise ValueError(f"smooth_: expected {n} to be a Linear of {norm.normalized_shape[0]} inputs, got {linear}")
        if getattr(linear.weight, "is_graft_quantized", False):
            raise ValueError(f"smooth_: the weight of {n} is quantised: smooth first, then quantise")
    for n, module in {name: norm, **linears}.items():
        if holders[id(module.weight)] != 1:
            raise ValueError(f"smooth_: {n} shares its weight with another module, or is parametrised")
    return norm, linears
