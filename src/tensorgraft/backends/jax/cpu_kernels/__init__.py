"""Kernels in C++ that XLA's programs call on CPUs, where XLA has no loop of its own for what they do.

A kernel is a function of arrays, `composite`, whose programs for one CPU device call a handler of XLA's foreign
function interface instead. Programs for other devices, of several devices, that are exported, or on a machine without
a C++ compiler, are those of the composite.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from tensorgraft.hub import cpp
from tensorgraft.hub.array import NativeArray as Array

Fn = Callable[[Array], tuple[Array, ...]]
_OPTIONS = ("-fno-trapping-math", "-fwrapv")


# {kernel: (its source, its handler there)}
_HANDLERS = {
    "cumsum": ("scans.cpp", "scan_handler<Sum, void>"),
    "cumprod": ("scans.cpp", "scan_handler<Product, void>"),
    "cummax": ("scans.cpp", "scan_handler<Maximum, void>"),
    "cummin": ("scans.cpp", "scan_handler<Minimum, void>"),
    "cummax_positions": ("scans.cpp", "scan_handler<Maximum, int64_t>"),
    "cummin_positions": ("scans.cpp", "scan_handler<Minimum, int64_t>"),
    "sort": ("sorts.cpp", "sort_handler"),
    "csr_matmul": ("sparse_products.cpp", "handle<kProduct>"),
    "csr_transposed_matmul": ("sparse_products.cpp", "handle<kTransposed>"),
    "csr_sampled_matmul": ("sparse_products.cpp", "handle<kSampled>"),
}


@functools.cache
def target(kernel: str) -> str | None:
    """Compile a kernel and register it with XLA under the name that is returned; None if no compiler can, with a
    warning where there is one."""
    source, handler = _HANDLERS[kernel]
    name = f"tensorgraft_{kernel}"
    texts = [Path(__file__).with_name(file).read_text(encoding="utf-8") for file in ("handlers.h", source)]
    entry = f'extern "C" XLA_FFI_Error* {name}(XLA_FFI_CallFrame* frame) {{ return {handler}(frame); }}\n'
    text = "".join([*texts, entry, f"// for the interface of jaxlib {jaxlib.__version__}\n"])
    try:
        library = cpp.library(text, (f"-I{jax.ffi.include_dir()}", *_OPTIONS))
    except cpp.NoCompilerError:
        return None
    except OSError as error:
        warnings.warn(f"{source} is not used, as it could not be compiled: {error}", stacklevel=2)
        return None
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return name


def kernel(name: str, composite: Fn, further: Sequence[np.dtype] = ()) -> Fn:
    """Return a function from an array to a tuple of arrays of its shape. Their first axis is a batch, whose elements
    are computed alike.

    Arguments:
        name: of the kernel.
        composite: the same function in operations of JAX.
        further: the dtypes of the results after the first, which has that of the operand.
    """
    primitive = Primitive(f"tensorgraft_{name}")
    primitive.multiple_results = True
    compiled = jax.jit(primitive.bind)
    primitive.def_impl(lambda x: compiled(x))

    def wide(x: Array) -> tuple[Array, ...]:
        with jax.enable_x64(True):  # where it is lowered, the user's program may have narrow types alone
            return composite(x)

    in_operations = mlir.lower_fun(wide, multiple_results=True)

    primitive.def_abstract_eval(
        lambda x: [jax.core.ShapedArray(x.shape, dtype) for dtype in (x.dtype, *further)],
    )

    def lowered(ctx: Any, x: Any) -> Any:
        module = ctx.module_context
        is_of_one_device = getattr(module.axis_context, "num_devices", 0) == 1
        if module.lowering_parameters.for_export or not is_of_one_device:
            return in_operations(ctx, x)
        handler = target(name)
        return in_operations(ctx, x) if handler is None else jax.ffi.ffi_lowering(handler)(ctx, x)

    def batched(operands: Sequence[Array], dims: Sequence[int]) -> tuple[list[Array], list[int]]:
        x = jax.numpy.moveaxis(operands[0], dims[0], 0)
        results = primitive.bind(x.reshape(-1, *x.shape[2:]))
        return [out.reshape(*x.shape[:2], *out.shape[1:]) for out in results], [0] * len(results)

    mlir.register_lowering(primitive, in_operations)
    mlir.register_lowering(primitive, lowered, platform="cpu")
    batching.primitive_batchers[primitive] = batched
    return lambda x: tuple(primitive.bind(x))
