"""`tensorgraft convert`: a program as source of another framework, in a file."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from typing import Any

import typer

USAGE_ERROR = 2
_ARRAY = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+)(?:<(?P<below>\d+))?)?$")


def convert(
    program: str,
    *,
    to: str,
    out: str,
    inputs: list[str],
    style: str | None,
    weights: str | None,
    training: bool,
    check_file: bool,
) -> int:
    """Return the exit status: 0, 1 if the file differs from the program, 2 if there is none."""
    import tensorgraft as tg

    try:
        model = _program(program)
        args, kwargs = _inputs(model, program, inputs)
    except (ValueError, ImportError, AttributeError, FileNotFoundError) as error:
        typer.echo(f"tensorgraft convert: {error}", err=True)
        return USAGE_ERROR
    if hasattr(model, "train"):
        model.train(training)
        if weights is not None:
            from safetensors.torch import load_file

            model.load_state_dict(load_file(weights))
    elif "tensorflow" in sys.modules:
        try:
            kwargs |= _of_tensorflow(model, weights, training)
        except ValueError as error:
            typer.echo(f"tensorgraft convert: {error}", err=True)
            return USAGE_ERROR
    try:
        source = tg.source(model, *args, onto=to, style=style, **kwargs)
    except (NotImplementedError, ValueError, TypeError, RuntimeError) as error:
        message = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        typer.echo(f"tensorgraft convert: {message}\nNothing was written.", err=True)
        return USAGE_ERROR
    source.save(out, check=check_file)
    typer.echo(str(source.report))
    files = [out, *([os.path.splitext(out)[0] + ".safetensors"] if source.weights else [])]
    typer.echo(f"written: {', '.join(files)}")
    return 0 if source.report.ok else 1


def _of_tensorflow(model: Any, weights: str | None, training: bool) -> dict[str, Any]:
    """Return the mode of a layer or model as an argument, after loading its weights. Raises ValueError for unknown
    names."""
    from tensorgraft.frontends.tensorflow.codegen.models import held_by

    if weights is not None:
        from safetensors.numpy import load_file

        variables, values = held_by(model).variables, load_file(weights)
        # states of random generators, which are no weights
        seeds = {name for name in variables if name.endswith("seed_generator_state")}
        if strange := sorted(values.keys() ^ (variables.keys() - seeds)):
            raise ValueError(f"{weights} does not match the variables of the program: {', '.join(strange)}")
        for name, value in values.items():
            variables[name].assign(value)
    has_modes = "training" in inspect.signature(getattr(model, "call", model)).parameters
    return {"training": True} if training and has_modes else {}


def _program(text: str) -> Any:
    """Import `module:Model` or `file.py:Model`: an object, or a class or function that returns one when called without
    arguments."""
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


def _inputs(model: Any, program: str, inputs: list[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arrays from texts such as `2x3x32x32` and `ids=2x8:int64<99`; without any, the result of `example_inputs`
    of the program's module."""
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
        match = _ARRAY.match(text)
        if match is None:
            raise ValueError(
                f"--input {text!r}: expected a shape with an optional name, dtype and upper bound, such as"
                " 2x3x32x32 or ids=2x8:int64<99"
            )
        shape = tuple(map(int, match["shape"].split("x")))
        dtype = np.dtype(match["dtype"] or "float32")
        if dtype.kind in "iu":
            array = rng.integers(0, int(match["below"] or 2), shape).astype(dtype)
        elif dtype.kind == "b":
            array = rng.integers(0, 2, shape).astype(bool)
        else:
            array = rng.standard_normal(shape).astype(dtype)
        value: Any = array
        if "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
            value = sys.modules["torch"].from_numpy(array)
        if match["name"]:
            kwargs[match["name"]] = value
        else:
            args.append(value)
    return tuple(args), kwargs
