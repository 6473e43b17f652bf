"""A function of the Array API standard as a program that `tg.source` writes down.

It is called with arrays of `tensorgraft.array_api` that record their operations, whichever arrays it was written for,
because it finds its namespace by `__array_namespace__`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tensorgraft.codegen.captured_values import captured_values
from tensorgraft.codegen.program import Evaluation, by_path, cosines
from tensorgraft.codegen.recorders.call_recorder import leaves, mapped, single_arguments
from tensorgraft.codegen.recorders.frames import Watched, framed
from tensorgraft.codegen.recorders.recording import ScopedRecorder
from tensorgraft.codegen.trace import SourceTrace
from tensorgraft.frontends.array_api.codegen.call_recorder import FunctionWatch
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.devices import alias_device, resolve
from tensorgraft.frontends.array_api.core.tracing import capturing
from tensorgraft.frontends.array_api.transforms.gradients import grad
from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.recorded.block import Var
from tensorgraft.storage import Storage

# the usual names of the argument that contains a model's arrays
PARAMETERS = frozenset({"params", "parameters", "weights", "model", "state_dict"})


class ArrayRecorder(ScopedRecorder):
    """Records functions of arrays. Arrays that they capture (`held`, by identity) have names."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, Var] = {}

    def lifted(self, x: Any, /) -> Any:
        known = self.held.get(id(x))
        return known if known is not None else super().lifted(np.asarray(x))


class ArrayFunctionProgram:
    """A function of arrays that have `__array_namespace__`."""

    framework = "array_api"

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        plain = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
        name = getattr(plain, "__name__", type(fn).__name__)
        self.name = name if name.isidentifier() else "function"
        qualified = f"{getattr(plain, '__module__', '')}.{getattr(plain, '__qualname__', self.name)}"
        self.origin = f"{qualified.removeprefix('__main__.')} of the Array API standard"

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the arguments by name."""
        return single_arguments(self.fn, args, kwargs)

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]]:
        arrays = [
            x for n, tree in self.bound(args, kwargs) if not is_held(n, tree) for x in leaves(tree) if is_array(x)
        ]

        def rebuild(new: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            replacements = {id(old): x for old, x in zip(arrays, new, strict=True)}
            return mapped(lambda x: replacements.get(id(x), x), (args, kwargs))

        return arrays, rebuild

    def resized(self, x: Any, shape: tuple[int, ...]) -> Any:
        xp = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
        values = host(x)
        for axis, n in enumerate(shape):
            if values.shape[axis] != n:
                values = np.take(values, np.arange(n) % values.shape[axis], axis=axis)
        return _like(values, x, xp)

    def numpy(self, x: Any) -> np.ndarray:
        return host(x)

    def evaluate(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool, same_numbers: bool = False
    ) -> Evaluation:
        if same_numbers:
            return Evaluation({}, {}, {}, "results are not compared: each framework has random numbers of its own")
        copied = mapped(lambda x: _like(host(x).copy(), x) if is_array(x) else x, (args, kwargs))  # it may write them
        outputs = {k: host(x) for k, x in by_path(self.fn(*copied[0], **copied[1])).items() if is_array(x)}
        parameters = {
            p: x for n, tree in self.bound(args, kwargs) if is_held(n, tree) for p, x in by_path(tree).items()
        }
        trained = {p: x for p, x in parameters.items() if is_array(x) and dtypes.is_inexact(host(x).dtype)}
        cotangents: dict[str, Any] = {}
        if gradients and trained:
            cotangents = self._gradients(args, kwargs, trained)
        return Evaluation(
            outputs, cotangents, {p: host(x) for p, x in parameters.items() if is_array(x) and p not in trained}
        )

    def _gradients(self, args: Any, kwargs: Any, trained: dict[str, Any]) -> dict[str, np.ndarray]:
        device = registry.get("numpy")
        paths = {id(x): p for p, x in trained.items()}

        def total(parameters: dict[str, Any]) -> Any:
            call = mapped(lambda x: parameters.get(paths.get(id(x), ""), _on_device(x, device)), (args, kwargs))
            out = [x for x in by_path(self.fn(*call[0], **call[1])).values() if isinstance(x, Array)]
            smooth = [x for x in out if dtypes.is_inexact(x.dtype)]
            xp = smooth[0].__array_namespace__()
            parts = []
            for x in smooth:
                real = xp.astype(xp.real(x) if dtypes.is_complex(x.dtype) else x, xp.float32)
                parts.append(xp.sum(real * _on_device(cosines(x.shape).astype(np.float32), device)))
            return functools.reduce(lambda a, b: a + b, parts)

        gradients = grad(total)({p: _on_device(x, device) for p, x in trained.items()})
        return {p: host(g) for p, g in gradients.items()}

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SourceTrace:
        """Raises TracedValueError where the function asks for values."""
        xp = ArrayRecorder()
        arrays = [x for x in (*leaves((args, kwargs)), *(x for _, x in closed_arrays(self.fn))) if isinstance(x, Array)]
        outer = arrays[0]._cell.backend if arrays else resolve(None).backend
        alias_device(xp, outer)
        bound = self.bound(args, kwargs)
        parameters: dict[str, Var] = {}
        buffers: dict[str, Var] = {}
        weights: dict[str, np.ndarray] = {}

        def parameter(path: str, values: np.ndarray) -> Var:
            var = Var(values.shape, values.dtype)
            (parameters if dtypes.is_inexact(values.dtype) else buffers)[path] = var
            weights[path] = values
            return var

        stands: dict[int, Var] = {}
        is_single = sum(is_held(n, tree) for n, tree in bound) == 1
        for name, tree in bound:
            for path, x in by_path(tree).items() if is_held(name, tree) else ():
                if is_array(x):
                    stands[id(x)] = parameter(path if is_single else f"{name}.{path}", host(x))
        for path, x in closed_arrays(self.fn):
            xp.held[id(x._cell.array)] = parameter(path, host(x))
        for x in self.flatten(args, kwargs)[0]:
            stands[id(x)] = Var(tuple(x.shape), host(x).dtype)
        watch = FunctionWatch(xp)
        with xp.recording() as calls, capturing(outer, xp, name="tg.source", fn=self.fn), xp.scope():
            cells: dict[int, Storage] = {k: Storage(v, xp) for k, v in stands.items()}
            call = mapped(lambda x: Array(cells[id(x)]) if id(x) in cells else x, (args, kwargs))
            with watch.watching():
                out = self.fn(*call[0], **call[1])
            result = mapped(lambda x: _value(x, xp), out)
            for k, cell in cells.items():
                if cell.array is not stands[k]:
                    name = next(n for n, tree in bound if any(id(x) == k for x in leaves(tree)))
                    xp.note(f"the function writes its argument {name}; the file's leaves it as it is")
        arguments = [(n, mapped(lambda x: stands.get(id(x), x), tree)) for n, tree in bound if not is_held(n, tree)]
        seen_arrays = list(watch.arrays.items())
        watched = Watched(watch.program_calls, seen_arrays, watch.names, frozenset(), _filled)
        root, (result, _), used = framed(xp, watched, calls, (result, {}), arguments, self.name)
        root.doc = _doc(self.fn)
        used_paths = {p: v for p, v in {**parameters, **buffers}.items() if v in used}
        return SourceTrace(
            framework="array_api",
            name=root.kind,
            root=root,
            arguments=arguments,
            result=result,
            parameters={p: v for p, v in parameters.items() if p in used_paths},
            buffers={p: v for p, v in buffers.items() if p in used_paths},
            written={},
            aliases={},
            weights={p: x for p, x in weights.items() if p in used_paths},
            notes=xp.notes,
        )


def _filled(tree: Any, became: Any) -> Any:
    return mapped(lambda x: became.get(x) if type(x) is Var else x, tree)


def _value(x: Any, xp: ArrayRecorder) -> Any:
    return (
        xp.variable(xp.lifted(x._value()) if x._cell.backend is not xp else x._value()) if isinstance(x, Array) else x
    )


def _doc(fn: Any) -> str:
    doc = getattr(fn, "__doc__", None)
    docstring = (
        " ".join(inspect.cleandoc(doc).split("\n\n")[0].split())
        if doc and not isinstance(fn, functools.partial)
        else ""
    )
    return docstring.partition(". ")[0].rstrip(".") + "." if docstring else ""


def is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray | Array) or hasattr(type(x), "__array_namespace__") or _is_tensor(x)


def _is_tensor(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "torch" and hasattr(x, "numpy")


def host(x: Any) -> np.ndarray:
    if _is_tensor(x):
        return np.asarray(x.detach().cpu())
    return np.asarray(x._cell.backend.to_numpy(x._value())) if isinstance(x, Array) else np.asarray(x)


def is_held(name: str, tree: Any) -> bool:
    """Return True if an argument holds the model's arrays."""
    return name in PARAMETERS and isinstance(tree, dict | list | tuple) and any(map(is_array, leaves(tree)))


