"""`tg.quantize_` of PyTorch's modules.

Built on `tensors` and `quantization.calibration`; nothing of the core imports it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.quantized import cpu as quantized_cpu
from tensorgraft.frontends.torch.quantized.tensors import place_of, read, tensor_at
from tensorgraft.quantization.calibration import Method, Stage, Weight, nothing_fits
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.scheme import Scheme

_CONVS = tuple(getattr(torch.nn, f"Conv{kind}{n}d") for kind in ("", "Transpose") for n in (1, 2, 3))


def quantize_module(
    model: torch.nn.Module,
    choose: Callable[[str], Scheme | None],
    predicate: Callable[[str, torch.nn.Module], bool] | None,
    method: Method,
) -> torch.nn.Module:
    """Quantise the weights of a module in place (`tg.quantize_`). Tied weights stay tied.

    Arguments:
        choose: returns the scheme for the module of a name, or None to leave its weight.
        predicate: tells which modules are quantised, by name and module; None: linear ones.
        method: quantises the weights, and may run the model to measure their inputs.
    """
    names = []
    known: dict[int, str] = {}  # {id of a parameter: name}
    weights: dict[str, Weight] = {}
    for name, module in model.named_modules():
        key = _weight_of(module)
        weight = module._parameters.get(key)
        if weight is None or weight.dim() < 2:
            continue
        names.append(name)
        is_wanted = predicate(name, module) if predicate is not None else _is_linear(module, key)
        scheme = choose(name) if is_wanted else None
        if scheme is None or id(weight) in known:
            continue
        if weight.device.type not in (TYPE, "cpu"):
            raise ValueError(f"quantize_: {name or 'the model'} is on {weight.device}: {quantized_cpu.ELSEWHERE}")
        if (isinstance(module, _CONVS) or key == "kernel") and (scheme.is_static or method.rounding != "nearest"):
            kind = "layers of Keras and Flax" if key == "kernel" else "convolutions"
            raise ValueError(
                f"quantize_: {name or 'the model'} is a {type(module).__name__}: the inputs of {kind} are neither"
                " measured nor quantised: use int8_per_channel and rounding='nearest' for it, or leave it out"
            )
        known[id(weight)] = full = f"{name}.{key}" if name else key
        slot, array = read(weight, "quantize_")
        weights[full] = Weight(slot.backend, array, of_module(scheme, module))
    if not weights:
        raise nothing_fits(names)
    locations = [  # where parameters are replaced: a tied one is an entry of several modules
        (module, key, p, known[id(p)])
        for module in model.modules()
        for key, p in module._parameters.items()
        if p is not None and id(p) in known
    ]

    def show(arrays: Mapping[str, Quantized]) -> torch.nn.Module:
        """Replace the weights by these arrays, and restore those that have none."""
        replaced: dict[str, torch.nn.Parameter] = {}
        for module, key, p, name in locations:
            if name in arrays and name not in replaced:
                replaced[name] = torch.nn.Parameter(tensor_at(place_of(p.device), arrays[name]), requires_grad=False)
            module._parameters[key] = replaced.get(name, p)
        return model

    try:
        return show(method.quantized(weights, Stage(show, functools.partial(_evaluating, model))))
    except BaseException:
        show({})
        raise


def of_module(scheme: Scheme, module: torch.nn.Module) -> Scheme:
    """Return the scheme with the axes of a module's weight. Groups are along the input channels, and channels are the
    output channels, for convolutions as well as for kernels of Keras and Flax, which are (..., in, out)."""
    if _weight_of(module) == "kernel":
        rank = module._parameters["kernel"].dim()  # type: ignore[union-attr]
        if scheme.granularity == "group":
            return replace(scheme, granularity="block", block=(*(1,) * (rank - 2), scheme.group, 1))
        return replace(scheme, axis=rank - 1) if scheme.granularity == "channel" else scheme
    if not isinstance(module, _CONVS):
        return scheme
    if scheme.granularity == "group":
        axes = module.weight.dim() - (not module.transposed)
        return replace(scheme, granularity="block", block=(scheme.group, *(1,) * (axes - 1)))
    return replace(scheme, axis=1) if scheme.granularity == "channel" and module.transposed else scheme


def _weight_of(module: torch.nn.Module) -> str:
    """Return the name of a module's weight: "kernel" for a grafted layer of Keras or Flax."""
    return "kernel" if getattr(module, "is_grafted", False) and "kernel" in module._parameters else "weight"


def _is_linear(module: torch.nn.Module, key: str) -> bool:
    return isinstance(module, torch.nn.Linear) or (key == "kernel" and module._parameters[key].dim() == 2)  # type: ignore[union-attr]


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """A context in which the model is in evaluation mode, without gradients and without PyTorch's fast path of
    transformer layers, which is one operator for a layer and hides the layer's products."""
    modes = [(module, module.training) for module in model.modules()]
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        model.eval()
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, training in modes:
            module.training = training
