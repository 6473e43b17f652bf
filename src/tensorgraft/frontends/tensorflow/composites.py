"""Composite tensors (ragged, sparse, indexed slices) among the arguments and results of grafted functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import optree
import tensorflow as tf

from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

NAMESPACE = "tensorgraft.tensorflow"  # of optree: composite tensors are nodes in it, with their components as children


@dataclass(frozen=True, eq=False)
class CompositeArrays:
    """A composite tensor as the argument or the result of a grafted function, on backends whose arrays are no
    `tf.Tensor`s.

    `components` are in the order of TensorFlow: values and row splits of a `tf.RaggedTensor`; indices, values and dense
    shape of a `tf.SparseTensor`; values, indices (and dense shape) of `tf.IndexedSlices`.
    """

    spec: tf.TypeSpec
    components: tuple[Array, ...]


def _components(x: Any) -> tuple[Sequence[Array], tf.TypeSpec]:
    if isinstance(x, CompositeArrays):
        return x.components, x.spec
    return tf.nest.flatten(x, expand_composites=True), tf.type_spec_from_value(x)


def _unflatten(spec: tf.TypeSpec, components: Iterable[Any]) -> Any:
    """Return the spec itself if all components are specs, otherwise the list of the components."""
    parts = list(components)
    return spec if all(isinstance(p, tf.TypeSpec) for p in parts) else parts


kind: Any
for kind in (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices, CompositeArrays):
    optree.register_pytree_node(kind, _components, _unflatten, namespace=NAMESPACE)


def structured(xp: Backend, structure: Any, results: Iterator[Array]) -> Any:
    """Pack flat results into the structure that the function returns."""
    if isinstance(structure, tf.TensorSpec | tf.Tensor):  # the common case: TensorFlow's own function is slow
        return next(results)

    def pack_leaf(x: Any) -> Any:
        if isinstance(x, tf.TensorSpec | tf.Tensor):
            return next(results)
        if not isinstance(x, tf.TypeSpec | tf.__internal__.CompositeTensor) or isinstance(x, tf.Variable):
            return x
        spec = x if isinstance(x, tf.TypeSpec) else tf.type_spec_from_value(x)
        components = [next(results) for _ in tf.nest.flatten(spec, expand_composites=True)]
        if all(isinstance(c, tf.Tensor) for c in components):
            return tf.nest.pack_sequence_as(spec, components, expand_composites=True)
        return CompositeArrays(spec, tuple(components))

    return tf.nest.map_structure(pack_leaf, structure)
