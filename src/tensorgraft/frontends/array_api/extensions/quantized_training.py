"""Quantisation-aware training of pytrees: weights are rounded in computations as they will be quantised.

Built on `quantized`; no core module imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.extensions.quantized import QuantizedArray, is_quantized, made_of, quantize
from tensorgraft.quantization.backend import quantizing
from tensorgraft.quantization.calibration import nothing_fits
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.quantization.trained import Training, trained


def prepare(model: Any, choose: Callable[[str], Scheme | None], predicate: Callable[[str, Array], bool] | None) -> Any:
    """See `tg.quantization.prepare_qat_`."""
    predicate = predicate or (lambda name, x: x.ndim == 2 and name.rpartition(".")[2] == "weight")
    paths, leaves, structure = optree.tree_flatten_with_path(model, is_leaf=is_quantized)
    names, replaced, count = [], list(leaves), 0
    for i, (path, x) in enumerate(zip(paths, leaves, strict=True)):
        if not isinstance(x, Array):
            continue
        name = ".".join(map(str, path))
        names.append(name)
        scheme = choose(name) if predicate(name, x) else None
        if scheme is None:
            continue
        if isinstance(x, QuantizedArray):
            state = "prepared" if isinstance(x.scheme, Training) else "quantised"
            raise ValueError(f"prepare_qat_: {name} is {state} already ({x.scheme}): prepare a dense model")
        xp = x._cell.backend
        try:
            with xp.scope():
                replaced[i] = made_of(trained(xp, x._value(), scheme), quantizing(xp))
        except (TypeError, ValueError) as error:
            raise type(error)(f"prepare_qat_: {name}: {error}") from None
        count += 1
    if not count:
        raise nothing_fits(names, "prepare_qat_")
    return optree.tree_unflatten(structure, replaced)


def convert(model: Any) -> Any:
    """See `tg.quantization.convert_`."""
    paths, leaves, structure = optree.tree_flatten_with_path(model, is_leaf=is_quantized)
    replaced, count = list(leaves), 0
    for i, (path, x) in enumerate(zip(paths, leaves, strict=True)):
        if isinstance(x, QuantizedArray) and isinstance(x.scheme, Training):
            try:
                replaced[i] = quantize(x.codes, x.scheme.target)._view(x._full_geometry())
            except ValueError as error:
                raise ValueError(f"convert_: {'.'.join(map(str, path))}: {error}") from None
            count += 1
    if not count:
        raise ValueError(
            "convert_: the model has no prepared weight: call tg.quantization.prepare_qat_ before training"
        )
    return optree.tree_unflatten(structure, replaced)
