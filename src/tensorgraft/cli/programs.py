"""Programs and examples of their arguments, as texts on the command line name them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from typing import Any

from tensorgraft.transforms.program_files import is_program_file, program_of_file

_ARRAY = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+)(?:<(?P<below>\d+))?)?$")


def imported(text: str) -> Any:
    """Import `module:Model` or `file.py:Model`: an object, or a class or function that returns one when called without
    arguments. The path of an ONNX file is a program as it is; that of a file of `torch.export` or `jax.export` stands
    for its program."""
    if text.endswith(".onnx"):
        if not os.path.exists(text):
            raise FileNotFoundError(f"{text} does not exist")
        return text
    if is_program_file(text):
        return program_of_file(text)
    module_path, _, name = text.rpartition(":")
    if not module_path:
        raise ValueError(f"{text!r}: expected module:Model or file.py:Model")
    if module_path.endswith(".py"):
        if not os.path.exists(module_path):
            raise FileNotFoundError(f"{module_path} does not exist")
        title = os.path.splitext(os.path.basename(module_path))[0]
        sys.path.insert(0, os.path.dirname(os.path.abspath(module_path)))
        spec = importlib.util.spec_from_file_location(title, module_path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[title] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(module_path)
    try:
        target = getattr(module, name)
    except AttributeError:
        raise AttributeError(f"{module_path} has no {name!r}") from None
    return target() if isinstance(target, type) else target


def example_of(model: Any, program: str, inputs: list[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arrays from texts such as `2x3x32x32`, `ids=2x8:int64<99` and `x=pixels.npy`; without any, the result of
    `example_inputs` of the program's module."""
    if not inputs:
        module = sys.modules.get(type(model).__module__)
        example = getattr(model, "example_inputs", None) or getattr(module, "example_inputs", None)
        if example is None:
            raise ValueError(
                f"{program} needs an example of its arguments: --input 2x3x32x32, --input ids=2x8:int64<99, or a"
                " function example_inputs() in the same module that returns them (a tuple, or a dictionary by"
                " name)"
            )
        example_values = example()
        return ((), example_values) if isinstance(example_values, dict) else (tuple(example_values), {})
    import numpy as np

    rng = np.random.default_rng(0)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in inputs:
        name, array = _array(text, rng)
        value: Any = array
        if "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
            value = sys.modules["torch"].from_numpy(array)
        if name:
            kwargs[name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def _array(text: str, rng: Any) -> tuple[str, Any]:
    """Return (the name of an argument, or "", its array), from a file or of random numbers."""
    import numpy as np

    if text.endswith(".npy"):
        name, _, path = text.rpartition("=")
        return name, np.load(path, allow_pickle=False)
    match = _ARRAY.match(text)
    if match is None:
        raise ValueError(
            f"--input {text!r}: expected a shape with an optional name, dtype and upper bound, such as"
            " 2x3x32x32 or ids=2x8:int64<99, or a file, such as x=pixels.npy"
        )
    shape = tuple(map(int, match["shape"].split("x")))
    dtype = np.dtype(match["dtype"] or "float32")
    if dtype.kind in "iu":
        return match["name"] or "", rng.integers(0, int(match["below"] or 2), shape).astype(dtype)
    if dtype.kind == "b":
        return match["name"] or "", rng.integers(0, 2, shape).astype(bool)
    return match["name"] or "", rng.standard_normal(shape).astype(dtype)
