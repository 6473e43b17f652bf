"""A program in the words of the framework that exports it."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorgraft.arrays import is_array
from tensorgraft.codegen.generation import GeneratedSource, Generation
from tensorgraft.codegen.output.weights import write_weights
from tensorgraft.codegen.program import by_path
from tensorgraft.codegen.styles.choosing import style_of
from tensorgraft.codegen.targets import target
from tensorgraft.codegen.verification.runners.common import program_of
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.structure import ArrayPosition, filled, plain
from tensorgraft.exporting.subject import Subject
from tensorgraft.hub.recorded.block import leaves, mapped
from tensorgraft.transforms.graft import graft

Arrays = Sequence[Any]


@dataclass
class Converted:
    """A program as a function of its arrays: `call(arrays)`, or `call(state, arrays)`, which returns (results, new
    state), if it has a `state`. `holder` is the module that has its weights, `direct` a module that takes the arguments
    of the program itself."""

    conversion: str
    call: Callable[..., Any]
    holder: Any = None
    direct: Any = None
    state: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)  # TensorFlow's, by path
    state_arguments: dict[str, str] = field(default_factory=dict)  # arguments of the file that are state -> their paths
    state_results: dict[str, str] = field(default_factory=dict)  # results of the file that are new state -> their paths
    tolerance: float = 0.0  # of results, where the format rounds them: relative to the largest entry
    notes: list[str] = field(default_factory=list)


def conversions(
    subject: Subject, framework: str | None, sizes: OpenSizes, functional: bool = False
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield (name, function that returns the converted program and the sizes that it leaves open), the best first.
    `functional`: the program writes its state, which has to be an argument and a result."""
    makers = {
        "native": _native,
        "tg.source": _written,
        "tg.graft": _grafted,
        "tg.source, tg.graft": _through_jax,
        "make_fx": _of_operators,
        "trace": lambda subject, framework, sizes: Converted("trace", subject),
    }
    if framework is None:  # the format is written from the recorded program
        order = ["trace"]
    elif functional:
        order = ["tg.source, tg.graft"]
    elif subject.framework == "jax":
        order = ["native", "tg.source"] if framework == "jax" else ["tg.graft", "tg.source"]
        if framework == "torch":  # a function of JAX that is grafted onto it is one for known sizes
            order.reverse()
    else:
        has_jax = framework == "tensorflow" and importlib.util.find_spec("jax") is not None
        through = ["tg.source, tg.graft"] if has_jax and sizes.open() else []
        if subject.framework == framework:
            order = ["native", *(["make_fx"] if framework == "torch" else []), "tg.source", *through]
        else:
            order = ["tg.source", *through, *(["tg.graft"] if subject.framework != "array_api" else [])]
    for name in order:
        own = dataclasses.replace(sizes, groups=[dataclasses.replace(g) for g in sizes.groups], limits={})
        for group in own.groups:
            group.checked_sizes = list(group.checked_sizes)
        yield name, lambda name=name, own=own: (makers[name](subject, framework, own), own)  # type: ignore[misc]


# ---- a program of the framework itself -------------------------------------------------------------------------------


def _native(subject: Subject, framework: str, sizes: OpenSizes) -> Converted:
    converted = Converted("native", subject)
    if framework == "torch":
        converted.holder = converted.direct = subject.program
    elif framework == "tensorflow":
        from tensorgraft.frontends.tensorflow.codegen.models import held_by

        converted.variables = dict(held_by(subject.program).variables)
        converted.holder = subject.program
    return converted


