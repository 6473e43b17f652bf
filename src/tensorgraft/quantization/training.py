"""Quantisation-aware training: weights are rounded in the forward pass, and rounding has the derivative 1."""

from __future__ import annotations

import sys
from typing import Any

from tensorgraft.quantization.models import Filter, Schemes, chooser, wanted_by
from tensorgraft.quantization.public import front_end
from tensorgraft.quantization.scheme import Scheme, scheme_of


def fake_quantize(x: Any, scheme: str | Scheme) -> Any:
    """`tg.dequantize(tg.quantize(x, scheme))`, with the derivative 1 (straight-through; Bengio et al., arXiv
    1308.3432).

    Arguments:
        x: a floating-point `tensorgraft.array_api` array, or a `torch.Tensor` on the device.
        scheme: as `tg.quantize` takes it.

    Returns a dense array of the shape and dtype of `x`.

    Raises as `tg.quantize` does.
    """
    found, front = scheme_of(scheme), front_end(x)
    if front is None:
        raise TypeError(
            f"fake_quantize: expected an array of tensorgraft.array_api or a tensor on tg.device(...), got a"
            f" {type(x).__module__}.{type(x).__qualname__}"
        )
    return front.fake_quantize(x, found)


def prepare_qat_(model: Any, scheme: Schemes, *, filter: Filter = None) -> Any:
    """Make a model train with the weights that it will have when it is quantised.

    Each weight that fits becomes a parametrisation (`torch.nn.utils.parametrize`): the parameter stays dense and is
    trained, and what the module computes with is `fake_quantize` of it. Of "int8_dynamic", what goes into a Linear is
    rounded row by row, too. `convert_` ends it. All weights are prepared or, on an error, none.

    Arguments:
        model: a `torch.nn.Module` on a device of ours.
        scheme, filter: as for `tg.quantize_`.

    Returns the model.

    Raises as `tg.quantize_` does; ValueError for a weight that is quantised or prepared already.
    """
    return _tensors("prepare_qat_", model).prepare(model, chooser(scheme), wanted_by(filter))


def convert_(model: Any) -> Any:
    """Quantise the weights that `prepare_qat_` has prepared, by their schemes: the model computes what it computed in
    training, up to the order of sums; of "int8_dynamic" on TensorFlow an activation half way between two codes may get
    the other one. All of them or, on an error, none.

    Returns the model. Raises ValueError where nothing is prepared, or a weight is not finite.
    """
    return _tensors("convert_", model).convert(model)


def _tensors(name: str, model: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"{name}: expected a torch.nn.Module, got a {type(model).__module__}.{type(model).__qualname__}: of other"
            " models call tg.quantization.fake_quantize on the weights where they are used"
        )
    from tensorgraft.frontends.torch import quantized_training

    return quantized_training
