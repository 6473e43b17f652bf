"""Arrays of any framework, told from other objects without importing a framework: one that is not imported has none."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

import numpy as np

from tensorgraft.hub import dtypes

_Type = TypeVar("_Type", bound=type)
_NUMBERS = (bool, int, float, complex)


def framework_of(x: Any) -> str | None:
    """Return the framework whose array `x` is: "tensorgraft" (an `Array`), "numpy", "jax", "torch" or "tensorflow";
    None for anything else."""
    if isinstance(x, _NUMPY):
        return "numpy"
    if isinstance(x, _OURS):
        return "tensorgraft"
    for name, module, names in _FRAMEWORKS:
        imported_module = sys.modules.get(module)
        for attribute in names if imported_module is not None else ():
            kind = getattr(imported_module, attribute, None)  # a module that is still being imported may lack names
            if kind is not None and isinstance(x, kind):
                return name
    return None


def array_class(kind: _Type) -> _Type:
    """A class decorator: register the class of arrays of one of our front ends."""
    global _OURS
    _OURS = (*_OURS, kind)
    return kind


_NUMPY = (np.ndarray, np.generic)
_OURS: tuple[type, ...] = ()
_FRAMEWORKS = (
    ("jax", "jax", ("Array",)),
    ("torch", "torch", ("Tensor",)),
    ("tensorflow", "tensorflow", ("Tensor", "Variable")),
)


def is_array(x: Any) -> bool:
    """Return True if `x` is an array of any framework: a `tensorgraft.array_api.Array`, `numpy.ndarray` (or one of its
    scalars), `jax.Array`, `torch.Tensor`, `tf.Tensor` or `tf.Variable`; traced ones too.

    >>> import numpy as np, tensorgraft as tg
    >>> tg.transforms.is_array(np.ones(2)), tg.transforms.is_array([1.0, 1.0])
    (True, False)
    """
    return framework_of(x) is not None


def is_array_like(x: Any) -> bool:
    """Return True if `x` is an array of any framework, or a Python number."""
    return isinstance(x, _NUMBERS) or is_array(x)


def is_inexact_array(x: Any) -> bool:
    """Return True if `x` is an array, of any framework, of floating-point or complex numbers."""
    framework = framework_of(x)
    if framework is None:
        return False
    if framework == "torch":
        return bool(x.is_floating_point() or x.is_complex())
    if framework == "tensorflow":
        return bool(x.dtype.is_floating or x.dtype.is_complex)
    return isinstance(x.dtype, np.dtype) and dtypes.is_inexact(x.dtype)  # JAX's random keys have a dtype of their own


def is_inexact_array_like(x: Any) -> bool:
    """Return True if `x` is an array of floating-point or complex numbers, or a Python float or complex."""
    return isinstance(x, float | complex) or is_inexact_array(x)


def describe(x: Any) -> str:
    """Describe an array by its dtype, shape and framework, as `f32[3,4]` and `f32[3,4](torch)`."""
    name = str(getattr(x.dtype, "name", x.dtype)).removeprefix("torch.")
    for long, short in (("bfloat", "bf"), ("float", "f"), ("complex", "c"), ("uint", "u"), ("int", "i")):
        if name.startswith(long):
            name = short + name.removeprefix(long)
            break
    framework = framework_of(x)
    of = "" if framework in (None, "tensorgraft") else f"({framework})"
    return f"{name}[{','.join(map(str, x.shape))}]{of}"
