"""Kernels in C++ that XLA's programs call on CPUs, where XLA has no loop of its own for what they do.

A kernel is a function of arrays, `composite`, whose programs for one CPU device call a handler of XLA's foreign function
interface instead. Programs for other devices, of several devices, that are exported, or on a machine without a C++
compiler, are those of the composite.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from tensorgraft.hub import cpp
from tensorgraft.hub.array import NativeArray as Array

Fn = Callable[[Array], tuple[Array, ...]]
_OPTIONS = ("-fno-trapping-math", "-fwrapv")


@functools.cache
def targets(source: str, kernels: Sequence[str]) -> dict[str, str]:
    """Compile a source of this folder, and return the registered target of each of its kernels; none, with a warning
    where a compiler fails, if there is no compiler that can."""
    texts = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("handlers.h", source)]
    text = "".join([*texts, f"// for the interface of jaxlib {jaxlib.__version__}\n"])
    try:
        library = cpp.library(text, (f"-I{jax.ffi.include_dir()}", *_OPTIONS))
    except cpp.NoCompilerError:
        return {}
    except OSError as error:
        warnings.warn(f"{source} is not used, as it could not be compiled: {error}", stacklevel=2)
        return {}
    names = {kernel: f"tensorgraft_{kernel}" for kernel in kernels}
    for target in names.values():
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
    return names


def kernel(name: str, source: str, kernels: Sequence[str], composite: Fn) -> Fn:
    """Return a function from an array to a tuple of arrays. The first axis of all of them is a batch: its elements are
    computed alike.

    Arguments:
        name: of the kernel, one of `kernels` in the file `source`.
        composite: the same function in operations of JAX.
    """
    primitive = Primitive(f"tensorgraft_{name}")
    primitive.multiple_results = True
    compiled = jax.jit(primitive.bind)
    primitive.def_impl(lambda x: compiled(x))
    in_operations = mlir.lower_fun(composite, multiple_results=True)

    @primitive.def_abstract_eval
    def _(x: Any) -> Any:
        results = jax.eval_shape(composite, jax.ShapeDtypeStruct(x.shape, x.dtype))
        return [jax.core.ShapedArray(out.shape, out.dtype) for out in results]

    def lowered(ctx: Any, x: Any) -> Any:
        module = ctx.module_context
        is_of_one_device = getattr(module.axis_context, "num_devices", 0) == 1
        if module.lowering_parameters.for_export or not is_of_one_device:
            return in_operations(ctx, x)
        target = targets(source, kernels).get(name)
        return in_operations(ctx, x) if target is None else jax.ffi.ffi_lowering(target)(ctx, x)

    def batched(operands: Sequence[Array], dims: Sequence[int]) -> tuple[list[Array], list[int]]:
        x = jax.numpy.moveaxis(operands[0], dims[0], 0)
        results = primitive.bind(x.reshape(-1, *x.shape[2:]))
        return [out.reshape(*x.shape[:2], *out.shape[1:]) for out in results], [0] * len(results)

    mlir.register_lowering(primitive, in_operations)
    mlir.register_lowering(primitive, lowered, platform="cpu")
    batching.primitive_batchers[primitive] = batched
    return lambda x: tuple(primitive.bind(x))
