"""`tg.quantize` and `tg.dequantize`, for arrays of every front end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorgraft.arrays import framework_of
from tensorgraft.quantization.input_ranges import range_of
from tensorgraft.quantization.scheme import Scheme, scheme_of


def quantize(
    x: Any, scheme: str | Scheme, *, observer: str = "minmax", inputs: Any = None, activation_observer: str = "minmax"
) -> Any:
    """Return an array whose numbers are stored as codes of a few bits with shared scales.

    Arguments:
        x: a floating-point `tensorgraft.array_api` array, a `jax.Array`, or a `torch.Tensor` on the CPU or a device of
            ours.
        scheme: a `Scheme`, or a name such as "int8_per_channel", "int8_dynamic", "int4_per_group_32", "float8_e4m3",
            "nf4".
        observer: which range the codes of a block cover: "minmax", all of its numbers; "percentile" (or, for example,
            "percentile_99.5"), 99.9 percent of them; "mse", that with which the mean square error is least.
        inputs: only for schemes such as "int8_static": examples of the operand that `x` will be multiplied with, an
            array or an iterable of arrays of any shape, from which the range is determined that the quantised array
            stores.
        activation_observer: how that range is determined; as `observer`.

    Returns a `QuantizedArray`, a `QuantizedJaxArray` (a pytree of arrays of JAX), or a tensor on the same device that
    is quantised, of the shape and dtype of `x`.

    Raises ValueError for an unknown scheme or observer, a shape that does not divide into its groups, NaN or infinite
    values, and inputs that are missing or that the scheme does not use; TypeError for other objects than floating-point
    arrays.

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> q = tg.quantize(xp.ones((2, 32), dtype="float32", device="numpy"), "int8_per_channel")
    >>> q.shape, str(q.dtype)
    ((2, 32), 'float32')
    """
    resolved = scheme_of(scheme)
    front = front_end(x)
    if front is None:
        raise TypeError(_not_known("quantize", x))
    if (inputs is not None) != resolved.is_static:
        raise ValueError(
            f"quantize: {resolved} stores the range of activations: pass inputs=, for example a batch of them; for"
            " a model, pass calibrate= to tg.quantize_"
            if resolved.is_static
            else f"quantize: inputs are used only by schemes such as int8_static, but {resolved} does not measure any"
        )
    if not resolved.is_static:
        return front.quantize(x, resolved, observer)
    return front.quantize(x, resolved, observer, measured(inputs, resolved, activation_observer))


def dequantize(q: Any) -> Any:
    """Return the dense numbers of a quantised array or tensor, in its shape and dtype; anything else is returned
    unchanged. Raises nothing.

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> q = tg.quantize(xp.asarray([[1.0, -1.0]], device="numpy"), "int8_per_tensor")
    >>> tg.quantization.is_quantized(q), tg.dequantize(q).shape
    (True, (1, 2))
    """
    front = front_end(q)
    return q if front is None or not front.is_quantized(q) else front.dequantize(q)


def from_torchao(x: Any, device: Any = None) -> Any:
    """Convert a tensor that torchao has quantised to a quantised tensor with the same codes, scales and zero points; or
    a module with such weights, or a mapping of names to tensors, and move it to a device.

    Arguments:
        x: a tensor, a `torch.nn.Module` (changed in place; its weights that were quantised are not trained), or a
            `state_dict`, of which a dict is returned.
        device: as `tg.device` gives it, or "cpu"; the default device if None.

    A Linear or Conv2d whose inputs are scaled, or rounded in another way than by products here, gets a child `inputs`
    that does so, with torchao's functions.

    Raises TypeError for classes that store their codes in the order of a particular kernel, or have no codes, and for
    weights with scaled or rounded inputs that are not in a Linear or Conv2d; a module is then unchanged.
    """
    from tensorgraft.frontends.torch.quantized import torchao

    return torchao.from_torchao(x, device)


def is_quantized(x: Any) -> bool:
    """Return True if `x` is a quantised array or tensor of any front end. Raises nothing."""
    front = front_end(x)
    return front is not None and front.is_quantized(x)


def measured(inputs: Any, scheme: Scheme, observer: str) -> tuple[np.ndarray, ...]:
    """Return float32 scalars: the scale and, if so, the zero point for an array or an iterable of arrays."""
    input_range = range_of(scheme, observer)
    assert input_range is not None
    for x in numbers_of(inputs, "quantize"):
        input_range.update(x)
    return tuple(x for x in input_range.scale_and_zero() if x is not None)


def numbers_of(inputs: Any, name: str, k: int | None = None) -> Iterator[np.ndarray]:
    """Yield the arrays of `inputs`, an array or an iterable of them, as float arrays of the host; where `k` is given,
    (rows, k). Raises ValueError for other shapes, numbers that are not finite, and where there are none."""
    rows = 0
    for n, batch in enumerate((inputs,) if hasattr(inputs, "shape") else inputs):
        front = front_end(batch)
        x = np.asarray(batch if front is None else front.host(batch))
        x = x if x.dtype == np.float32 else x.astype(np.float64)
        if k is not None and (x.ndim < 1 or x.shape[-1] != k):
            raise ValueError(f"{name}: expected inputs of shape (..., {k}), batch {n} has shape {x.shape}")
        if not np.isfinite(x).all():
            raise ValueError(f"{name}: batch {n} of the inputs, of shape {x.shape}, has NaN or infinite values")
        rows += x.size
        yield x if k is None else x.reshape(-1, k)
    if not rows:
        raise ValueError(f"{name}: inputs is empty")


def front_end(x: Any) -> Any:
    """Return the module of the front end whose array this is."""
    framework = framework_of(x)
    if framework == "tensorgraft":
        from tensorgraft.frontends.array_api.extensions import quantized

        return quantized
    if framework == "torch" and x.device.type in ("graft", "cpu"):
        from tensorgraft.frontends.torch.quantized import tensors

        return tensors
    if framework == "jax" or _is_of_jax(x):
        from tensorgraft.frontends.jax import quantized as jax_arrays

        return jax_arrays
    return None


def _not_known(name: str, x: Any) -> str:
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    text = (
        f"{name}: expected an array of tensorgraft.array_api or of JAX, or a tensor of PyTorch on the CPU or on"
        f" tg.device(...), got a {kind}"
    )
    if kind.startswith(("numpy.", "tensorflow.")):
        on = "numpy" if kind.startswith("numpy.") else "tensorflow"
        text += f": call tensorgraft.array_api.asarray(x, device={on!r}), which makes it one that can be quantised"
    return text


def _is_of_jax(x: Any) -> bool:
    module = sys.modules.get("tensorgraft.frontends.jax.quantized")
    return module is not None and isinstance(x, module.QuantizedJaxArray)
