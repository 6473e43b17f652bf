"""Programs written for one tensor framework run on another, unchanged, with the meaning their own framework gives them.

Frameworks are imported on first use: `import tensorgraft` loads none.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Without SciPy it was not installed for NumPy alone (`tensorgraft[numpy]`) either.
if not any(p in sys.modules or importlib.util.find_spec(p) for p in ("jax", "torch", "tensorflow", "scipy")):
    warnings.warn(
        "no tensor framework is installed: tensorgraft.array_api computes with NumPy, without the functions that"
        " need SciPy, and programs of PyTorch, JAX and TensorFlow do not run. Install them by pip install"
        ' "tensorgraft[torch,jax]", or "tensorgraft[tensorflow]", or "tensorgraft[numpy]" for NumPy and'
        " SciPy alone.",
        stacklevel=2,
    )

# {public name: module that defines it}
_HOMES = {
    "Backend": "tensorgraft.hub.backend",
    "BackendNotAvailableError": "tensorgraft.errors",
    "MissingNameError": "tensorgraft.errors",
    "CheckError": "tensorgraft.errors",
    "FallbackError": "tensorgraft.errors",
    "DerivativeError": "tensorgraft.errors",
    "ShapeError": "tensorgraft.errors",
    "Module": "tensorgraft.transforms.module",
    "TracedValueError": "tensorgraft.errors",
    "autocast": "tensorgraft.precision",
    "autocast_policy": "tensorgraft.precision",
    "cond": "tensorgraft.transforms.control_flow",
    "custom_vjp": "tensorgraft.transforms.custom",
    "device": "tensorgraft.devices",
    "eager": "tensorgraft.hub.tiers",
    "error_if": "tensorgraft.transforms.error_if",
    "diff": "tensorgraft.porting.api",
    "explain": "tensorgraft.transforms.explain",
    "export": "tensorgraft.exporting.api",
    "fori_loop": "tensorgraft.transforms.control_flow",
    "from_backend_array": "tensorgraft.devices",
    "graft": "tensorgraft.transforms.graft",
    "inplace_update": "tensorgraft.updates",
    "jit": "tensorgraft.transforms.jit",
    "hessian": "tensorgraft.transforms.gradients",
    "jacobian": "tensorgraft.transforms.gradients",
    "vmap": "tensorgraft.transforms.gradients",
    "jvp": "tensorgraft.transforms.gradients",
    "vjp": "tensorgraft.transforms.gradients",
    "value_and_grad": "tensorgraft.transforms.gradients",
    "grad": "tensorgraft.transforms.gradients",
    "QuantizedArray": "tensorgraft.frontends.array_api.extensions.quantized",
    "dequantize": "tensorgraft.quantization",
    "quantize": "tensorgraft.quantization",
    "quantize_": "tensorgraft.quantization",
    "lazy": "tensorgraft.transforms.lazy",
    "load": "tensorgraft.transforms.load",
    "port": "tensorgraft.porting.api",
    "scan": "tensorgraft.transforms.control_flow",
    "source": "tensorgraft.transforms.source",
    "scatter_update": "tensorgraft.updates",
    "set_compile_cache": "tensorgraft.hub.compile_cache",
    "set_default_device": "tensorgraft.devices",
    "to_backend_array": "tensorgraft.devices",
    "while_loop": "tensorgraft.transforms.control_flow",
}
_MODULES = {
    "array_api": "tensorgraft.array_api",
    "backends": "tensorgraft.backends",
    "nn": "tensorgraft.nn",
    "operators": "tensorgraft.operators",
    "parallel": "tensorgraft.parallel",
    "precision": "tensorgraft.precision",
    "quantization": "tensorgraft.quantization",
    "random": "tensorgraft.random",
    "torch": "tensorgraft.frontends.torch",
    "transforms": "tensorgraft.transforms",
}

__all__ = [
    "Backend",
    "BackendNotAvailableError",
    "CheckError",
    "DerivativeError",
    "FallbackError",
    "MissingNameError",
    "Module",
    "QuantizedArray",
    "ShapeError",
    "TracedValueError",
    "__version__",
    "array_api",
    "autocast",
    "autocast_policy",
    "backends",
    "cond",
    "custom_vjp",
    "dequantize",
    "device",
    "diff",
    "eager",
    "error_if",
    "explain",
    "export",
    "fori_loop",
    "from_backend_array",
    "grad",
    "graft",
    "hessian",
    "inplace_update",
    "jacobian",
    "jit",
    "jvp",
    "lazy",
    "load",
    "nn",
    "operators",
    "parallel",
    "port",
    "precision",
    "quantization",
    "quantize",
    "quantize_",
    "random",
    "scan",
    "scatter_update",
    "set_compile_cache",
    "set_default_device",
    "source",
    "to_backend_array",
    "torch",
    "transforms",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]

if TYPE_CHECKING:
    from tensorgraft import array_api, nn, operators, parallel, precision, quantization, random, transforms
    from tensorgraft.devices import device, from_backend_array, set_default_device, to_backend_array
    from tensorgraft.errors import (
        BackendNotAvailableError,
        CheckError,
        DerivativeError,
        FallbackError,
        MissingNameError,
        ShapeError,
        TracedValueError,
    )
    from tensorgraft.exporting.api import export
    from tensorgraft.frontends import torch
    from tensorgraft.frontends.array_api.extensions.quantized import QuantizedArray
    from tensorgraft.hub.backend import Backend
    from tensorgraft.hub.compile_cache import set_compile_cache
    from tensorgraft.hub.registry import backends  # the attributes of this module, which is callable
    from tensorgraft.hub.tiers import eager
    from tensorgraft.porting.api import diff, port
    from tensorgraft.precision import autocast, autocast_policy
    from tensorgraft.quantization import dequantize, quantize, quantize_
    from tensorgraft.transforms.control_flow import cond, fori_loop, scan, while_loop
    from tensorgraft.transforms.custom import custom_vjp
    from tensorgraft.transforms.error_if import error_if
    from tensorgraft.transforms.explain import explain
    from tensorgraft.transforms.gradients import grad, hessian, jacobian, jvp, value_and_grad, vjp, vmap
    from tensorgraft.transforms.graft import graft
    from tensorgraft.transforms.jit import jit
    from tensorgraft.transforms.lazy import lazy
    from tensorgraft.transforms.load import load
    from tensorgraft.transforms.module import Module
    from tensorgraft.transforms.source import source
    from tensorgraft.updates import inplace_update, scatter_update


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
