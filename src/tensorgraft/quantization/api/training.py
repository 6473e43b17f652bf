"""Quantisation-aware training: weights are rounded in the forward pass, and rounding has the derivative 1.

Built on quantised arrays of each front end; nothing of the core imports it.
"""

from __future__ import annotations

import sys
from typing import Any

import optree

from tensorgraft.arrays import framework_of
from tensorgraft.quantization.api.arrays import front_end
from tensorgraft.quantization.api.models import Filter, Schemes, chooser, wanted_by
from tensorgraft.quantization.scheme import Scheme, scheme_of


def fake_quantize(x: Any, scheme: str | Scheme) -> Any:
    """Compute `tg.dequantize(tg.quantize(x, scheme))`, with the derivative 1 (straight-through; Bengio et al., arXiv
    1308.3432).

    Arguments:
        x: a floating-point `tensorgraft.array_api` array, or a `torch.Tensor` on the CPU or the device.
        scheme: as `tg.quantize` takes it.

    Returns a dense array of the shape and dtype of `x`.

    Raises as `tg.quantize` does.
    """
    resolved, front = scheme_of(scheme), front_end(x)
    if front is None:
        raise TypeError(
            f"fake_quantize: expected an array of tensorgraft.array_api or a tensor on the CPU or tg.device(...), got a"
            f" {type(x).__module__}.{type(x).__qualname__}"
        )
    return front.fake_quantize(x, resolved)


def prepare_qat_(model: Any, scheme: Schemes, *, filter: Filter = None) -> Any:
    """Prepare a model for training with the rounded weights that it will have when it is quantised.

    In a PyTorch model, each selected weight gets a parametrisation (`torch.nn.utils.parametrize`): the parameter
    remains dense and is trained, and the module computes with `fake_quantize` of it. For "int8_dynamic", the inputs of
    a Linear are rounded row by row, too. In a pytree, a weight becomes a `QuantizedArray` whose only leaf is the dense
    weight, and which computes like the array that `convert_` makes of it. All weights are prepared or, on an error,
    none.

    Arguments:
        model: a `torch.nn.Module`, on the CPU or a device of ours; or a pytree of `tensorgraft.array_api` arrays (a
            `tensorgraft.transforms.Module`), of which a new one is returned.
        scheme, filter: as for `tg.quantize_`.

    Returns the model.

    Raises as `tg.quantize_` does; ValueError for a weight that is quantised or prepared already, and for schemes with
    static activations; TypeError for other models.
    """
    return _trainer_of("prepare_qat_", model).prepare(model, chooser(scheme), wanted_by(filter))


def convert_(model: Any) -> Any:
    """Quantise the weights that `prepare_qat_` has prepared, by their schemes. The model then computes the same as in
    training; a PyTorch model up to the order of sums. All weights are converted or, on an error, none.

    Returns the model; for a pytree a new one. Raises ValueError if nothing is prepared, or a weight is not finite.
    """
    return _trainer_of("convert_", model).convert(model)


def _trainer_of(name: str, model: Any) -> Any:
    """Return the module that trains models of this kind."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from tensorgraft.frontends.torch.quantized import training as modules

        return modules
    if any(framework_of(x) == "tensorgraft" for x in optree.tree_leaves(model)):
        from tensorgraft.frontends.array_api.extensions import quantized_training as trees

        return trees
    raise TypeError(
        f"{name}: expected a torch.nn.Module, or a pytree of tensorgraft.array_api arrays, got a"
        f" {type(model).__module__}.{type(model).__qualname__}: for other models call"
        " tg.quantization.fake_quantize on the weights where they are used"
    )