def _on_device(x: Any, device: Any) -> Any:
    if not is_array(x):
        return x
    with device.scope():
        return Array(Storage(device.asarray(host(x).copy()), device))


def _like(values: np.ndarray, x: Any, xp: Any = None) -> Any:
    """Return an array of the kind that `x` is."""
    if isinstance(x, np.ndarray):
        return values
    if _is_tensor(x):
        import importlib

        return importlib.import_module("torch").from_numpy(values)
    if isinstance(x, Array):
        return _on_device(values, x._cell.backend)
    return (xp or x.__array_namespace__()).asarray(values)


def closed_arrays(fn: Any, depth: int = 4) -> Iterator[tuple[str, Array]]:
    """Return (path, array) for the arrays that a function captures, each once."""
    seen_cells: set[int] = set()
    for path, x in _variables_around(fn, depth):
        if isinstance(x, Array) and id(x._cell) not in seen_cells and x._geometry is None:
            seen_cells.add(id(x._cell))
            yield path, x


def _variables_around(fn: Any, depth: int) -> Iterator[tuple[str, Any]]:
    for name, x in captured_values(fn):
        if isinstance(x, types.FunctionType) and depth and x.__module__ == getattr(fn, "__module__", None):
            yield from _variables_around(x, depth - 1)
        elif isinstance(x, Array):
            yield name, x
        elif isinstance(x, dict | list | tuple):
            yield from ((f"{name}.{p}", y) for p, y in by_path(x).items())


__all__ = ["ArrayFunctionProgram"]
