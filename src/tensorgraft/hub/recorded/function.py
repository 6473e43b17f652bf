"""`Function`: recorded programs of one function, one for each signature it was called with, and the arrays they share.

A saved function is a directory:

    function.json    {"format": "tensorgraft function", "version": 1, "name": ..., "weights": {name: [dtype, shape]},
                     "constants": {name: [dtype, shape]}, "signatures": [{"arguments": template of (args, kwargs),
                     "seeded": bool, "results": template, "program": program}]}
    weights.npz      the weights, by name
    constants.npz    what the programs hold besides

(or, where the function replaced another, files of other names, which `"files"` says).

Templates are those of `structure`, programs those of `encoding`; a program takes the weights in the order of their
names here, the arrays of the arguments, and, where it is seeded, uint32 (2,).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded import encoding
from tensorgraft.hub.recorded.program import Program
from tensorgraft.hub.recorded.structure import Template, flatten, from_json, template_text, unflatten
from tensorgraft.hub.recorded.tracing import record
from tensorgraft.hub.sparse_arrays import SparseArray

FORMAT, VERSION = "tensorgraft function", 1


@dataclass(frozen=True)
class CallSignature:
    """The signature by which calls are told apart."""

    arguments: Template
    specs: tuple[ShapeDtype, ...]  # of the arrays in the arguments
    seeded: bool

    def __str__(self) -> str:
        args, kwargs = self.arguments[1:]
        names = iter(list(map(str, self.specs)))
        parts = [template_text(t, names) for t in args[1:]] + [
            f"{key}={template_text(t, names)}" for key, t in kwargs[1]
        ]
        return f"({', '.join(parts + ['seed=...'] * self.seeded)})"


@dataclass(frozen=True)
class Recorded:
    """A program, and the structure of its results."""

    program: Program
    results: Template


class Function:
    """`f(*args, seed=None, **kwargs)` on arrays of a backend, in tuples, lists and dictionaries; other arguments are
    static. `seed` (an int, or two integers) is for functions that draw random numbers."""

    def __init__(
        self,
        xp: Backend,
        name: str,
        weights: Mapping[str, np.ndarray],
        programs: Mapping[CallSignature, Recorded] | None = None,
    ) -> None:
        self.__name__ = name
        self.backend = xp
        self.weights = {key: _frozen(a) for key, a in weights.items()}
        self.programs = dict(programs or {})
        self._run: dict[CallSignature, Callable[..., tuple[Array, ...]]] = {}
        with xp.scope():
            self._weight_arrays = [a if xp.is_array(a) else xp.asarray(a) for a in self.weights.values()]

    def __call__(self, *args: Any, seed: Any = None, **kwargs: Any) -> Any:
        """Call the function. Raises TypeError for arguments that are neither arrays nor static, and for those without a
        recorded program."""
        xp = self.backend
        with xp.scope():
            template, arrays = flatten((args, kwargs), self._operand, self.__name__)
            specs = tuple([ShapeDtype(tuple(xp.shape(a)), xp.dtype_of(a)) for a in arrays])
            if seed is not None:
                arrays.append(xp.seed_words(seed))
            signature = CallSignature(template, specs, seed is not None)
            recorded = self.recorded(signature)
            run = self._run.get(signature)
            if run is None:
                program = recorded.program
                run = self._run[signature] = xp.compile(lambda *a: program(xp, *a))
            outputs = run(*self._weight_arrays, *arrays)
            if xp.mutable:
                passed = recorded.program.passed
                outputs = tuple([xp.copy(a) if i in passed else xp.ensure_owned(a) for i, a in enumerate(outputs)])
            return unflatten(recorded.results, outputs, xp.sparse_array)

    def _operand(self, x: Any) -> Array | SparseArray | None:
        if isinstance(x, np.ndarray | np.generic):
            return x if self.backend.is_array(x) else self.backend.asarray(np.asarray(x))
        array = self.backend.operand(x)
        return self.backend.sparse_parts(x) if array is None else array

    def recorded(self, signature: CallSignature) -> Recorded:
        program = self.programs.get(signature)
        if program is None:
            known = "".join(f"\n  {self.__name__}{s}" for s in self.programs)
            raise TypeError(f"{self.__name__}{signature} was not recorded. Recorded signatures:{known or ' none'}")
        return program

    def __repr__(self) -> str:
        return f"<{self.__name__} on {self.backend.name}: {len(self.weights)} weights, {len(self.programs)} programs>"

    # ---- files -----------------------------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write the programs that were recorded so far, for the arguments with which the function was called. Raises
        ValueError if there are none. A function saved there before is replaced; after an error it is unchanged."""
        if not self.programs:
            raise ValueError(
                f"{self.__name__} has not been called yet, so that there is no recorded program to save: call it"
                " with arguments of the shapes that it is to support"
            )
        constants: dict[str, np.ndarray] = {}
        signatures = [
            {"arguments": s.arguments, "seeded": s.seeded, "results": r.results,
             "program": encoding.encode(r.program, constants)}
            for s, r in self.programs.items()
        ]  # fmt: skip
        data = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.__name__,
            "weights": encoding.specs_of(self.weights),
            "constants": encoding.specs_of(constants),
            "signatures": signatures,
        }
        arrays = {"weights": self.weights, "constants": constants}
        encoding.save_with_arrays(Path(directory) / "function.json", data, arrays)

    @classmethod
    def load(cls, directory: str | Path, xp: Backend) -> Function:
        """Load a saved function. Raises FileNotFoundError if there is none, ValueError for a broken one or another
        version."""
        directory = Path(directory)
        file = directory / "function.json"
        data = encoding.read_json(file, FORMAT, VERSION)
        with encoding.naming_file(file):
            weights = encoding.arrays_beside(file, data, "weights")
            constants = encoding.arrays_beside(file, data, "constants")
            programs = dict(_decoded(entry, weights, constants) for entry in data["signatures"])
            name = str(data["name"])
        return cls(xp, name, weights, programs)


