"""`filter_eval_shape`: the shapes and dtypes of a function's results, without computing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

from tensorgraft.arrays import framework_of
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.transforms import native_shapes
from tensorgraft.transforms.wrapper import adopted


def filter_eval_shape(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of `fn(*args, **kwargs)` with a `ShapeDtype` (shape, dtype) in place of each array; nothing is
    computed, and nothing is written. Leaves that are not arrays are returned unchanged.

    Programs on `tensorgraft.array_api` run on the abstract backend, native JAX functions in `jax.eval_shape`, PyTorch's
    on fake tensors, TensorFlow's as a graph; the arrays among the arguments, and in `fn` if it is a module, determine
    which. Arguments may be arrays or descriptions of arrays: a `ShapeDtype`, `jax.ShapeDtypeStruct`, `tf.TensorSpec`.
    Other leaves are Python values. Sizes that TensorFlow does not know are None.

        out = tg.transforms.filter_eval_shape(model, tg.transforms.ShapeDtype((32, 784), np.dtype("float32")))
        out.shape  # (32, 10)

    Raises the errors of `fn`; ShapeError and TracedValueError if it reads values; ValueError for arrays of several
    frameworks.
    """
    call: Any = (fn, args, kwargs)
    kinds = {kind for x in optree.tree_leaves(call) if (kind := native_shapes.kind_of(x) or framework_of(x))}
    has_ours = "tensorgraft" in kinds
    native = kinds - {"numpy", "tensorgraft"}
    if len(native) > 1 or (has_ours and native):
        raise ValueError(f"filter_eval_shape: expected arrays of one framework, got {', '.join(sorted(kinds))}")
    if native:
        return native_shapes.EVALUATE[native.pop()](fn, args, kwargs)
    from tensorgraft.frontends.array_api.transforms.shapes import eval_shape

    adopted_call: tuple[Any, tuple[Any, ...], dict[str, Any]] = adopted(call)
    return eval_shape(*adopted_call, fn)


__all__ = ["ShapeDtype", "filter_eval_shape"]
