"""The public in-place updates, and the table of modules that implement them for each kind of array."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from tensorgraft.arrays import framework_of
from tensorgraft.updates.rules import check_index, check_value

MODES = ("set", "add", "multiply", "min", "max")

# framework of an array -> the module that updates it
_UPDATERS = {
    "tensorgraft": "tensorgraft.updates.arrays",
    "numpy": "tensorgraft.updates.numpy_arrays",
    "tensorflow": "tensorgraft.updates.tensorflow_variables",
}


def inplace_update(x: Any, value: Any, *, keep_dtype: bool = True) -> Any:
    """Give all of `x` new values, in its own memory: every view of it, and what it is a view of, sees them.

    Arguments:
        x: an `Array` of `tensorgraft.array_api`, a `torch.Tensor` on any device, a `tf.Variable`, a `numpy.ndarray`.
        value: an array of the same framework or a number; broadcast to the shape of `x`.
        keep_dtype: `x` keeps its dtype in any case. True: the value is converted, even if it loses something (floats
            to integers, 64 to 32 bits). False: such a value is an error.

    Works inside `tg.jit`, `jax.jit` (on an `Array`), `tf.function`, `torch.compile` and transforms. Gradients flow to
    `value`, and none to what the old values of `x` were computed from. Where `x` is a view, the elements outside of it
    keep their values and their gradients.

    Returns `x`.

    Raises:
        ValueError: the value does not broadcast to the shape of `x`.
        TypeError: a value that is no array; a lossy one where `keep_dtype` is False; an `x` that cannot change
            (`jax.Array`, `tf.Tensor`): the message names what can hold it.
        After an exception `x` is unchanged.

    >>> import numpy as np, tensorgraft as tg
    >>> x = np.zeros((2, 2))
    >>> _ = tg.inplace_update(x[0], 1)
    >>> x.tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    updater = _updater(x, "inplace_update")
    check_value("inplace_update", value)
    updater.update(x, value, keep_dtype)
    return x


def scatter_update(x: Any, index: Any, value: Any, mode: str = "set") -> Any:
    """Combine `value` into `x[index]`, in place.

    Arguments:
        x: as for `inplace_update`.
        index: as in `x[index]`: integers, slices, arrays of integers, masks.
        value: broadcast to the shape of `x[index]`, converted to the dtype of `x`.
        mode: set, add, multiply, min or max. With arrays of integers that name a place several times, every update
            counts, but for `set`, where one of them wins.

    Returns `x`. Raises as `inplace_update` does, IndexError for an index out of bounds, ValueError for another mode.
    """
    if mode not in MODES:
        raise ValueError(f"scatter_update: mode is {mode!r}, expected one of {', '.join(MODES)}")
    updater = _updater(x, "scatter_update")
    check_index("scatter_update", index)
    check_value("scatter_update", value)
    updater.scatter(x, index, value, mode)
    return x


def _updater(x: Any, name: str) -> Any:
    """Return the module that updates `x` (`_UPDATERS`). Raises TypeError if none does: `name` is the caller's."""
    framework = framework_of(x)
    if framework == "torch":  # a statement, which Dynamo traces: it does not trace `import_module`
        from tensorgraft.updates import torch_tensors

        return torch_tensors
    fixed = framework == "jax" or (framework == "tensorflow" and not hasattr(x, "assign"))
    if framework is not None and not fixed and not isinstance(x, np.generic):
        return importlib.import_module(_UPDATERS[framework])
    kind_name = f"{type(x).__module__}.{type(x).__qualname__}"
    if fixed:
        holder = "tf.Variable(x), or " if framework == "tensorflow" else ""
        raise TypeError(
            f"{name}: a {kind_name} is immutable. Hold it in {holder}tensorgraft.array_api.asarray(x), and update that"
        )
    raise TypeError(
        f"{name}: expected an Array of tensorgraft.array_api, a torch.Tensor, a tf.Variable or a numpy.ndarray, got"
        f" a {kind_name}"
    )