class RecordingFunction(Function):
    """A function that records a program at the first call with each signature."""

    # for the message if a call writes weights: their name, and how to call the function without writes
    weights_label: str
    stateless: str

    def recorded(self, signature: CallSignature) -> Recorded:
        program = self.programs.get(signature)
        if program is None:
            program = self.programs[signature] = self._record(signature)
        return program

    def evaluate(self, weights: dict[str, Array], args: Any, kwargs: Any, seed: Array | None) -> tuple[Any, Any]:
        """Call the function on arrays of the recording backend. Returns (results, names of the weights that it
        writes)."""
        raise NotImplementedError

    def _record(self, signature: CallSignature) -> Recorded:
        results: Any = None

        def run(xp: Backend, *arrays: Array) -> list[Array]:
            nonlocal results
            remaining = iter(arrays)
            weights = {name: next(remaining) for name in self.weights}
            args, kwargs = unflatten(signature.arguments, remaining)
            out, written = self.evaluate(weights, args, kwargs, next(remaining, None))
            if written:
                raise ValueError(
                    f"{self.__name__} writes its {self.weights_label} ({', '.join(written)}), but a plain function"
                    f" has no state: {self.stateless}"
                )
            results, flat = flatten(out, xp.operand, f"what {self.__name__} returns")
            return flat

        specs = [*specs_of(self.weights.values()), *signature.specs, *[SEED] * signature.seeded]
        return Recorded(record(run, specs), results)


def _decoded(
    entry: Any, weights: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray]
) -> tuple[CallSignature, Recorded]:
    program = encoding.decode(entry["program"], constants)
    inputs = program.inputs
    if inputs[: len(weights)] != specs_of(weights.values()):
        raise ValueError("a program uses weights that the file does not have")
    seeded = bool(entry["seeded"])
    specs = inputs[len(weights) : len(inputs) - seeded]
    arguments, results = from_json(entry["arguments"]), from_json(entry["results"])
    kind, args, kwargs = arguments
    if (kind, args[0], kwargs[0]) != ("tuple", "tuple", "dict"):
        raise ValueError("arguments are a tuple and a dictionary")
    _check(arguments, len(specs))
    _check(results, len(program.outputs))
    return CallSignature(arguments, tuple(specs), seeded), Recorded(program, results)


def _check(template: Template, count: int) -> None:
    numbers = iter(range(count))
    unflatten(template, numbers)
    if next(numbers, None) is not None:
        raise ValueError("a program has more arrays than its arguments or results have places")


def specs_of(arrays: Iterable[np.ndarray]) -> list[ShapeDtype]:
    return [ShapeDtype(tuple(a.shape), a.dtype) for a in arrays]


SEED = ShapeDtype((2,), dtypes.uint32)


def _frozen(a: np.ndarray) -> np.ndarray:
    a = a.view()
    a.setflags(write=False)
    return a
