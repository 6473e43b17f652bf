"""`tg.quantize_` of models that are pytrees of JAX's arrays: Equinox modules, parameters of Flax and Haiku.

Built on `quantized` and `quantization.calibration`; nothing of the core imports it.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tensorgraft.frontends.jax.codes import backend
from tensorgraft.frontends.jax.quantized import QuantizedJaxArray, is_quantized
from tensorgraft.quantization.calibration import Method, Stage, Weight, nothing_fits
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.scheme import Scheme

_NAMES = ("weight", "kernel", "w")  # Equinox and others; Flax; Haiku


def quantize_tree(
    model: Any,
    choose: Callable[[str], Scheme | None],
    predicate: Callable[[str, jax.Array], bool] | None,
    method: Method,
) -> Any:
    """See `tg.quantize_`."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_quantized)
    placements: dict[int, _WeightLeaf] = {}
    xp = backend()
    names, weights = [], {}
    known: dict[tuple[int, Scheme, int], _WeightLeaf] = {}
    for i, (path, x) in enumerate(leaves):
        if not isinstance(x, jax.Array) or not jnp.issubdtype(x.dtype, jnp.floating):
            continue
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        names.append(name)
        owner = _value_at(model, path[:-1])
        if not (_is_weight(owner, name, x) if predicate is None else predicate(name, x)):
            continue
        scheme = choose(name)
        if scheme is None:
            continue
        batched = max(x.ndim - _axes(owner, x), 0)
        key = id(x), scheme, batched
        if key not in known:
            placement = known[key] = _WeightLeaf.of(name, x.shape[:batched])
            layers = jnp.reshape(x, (-1, *x.shape[batched:])) if batched else [x]
            weights.update({n: Weight(xp, layer, scheme) for n, layer in zip(placement.layers, layers, strict=True)})
        placements[i] = known[key]  # arrays that are one stay one
    if not weights:
        raise nothing_fits(names)

    def show(arrays: Mapping[str, Quantized]) -> Any:
        joined = {p: p.joined(arrays) for p in set(placements.values()) if p.layers[0] in arrays}
        return jax.tree.unflatten(
            structure, [joined.get(placements[i], x) if i in placements else x for i, (_, x) in enumerate(leaves)]
        )

    return show(method.quantized(weights, Stage(show, _until_effects_are_done)))


@contextlib.contextmanager
def _until_effects_are_done() -> Iterator[None]:
    yield
    jax.effects_barrier()


@dataclass(frozen=True)
class _WeightLeaf:
    """A leaf that is to be quantised: several weights, where `jax.vmap` has made a layer for each of a batch."""

    lead: tuple[int, ...]
    layers: tuple[str, ...]  # their names

    @classmethod
    def of(cls, name: str, batch: tuple[int, ...]) -> _WeightLeaf:
        return cls(batch, tuple([f"{name}[{i}]" for i in range(math.prod(batch))]) if batch else (name,))

    def joined(self, arrays: Mapping[str, Quantized]) -> QuantizedJaxArray:
        with backend().scope():
            weights = [QuantizedJaxArray.of(arrays[name]) for name in self.layers]
            if not self.lead:
                return weights[0]
            return jax.tree.map(lambda *parts: jnp.reshape(jnp.stack(parts), (*self.lead, *parts[0].shape)), *weights)


def _is_weight(owner: Any, name: str, x: jax.Array) -> bool:
    nn = getattr(sys.modules.get("equinox"), "nn", None)
    if nn is not None and type(owner).__module__.startswith("equinox."):
        return isinstance(owner, nn.Linear) and name.rpartition(".")[2] == "weight"
    return x.ndim == 2 and name.rpartition(".")[2] in _NAMES


def _axes(owner: Any, x: jax.Array) -> int:
    """Return the number of axes of the weight of one layer."""
    nn = getattr(sys.modules.get("equinox"), "nn", None)
    if nn is not None and isinstance(owner, nn.Linear | nn.Embedding):
        return 2
    if nn is not None and isinstance(owner, nn.Conv | nn.ConvTranspose):
        return owner.num_spatial_dims + 2
    return x.ndim


def _value_at(model: Any, path: Sequence[Any]) -> Any:
    """Return the value at a path in a pytree; None where a node says nothing of how its children are reached."""
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey):
            model = getattr(model, key.name)
        elif isinstance(key, jax.tree_util.SequenceKey):
            model = model[key.idx]
        elif isinstance(key, jax.tree_util.DictKey):
            model = model[key.key]
        else:
            return None
    return model
