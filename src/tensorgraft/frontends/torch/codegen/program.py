"""A module as a program that `tg.source` writes down."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from tensorgraft.codegen.program import Evaluation, by_path, cosines, error_line
from tensorgraft.codegen.trace import SourceTrace
from tensorgraft.frontends.torch.codegen.modules import bound_arguments, tree
from tensorgraft.frontends.torch.codegen.numbers import SameNumbers
from tensorgraft.frontends.torch.codegen.tracing import refuse_sparse, trace_module
from tensorgraft.frontends.torch.core import pytrees
from tensorgraft.frontends.torch.core.tensors import cpu_to_numpy
from tensorgraft.frontends.torch.graph.exported import copied
from tensorgraft.frontends.torch.sparse.parts import named_gradient, named_parts

Tensor = torch.Tensor


class ModuleProgram:
    """A `torch.nn.Module` in the mode that it is in."""

    framework = "torch"

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        cls = type(module)
        self.name = cls.__name__
        self.origin = f"{cls.__module__}.{cls.__qualname__} of PyTorch {torch.__version__.split('+')[0]}"

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SourceTrace:
        return trace_module(self.module, args, kwargs)

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]]:
        refuse_sparse(args, kwargs)
        leaves, structure = pytrees.flatten((args, kwargs))
        leaves = [x.view_as(x) if isinstance(x, Tensor) else x for x in leaves]  # each occurrence is an argument
        positional, named = pytrees.unflatten(leaves, structure)
        index_of = {id(x): i for i, x in enumerate(leaves)}
        arrays = [x for _, v in bound_arguments(self.module, positional, named).items() for x in _arrays(v)]

        def rebuild(new: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            changed = list(leaves)
            for old, x in zip(arrays, new, strict=True):
                changed[index_of[id(old)]] = x
            return pytrees.unflatten(changed, structure)

        return arrays, rebuild

    def resized(self, x: Any, shape: tuple[int, ...]) -> Any:
        t = torch.as_tensor(x)
        for axis, n in enumerate(shape):
            if t.shape[axis] != n:
                t = t.index_select(axis, torch.arange(n) % t.shape[axis])
        return t if isinstance(x, Tensor) else t.numpy()

    def numpy(self, x: Any) -> np.ndarray:
        return x if isinstance(x, np.ndarray) else np.array(cpu_to_numpy(x.detach().cpu()))

    def evaluate(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool, same_numbers: bool = False
    ) -> Evaluation:
        module = copied(self.module)
        numbers = SameNumbers()
        with torch.set_grad_enabled(gradients), numbers if same_numbers else contextlib.nullcontext():
            args, kwargs = _tensors((args, kwargs))
            out = by_path(tree(module(*args, **kwargs), of=lambda t: t))
        if numbers.others:
            random_words = ", ".join(dict.fromkeys(numbers.others))
            return Evaluation(
                {}, {}, {}, f"results are not compared: each framework has numbers of its own for {random_words}"
            )
        outputs = {k: t for k, t in out.items() if isinstance(t, Tensor)}
        gradients_by_name: dict[str, np.ndarray] = {}
        note = ""
        smooth = [t for t in outputs.values() if t.requires_grad]
        if gradients and smooth:
            total = sum((t.real.float() * torch.from_numpy(cosines(t.shape)).float()).sum() for t in smooth)
            names = {name: p for name, p in module.named_parameters() if p.requires_grad}
            try:
                computed = torch.autograd.grad(total, list(names.values()), allow_unused=True)  # type: ignore[arg-type]
                gradients_by_name = {
                    part: self.numpy(of_part)
                    for (n, p), g in zip(names.items(), computed, strict=True)
                    if g is not None
                    for part, of_part in named_gradient(n, p, g).items()
                }
            except RuntimeError as error:  # such as a tensor that was written after autograd saved it
                note = f"gradients are not compared, the program's own fail: {error_line(error)}"
        return Evaluation(
            {k: self.numpy(t) for k, t in outputs.items()},
            gradients_by_name,
            {part: self.numpy(t) for name, b in module.named_buffers() for part, t in named_parts(name, b).items()},
            note,
        )


def _tensors(tree_of_arguments: Any) -> Any:
    leaves, structure = pytrees.flatten(tree_of_arguments)
    return pytrees.unflatten([torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in leaves], structure)


def _arrays(x: Any) -> Iterator[Any]:
    if isinstance(x, Tensor | np.ndarray):
        yield x
    elif isinstance(x, Mapping):
        for e in x.values():
            yield from _arrays(e)
    elif isinstance(x, tuple | list):
        for e in x:
            yield from _arrays(e)
