"""`tg.quantize_` of pytrees of arrays.

Built on `quantized` and `quantization.calibration`; nothing of the core imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import optree

from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.extensions.quantized import is_quantized, of_parts
from tensorgraft.quantization.calibration import Method, Stage, Weight, nothing_fits
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.scheme import Scheme


def quantize_tree(
    model: Any, choose: Callable[[str], Scheme | None], predicate: Callable[[str, Array], bool] | None, method: Method
) -> Any:
    """See `tg.quantize_`."""
    predicate = predicate or (lambda name, x: x.ndim == 2 and name.rpartition(".")[2] == "weight")
    paths, leaves, structure = optree.tree_flatten_with_path(model, is_leaf=is_quantized)
    names = [".".join(map(str, path)) for path in paths]
    weights = {}
    for name, x in zip(names, leaves, strict=True):
        if not isinstance(x, Array) or is_quantized(x) or not predicate(name, x):
            continue
        scheme = choose(name)
        if scheme is not None:
            weights[name] = Weight(x._cell.backend, x._value(), scheme)
    if not weights:
        raise nothing_fits([n for n, x in zip(names, leaves, strict=True) if isinstance(x, Array)])

    def show(arrays: Mapping[str, Quantized]) -> Any:
        new_leaves = []
        for name, x in zip(names, leaves, strict=True):
            if name in arrays:
                with x._cell.backend.scope():
                    x = of_parts(x._cell.backend, arrays[name])
            new_leaves.append(x)
        return optree.tree_unflatten(structure, new_leaves)

    return show(method.quantized(weights, Stage(show)))
