"""`tg.source`: a program as readable source of another framework."""

from __future__ import annotations

import sys
from typing import Any

from tensorgraft.codegen.frameworks import framework_of
from tensorgraft.codegen.generation import GeneratedSource, Generation
from tensorgraft.codegen.program import SourceProgram
from tensorgraft.codegen.styles.choosing import style_of
from tensorgraft.codegen.targets import target as target_of
from tensorgraft.importing import required
from tensorgraft.transforms.program_files import program_of_file
from tensorgraft.transforms.program_kinds import is_onnx_model, is_saved_model


def source(
    program: Any,
    *args: Any,
    onto: str,
    style: str | None = None,
    dynamic: bool = True,
    check: bool = True,
    **kwargs: Any,
) -> GeneratedSource:
    """Return a program of one framework as readable source of another, which needs neither tensorgraft nor the first
    one.

    Args:
        program: a `torch.nn.Module` (in its current mode, training or evaluation); a function of JAX, a model of
            Equinox, Flax (linen or nnx) or Haiku's `apply`; a function of TensorFlow, a `tf.Module`, a layer or model
            of Keras; a function of arrays that have `__array_namespace__`; an ONNX model, or the path of its file; the
            folder of a SavedModel.
        *args, **kwargs: example arguments of a call.
        onto: "jax", "torch", "tensorflow", "numpy" or "array_api".
        style: how parameters are stored; None is the first of: "functions" of a nested dictionary, "equinox" and "flax"
            (nnx) modules for JAX; "modules" (`nn.Module`) for PyTorch; "modules" (`tf.Module`), "keras" and "functions"
            for TensorFlow; "functions" for the others.
        dynamic: determine which sizes of the arguments may vary (batches, lengths).
        check: run the file, in a process without the source framework, at the example's sizes and at others, and
            compare results and gradients with the program's.

    Returns: a `GeneratedSource` with `text`, `weights`, `report` and `save("model.py")`.

    Raises:
        TypeError: for programs of unknown kinds.
        ValueError: for unknown targets and styles.
        ModuleNotFoundError: if ruff, which formats the file, or the target's framework is not installed.
        NotExpressibleError: if the target cannot express an operation of the program, with the line of the program.
    """
    required("ruff", by="tg.source", extra="source")
    target = target_of(onto)
    form = style_of(style, target)
    generation = Generation(source_program(program, (args, kwargs)), args, kwargs, target, form, dynamic)
    result = generation.result(onto)
    if check:
        generation.check(result)
    return result


def source_program(program: Any, examples: Any) -> SourceProgram:
    """The program in the form from which source is written; `examples` are its arguments."""
    program = program_of_file(program)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(program, torch.nn.Module):
        from tensorgraft.frontends.torch.codegen.program import ModuleProgram

        return ModuleProgram(program)
    if is_onnx_model(program):
        from tensorgraft.frontends.onnx import source_of_onnx

        return source_of_onnx(program)
    if is_saved_model(program):
        from tensorgraft.frontends.tensorflow.codegen.program import GraphFunctionProgram
        from tensorgraft.frontends.tensorflow.saved import saved_function

        return GraphFunctionProgram(*saved_function(program))
    framework = framework_of(program, examples)
    if framework == "tensorflow":
        from tensorgraft.frontends.tensorflow.codegen.program import GraphFunctionProgram

        return GraphFunctionProgram(program)
    if framework == "jax":
        from tensorgraft.frontends.jax.codegen.program import FunctionProgram

        return FunctionProgram(program)
    if framework == "array_api":
        from tensorgraft.frontends.array_api.codegen.program import ArrayFunctionProgram

        return ArrayFunctionProgram(program)
    raise TypeError(
        "tg.source takes a torch.nn.Module, a function or model of JAX or TensorFlow, a function of the Array API, or"
        f" an ONNX model, not a {type(program).__qualname__}"
    )
