"""`tg.quantize_`: the weights of a model."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tensorgraft.quantization.calibration import Method
from tensorgraft.quantization.scheme import Scheme, scheme_of

Schemes = str | Scheme | Mapping[str, str | Scheme | None]
Filter = Callable[[str, Any], bool] | str | type | tuple[type, ...] | None


def quantize_(
    model: Any,
    scheme: Schemes,
    *,
    filter: Filter = None,
    observer: str = "minmax",
    calibrate: Any = None,
    activation_observer: str = "minmax",
    rounding: str = "nearest",
    damping: float = 0.01,
) -> Any:
    """Quantise the weights of a model: all of them, or, on an error, none.

    Arguments:
        model: a `torch.nn.Module`, on the CPU or a device of ours, whose parameters are replaced; or a pytree of
            `tensorgraft.array_api` arrays (a `tensorgraft.transforms.Module`) or of JAX's (an Equinox model, parameters
            of Flax or Haiku), of which a new one is returned.
        scheme: a scheme or its name; or a mapping of patterns of names (`fnmatch`: "*.mlp.*") to schemes, or to None
            for weights to be left dense; the first pattern that matches counts.
        filter: selects weights by a pattern of names, a function of (name, object), or a class or tuple of classes of
            the object: in a module the submodule that has the weight (with its name), in a pytree the array. By default
            the weights of `torch.nn.Linear` and `equinox.nn.Linear`, and arrays of two axes whose name ends in "weight"
            (of JAX, "kernel" and "w", too), and nothing else: convolutions and embeddings have to be requested, for
            example by `filter=(torch.nn.Linear, torch.nn.Conv2d)`. In the weights of PyTorch's convolutions groups are
            along the input channels, and "channel" means output channels.
        observer: as for `tg.quantize`.
        calibrate: for static activations and for GPTQ: batches of inputs with which the model is calibrated, each an
            array, a tuple of arguments or a mapping of keyword arguments; or a function that is called with the model
            and runs it. PyTorch modules run in evaluation mode, without gradients. Only ranges, histograms and second
            moments are kept in memory, not activations.
        activation_observer: how the range of a fixed scale for a weight's inputs is determined: as `observer`, from the
            numbers of all batches; "percentile" and "mse" use a histogram of 8192 bins.
        rounding: "nearest", or "gptq" (`tg.quantization.gptq`), weight by weight in the order in which the model comes
            to them, by what they are multiplied by when those before them are quantised; weights that are multiplied
            by the same have their turn together, in which all batches are run.
        damping: as for `tg.quantization.gptq`.

    Returns the model.

    Raises ValueError for shapes that do not divide into groups, values that are not finite, unknown schemes, observers
    and roundings, where nothing fits the filter, where a scheme needs batches and there are none or no weight is
    reached by them; TypeError for other models. What the model raises passes through. In every case the model has the
    weights that it had.

    >>> import tensorgraft as tg, torch
    >>> model = tg.quantize_(torch.nn.Sequential(torch.nn.Linear(32, 4)), "int8_per_channel")
    >>> tg.quantization.is_quantized(model[0].weight), model(torch.ones(1, 32)).shape
    (True, torch.Size([1, 4]))
    """
    choose = chooser(scheme)
    predicate = wanted_by(filter)
    method = Method(observer, calibrate, activation_observer, rounding, damping)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from tensorgraft.frontends.torch.quantized import models

        return models.quantize_module(model, choose, predicate, method)
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(x, jax.Array) for x in jax.tree.leaves(model)):
        from tensorgraft.frontends.jax import quantized_models as of_jax

        return of_jax.quantize_tree(model, choose, predicate, method)
    from tensorgraft.frontends.array_api.extensions import quantized_models

    return quantized_models.quantize_tree(model, choose, predicate, method)


def wanted_by(filter: Filter) -> Callable[[str, Any], bool] | None:
    """Return a predicate for a filter. Raises TypeError for anything that is no filter."""
    if isinstance(filter, str):
        return lambda name, _: fnmatch.fnmatchcase(name, filter)
    if isinstance(filter, type | tuple) and all(
        isinstance(c, type) for c in (filter if isinstance(filter, tuple) else ())
    ):
        return lambda _, owner: isinstance(owner, filter)
    if filter is None or callable(filter):
        return filter
    raise TypeError(
        f"expected filter to be a pattern of names, a function, a class or a tuple of classes, got {filter!r}"
    )


def chooser(scheme: Schemes) -> Callable[[str], Scheme | None]:
    """Return the scheme for a name; None for none."""
    if not isinstance(scheme, Mapping):
        resolved = scheme_of(scheme)
        return lambda name: resolved
    patterns = [(pattern, None if s is None else scheme_of(s)) for pattern, s in scheme.items()]

    def choose(name: str) -> Scheme | None:
        return next((s for pattern, s in patterns if fnmatch.fnmatchcase(name, pattern)), None)

    return choose
