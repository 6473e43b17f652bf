"""Conversion of weights: the tables that packages have, and the steps that those written here are made of."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from ecosystem.port.pair import Program, Weights, load, weights


class Loader:
    """The reader of checkpoints that KerasHub's converters are called with, of weights in memory."""

    def __init__(self, values: Weights) -> None:
        self.values = values

    def get_tensor(self, hf_weight_key: str) -> np.ndarray:
        """Return the tensor, with or without the model's prefix, as checkpoints of a part of it have it."""
        for key in (hf_weight_key, hf_weight_key.partition(".")[2]):
            for name, value in self.values.items():
                if key and (name == key or name.endswith("." + key)):
                    return value
        raise KeyError(hf_weight_key)

    def port_weight(self, keras_variable: Any, hf_weight_key: str, hook_fn: Callable[..., Any] | None = None) -> None:
        value = self.get_tensor(hf_weight_key)
        if hook_fn is not None:
            value = hook_fn(value, list(keras_variable.shape))
        keras_variable.assign(value)


def checkpoint(source: Program) -> Weights:
    """Return the tensors of the file that transformers saves: their names may be others than the module's."""
    with tempfile.TemporaryDirectory() as folder:
        source.save_pretrained(folder)
        return dict(load_file(Path(folder) / "model.safetensors"))


def keras_hub(
    module: str, configuration: Callable[[Program], Mapping[str, Any]]
) -> Callable[[Program, Program], Program]:
    """Return the conversion by one of KerasHub's converters."""

    def convert(source: Program, target: Program) -> Program:
        import importlib

        converter = importlib.import_module(f"keras_hub.src.utils.{module}")
        converter.convert_weights(target, Loader(checkpoint(source)), configuration(source))
        return target

    return convert


def transformers_configuration(source: Program) -> Mapping[str, Any]:
    """Return what the checkpoint's `config.json` says, with the number of layers that older files name, too."""
    return {"num_hidden_layers": source.config.num_hidden_layers, **source.config.to_dict()}


def written(table: Callable[[Weights], Weights]) -> Callable[[Program, Program], Program]:
    """Return the conversion by a function of all weights of the source to those of the target."""
    return lambda source, target: load(target, table(weights(source)))


def kernel(value: np.ndarray) -> np.ndarray:
    """Return the kernel of a convolution, or of a linear layer, with the output channels last."""
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T


def assign(layer: Any, values: Weights, prefix: str) -> None:
    """Write the weights of a PyTorch module into the Keras layer of the same kind; where it has no bias, zeros."""
    if "BatchNormalization" in type(layer).__name__:
        layer.moving_mean.assign(values[f"{prefix}.running_mean"])
        layer.moving_variance.assign(values[f"{prefix}.running_var"])
    if "Normalization" in type(layer).__name__:
        layer.gamma.assign(values[f"{prefix}.weight"])
        layer.beta.assign(values[f"{prefix}.bias"])
        return
    weight = values[f"{prefix}.weight"]
    if "Depthwise" in type(layer).__name__:
        layer.kernel.assign(weight.transpose(2, 3, 0, 1))
    else:
        layer.kernel.assign(kernel(weight).reshape(layer.kernel.shape))
    if layer.use_bias:
        layer.bias.assign(values.get(f"{prefix}.bias", np.zeros(layer.bias.shape, np.float32)))


def in_order(source: Program, target: Program, kinds: str = "Conv|Norm|Linear|Dense") -> list[tuple[Any, str]]:
    """Return the Keras layers that have weights, each with the PyTorch module of the same place."""
    layers = [layer for layer in target.layers if layer.trainable_weights and re.search(kinds, type(layer).__name__)]
    modules = [
        name
        for name, module in source.named_modules()
        if re.search(kinds, type(module).__name__) and list(module.parameters(recurse=False))
    ]
    return list(zip(layers, modules, strict=True))


def by_layers(places: Callable[[Program, Program], list[tuple[Any, str]]]) -> Callable[[Program, Program], Program]:
    """Return the conversion that assigns each layer the weights of its module."""

    def convert(source: Program, target: Program) -> Program:
        values = weights(source)
        for layer, prefix in places(source, target):
            assign(layer, values, prefix)
        return target

    return convert
