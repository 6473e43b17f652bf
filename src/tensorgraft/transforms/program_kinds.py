"""The kinds of programs that `tg.graft` takes: for each how to tell it, and what makes a callable of another framework
of it."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from tensorgraft.hub import registry
from tensorgraft.importing import required
from tensorgraft.transforms.program_files import is_program_file, program_of_file


class ProgramKind(NamedTuple):
    """A kind of program."""

    matches: Callable[[Any], bool]
    graft: Callable[[Any, str], Any]  # of (program, backend)


def _is_torch_module(program: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(program, torch.nn.Module | torch.export.ExportedProgram)


def _graft_torch_module(program: Any, onto: str) -> Any:
    from tensorgraft.frontends.torch.graph.grafted import graft_module

    return graft_module(program, onto)


def is_onnx_model(program: Any) -> bool:
    """Return True if an ONNX model, or the path of its file."""
    if isinstance(program, str | os.PathLike):
        return os.fspath(program).endswith(".onnx")
    onnx = sys.modules.get("onnx")
    return onnx is not None and isinstance(program, onnx.ModelProto)


def _graft_onnx(program: Any, onto: str) -> Any:
    from tensorgraft.frontends.onnx import graft_onnx

    return graft_onnx(program, registry.get(onto))


def _graft_file(program: Any, onto: str) -> Any:
    found = program_of_file(program)
    kind = next(kind for kind in PROGRAM_KINDS if kind.matches(found))
    return kind.graft(found, onto)


def is_saved_model(program: Any) -> bool:
    """Return True if a SavedModel's folder, or the file of a frozen graph."""
    if not isinstance(program, str | os.PathLike):
        return False
    return os.path.exists(os.path.join(program, "saved_model.pb")) or os.path.isfile(program)


def _is_tensorflow_program(program: Any) -> bool:
    """Return True if a function of TensorFlow, a `tf.Module`, a layer or a model of Keras on TensorFlow, or a method of
    these."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return False
    if inspect.ismethod(program):  # `model.train_step`
        return _is_tensorflow_program(program.__self__)
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(program, keras.Layer) and keras.config.backend() == "tensorflow":
        return True
    kinds = tensorflow.types.experimental
    return isinstance(program, kinds.GenericFunction | kinds.ConcreteFunction | tensorflow.Module)


def _graft_tensorflow(program: Any, onto: str) -> Any:
    from tensorgraft.frontends.tensorflow import graft_tensorflow

    return graft_tensorflow(program, registry.get(onto))


def _graft_jax_function(program: Any, onto: str) -> Any:
    """Graft a callable that is not a program of the other frameworks, and so is taken for one of JAX."""
    if onto not in ("jax", "torch", "tensorflow", "numpy"):
        raise unknown_program(program, onto)
    registry.lookup(onto)
    required("jax", by=f"tg.graft takes a {type(program).__qualname__} for a program of JAX. It")
    if onto == "jax":
        from tensorgraft.frontends.jax.quantized_evaluation import ByRules

        return ByRules(program)
    from tensorgraft.frontends.jax.grafted import Grafted
    from tensorgraft.frontends.jax.modules import grafted

    kind, xp = Grafted, registry.get(onto)
    if onto == "torch":
        from tensorgraft.frontends.jax.interop.tensors import AmongTensors

        kind = AmongTensors
    elif onto == "tensorflow":
        from tensorgraft.frontends.jax.interop.keras import AmongKeras

        kind = AmongKeras
    return grafted(program, xp, kind, onto)


def _refuse_path(program: Any, onto: str) -> Any:
    raise FileNotFoundError(
        f"{os.fspath(program)!r} is neither the folder of a SavedModel, which has a saved_model.pb, nor the file of"
        " a frozen graph"
    )


def unknown_program(program: Any, onto: str) -> TypeError:
    """Return the error for a program of no kind."""
    return TypeError(
        "tg.graft takes a torch.nn.Module or an ExportedProgram onto 'jax', 'tensorflow' or 'numpy', a JAX function"
        " onto 'torch', 'tensorflow', 'numpy' or 'jax', or a tf.function onto any backend, not a"
        f" {type(program).__qualname__} onto {onto!r}"
    )


# the first that matches is taken
PROGRAM_KINDS = (
    ProgramKind(_is_torch_module, _graft_torch_module),
    ProgramKind(is_onnx_model, _graft_onnx),
    ProgramKind(is_program_file, _graft_file),
    ProgramKind(is_saved_model, _graft_tensorflow),
    ProgramKind(_is_tensorflow_program, _graft_tensorflow),
    ProgramKind(lambda program: callable(program) and not isinstance(program, type), _graft_jax_function),
    ProgramKind(lambda program: isinstance(program, str | os.PathLike), _refuse_path),
)