def _of_operators(subject: Subject, framework: str, sizes: OpenSizes) -> Converted:
    """Trace a program of PyTorch into a graph of ATen operators first: derivatives inside of it become operators, too,
    which `torch.export` alone does not trace."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    if subject.writes(subject.evaluate(subject.arrays).buffers):
        raise NotImplementedError(f"{subject.name} writes its buffers")
    names = [name for name, _ in subject.program.named_parameters()]
    parameters = [p.detach() for p in subject.program.parameters()]
    structure: list[Any] = []

    def flat(parameters: list[Any], arrays: list[Any]) -> list[Any]:
        values = dict(zip(names, parameters, strict=True))
        args, kwargs = subject.rebuild(list(arrays))
        with torch.enable_grad():
            out = plain(torch.func.functional_call(subject.program, values, args, kwargs), is_array)
        leaves_of_out = [*leaves(out)]
        positions = iter(range(len(leaves_of_out)))
        structure[:] = [mapped(lambda x: ArrayPosition(next(positions)), out)]
        return [x.detach() for x in leaves_of_out]

    graph = make_fx(flat, tracing_mode="symbolic" if sizes.open() else "real")(parameters, sizes.tracing_arrays())
    module = torch.nn.Module()
    module.graph = graph
    attributes = [name.replace(".", "_") for name in names]
    for name, p in zip(attributes, parameters, strict=True):
        module.register_parameter(name, torch.nn.Parameter(p, requires_grad=False))

    def call(arrays: Arrays) -> Any:
        return filled(structure[0], graph([getattr(module, name) for name in attributes], list(arrays)))

    return Converted("make_fx", call, holder=module)


# ---- through its source ----------------------------------------------------------------------------------------------


def _written(subject: Subject, framework: str, sizes: OpenSizes) -> Converted:
    """Load the source of the program in the framework. Fixes sizes that the source does not leave open."""
    generation, result = _generated(subject, framework, sizes)
    module, program, state = _loaded(result, framework)
    converted = Converted("tg.source", lambda arrays: plain(program(*state, *arrays), is_array))
    converted.notes = list(result.report.notes)
    if framework == "jax" and generation.stateful:
        *parameters, buffers = state
        paths = [*by_path(buffers)]

        def step(new: dict[str, Any], arrays: Arrays) -> Any:
            values = iter([new[path] for path in paths])
            out, after = program(*parameters, mapped(lambda x: next(values), buffers), *arrays)
            return plain(out, is_array), by_path(after)

        converted.state, converted.call = by_path(buffers), step
    elif framework != "jax" and not isinstance(program, _functions()):
        converted.holder = converted.direct = program
    if framework == "tensorflow" and converted.holder is not None:
        named = module.named(program) if hasattr(module, "named") else {}
        converted.variables = named if isinstance(named, dict) else {}
    return converted


def _through_jax(subject: Subject, framework: str, sizes: OpenSizes) -> Converted:
    """Graft the source of the program in JAX onto TensorFlow: JAX has symbolic sizes, where written TensorFlow needs
    their values."""
    import tensorflow as tf

    generation, result = _generated(subject, "jax", sizes)
    _, program, state = _loaded(result, "jax")
    parameters, buffers = (state[:-1], state[-1]) if generation.stateful else (state, None)
    paths = by_path(list(parameters))
    variables = {path.partition(".")[2]: tf.Variable(np.asarray(x)) for path, x in paths.items()}
    leaves = iter(variables.values())
    parameters = mapped(lambda x: next(leaves), list(parameters))
    function = graft(lambda state, arrays: program(*state, *arrays), onto=framework)
    converted = Converted("tg.source, tg.graft", lambda arrays: plain(function(parameters, list(arrays)), is_array))
    converted.variables, converted.notes = variables, list(result.report.notes)

    def step(new: dict[str, Any], arrays: Arrays) -> Any:
        values = iter([new[path] for path in by_path(buffers)])
        out, after = function([*parameters, mapped(lambda x: next(values), buffers)], list(arrays))
        return plain(out, is_array), by_path(plain(after, is_array))

    if generation.stateful:
        converted.state, converted.call = by_path(buffers), step
    return converted


def _generated(subject: Subject, framework: str, sizes: OpenSizes) -> tuple[Generation, GeneratedSource]:
    wanted = target(framework)
    args, kwargs = subject.rebuild(list(subject.arrays))
    generation = Generation(
        subject.source, args, kwargs, wanted, style_of(None, wanted), bool(sizes.open()), sizes.names()
    )
    result = generation.result(framework)
    varied = {at for group in result.report.groups if group.checked_sizes for at in group.axes}
    reasons = {at: group.reason for group in result.report.groups for at in group.axes}
    for g in sizes.open():
        fixed = [at for at in sizes.groups[g].axes if at not in varied]
        if fixed:
            sizes.fix([g], reasons.get(fixed[0]) or "it changes together with another size")
    if generation.draws:
        raise NotImplementedError(f"{subject.name} draws random numbers, which are those of its own framework")
    return generation, result


def _functions() -> tuple[type, ...]:
    return (type(_functions),)


def _loaded(result: GeneratedSource, framework: str) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return (the module of a written file, its program, the state that its function takes first)."""
    text, names = result.text, {"float": _real}
    if framework == "tensorflow":
        from tensorgraft.exporting import symbolic_source

        text, names = symbolic_source.symbolic(text), symbolic_source.NAMES
    with tempfile.TemporaryDirectory() as folder:
        source, checkpoint = os.path.join(folder, "model.py"), os.path.join(folder, "model.safetensors")
        with open(source, "w") as file:
            file.write(text)
        write_weights(result.weights, checkpoint)
        name = f"tensorgraft_written_{os.path.basename(folder)}"
        spec = importlib.util.spec_from_file_location(name, source)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # classes of the file are found by their module
        vars(module).update(names)
        try:
            spec.loader.exec_module(module)
            _replace_loops(module, framework)
            program, state = program_of(module, result.function, checkpoint)
        finally:
            del sys.modules[name]
        if not hasattr(module, "load_weights") and hasattr(program, "eval"):
            program.eval()
        return module, program, state


