"""`tg.quantize_`: the weights of a model."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tensorgraft.quantization.scheme import Scheme, scheme_of

Schemes = str | Scheme | Mapping[str, str | Scheme | None]


def quantize_(
    model: Any,
    scheme: Schemes,
    *,
    filter: Callable[[str, Any], bool] | str | None = None,
    observer: str = "minmax",
) -> Any:
    """Quantise the weights of a model: all of them, or, on an error, none.

    Arguments:
        model: a `torch.nn.Module` on a device of ours, whose parameters are replaced; or a pytree of
            `tensorgraft.array_api` arrays (a `tensorgraft.transforms.Module`), of which a new one is returned.
        scheme: a scheme or its name; or a mapping of patterns of names (`fnmatch`: "*.mlp.*") to schemes, or to None
            for "leave it", of which the first that fits counts.
        filter: which weights, a pattern of names or a function of (name, what it is): of a module, the submodule that
            has the weight, by its name; of a pytree, the array. By default the weights of `torch.nn.Linear`, and
            arrays of two axes whose name ends in "weight".
        observer: as for `tg.quantize`.

    Returns the model.

    Raises ValueError for shapes that do not divide into groups, values that are not finite, unknown schemes, and where
    nothing fits the filter; TypeError for a model that is none of these.
    """
    choose = chooser(scheme)
    wanted = wanted_by(filter)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from tensorgraft.frontends.torch import quantized as tensors

        return tensors.quantize_module(model, choose, wanted, observer)
    from tensorgraft.frontends.array_api import quantized

    return quantized.quantize_tree(model, choose, wanted, observer)


def wanted_by(filter: Callable[[str, Any], bool] | str | None) -> Callable[[str, Any], bool] | None:
    return (lambda name, _: fnmatch.fnmatchcase(name, filter)) if isinstance(filter, str) else filter


def chooser(scheme: Schemes) -> Callable[[str], Scheme | None]:
    """The scheme for a name; None for none."""
    if not isinstance(scheme, Mapping):
        found = scheme_of(scheme)
        return lambda name: found
    patterns = [(pattern, None if s is None else scheme_of(s)) for pattern, s in scheme.items()]

    def choose(name: str) -> Scheme | None:
        return next((s for pattern, s in patterns if fnmatch.fnmatchcase(name, pattern)), None)

    return choose


def nothing_fits(names: list[str], name: str = "quantize_") -> ValueError:
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return ValueError(f"{name}: no weight fits the filter and the patterns of the schemes; there are {shown or 'none'}")