def _replace_loops(module: Any, framework: str) -> None:
    """Give a written file of PyTorch loops that `torch.export` does not unroll."""
    if framework == "torch" and hasattr(module, "scan"):
        from tensorgraft.exporting.traced_loops import symbolic_scan

        module.scan = symbolic_scan(module)


def _real(x: Any = 0.0) -> Any:
    """Return a number or a symbolic size as a floating-point number of weak type."""
    if hasattr(x, "dimension_as_value") or type(x).__name__ == "_DimExpr":
        return sys.modules["jax"].lax.convert_element_type(x, float)
    if type(x).__name__ == "SymInt":
        return sys.modules["torch"].sym_float(x)
    return float(x)


# ---- grafted ---------------------------------------------------------------------------------------------------------


def _grafted(subject: Subject, framework: str, sizes: OpenSizes) -> Converted:
    grafted = graft(subject.callable, onto=framework)
    if framework == "jax" and isinstance(grafted, tuple):
        return _pure(subject, *grafted)

    def call(arrays: Arrays) -> Any:
        args, kwargs = subject.rebuild(list(arrays))
        return plain(grafted(*args, **kwargs), is_array)

    converted = Converted("tg.graft", call)
    if framework == "tensorflow":
        variables = getattr(grafted, "state", None)
        converted.variables = dict(variables) if isinstance(variables, dict) else {}
    if not isinstance(grafted, _functions()):
        converted.holder = grafted
    return converted


def _pure(subject: Subject, apply: Any, params: Any, buffers: Any) -> Converted:
    def call(state: Any, arrays: Arrays) -> Any:
        args, kwargs = subject.rebuild(list(arrays))
        out, new = apply(params, state, *args, **kwargs)
        return plain(out, is_array), new

    if buffers and getattr(subject.program, "training", False):
        return Converted("tg.graft", call, state=dict(buffers))
    return Converted("tg.graft", lambda arrays: call(buffers, arrays)[0])
