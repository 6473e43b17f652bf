"""A pair of the same network in two frameworks, and what its programs have in common: weights by name, a forward pass.

A program is a PyTorch module in evaluation mode, a Keras model, a pair of a function and its pytree of weights, or a
callable Equinox or Flax NNX module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Program = Any
Weights = dict[str, np.ndarray]
CLOSE = 1e-5  # of the largest value: results that are called equal


@dataclass(frozen=True)
class Pair:
    """Two programs that other people wrote of one network."""

    name: str
    source: Callable[[], Program]
    target: Callable[[], Program]
    # The arguments of both at each of two sizes, as NumPy arrays.
    examples: Callable[[int], tuple[tuple[Any, ...], tuple[Any, ...]]]
    convert: (
        Callable[[Program, Program], Program] | None
    )  # the target with the source's weights; the judge of a mapping
    table: str = ""  # the package whose own table `convert` applies; without, it is written here
    table_error: float = 0.0  # relative to the largest value, of a table that rounds weights
    traps: str = ""
    source_outputs: Callable[[Any], Any] = lambda result: result  # those that have a counterpart, in the target's order
    target_outputs: Callable[[Any], Any] = lambda result: result
    sizes: Sequence[int] = (0, 1)
    difference: str = ""  # the reason of the first difference, of programs that are known not to be equal
    packages: Sequence[str] = ()  # those of the dependency group `port`

    def source_arguments(self, size: int) -> tuple[Any, ...]:
        return self.examples(size)[0]

    def target_arguments(self, size: int) -> tuple[Any, ...]:
        return self.examples(size)[1]

    def apart(self, source: Program, target: Program, size: int) -> float:
        """Return the largest difference of the outputs, relative to the largest value of each."""
        ours, theirs = self.examples(size)
        a = leaves(self.source_outputs(run(source, *ours)))
        b = leaves(self.target_outputs(run(target, *theirs)))
        if len(a) != len(b):
            raise ValueError(f"{self.name}: {len(a)} outputs of the source, {len(b)} of the target")
        return max(difference(x, y) for x, y in zip(a, b, strict=True))


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference relative to the largest value; images may be channels first or last."""
    if a.shape != b.shape and a.ndim == 4:
        b = b.transpose(0, 3, 1, 2)
    if a.shape != b.shape:
        raise ValueError(f"shapes {a.shape} and {b.shape}")
    return float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))


def kind(program: Program) -> str:
    """Return the framework of a program: "torch", "keras", "nnx", "equinox" or "jax", a function with its weights."""
    if isinstance(program, tuple):
        return "jax"
    modules = [base.__module__.partition(".")[0] for base in type(program).__mro__]
    for module, name in {"torch": "torch", "keras": "keras", "flax": "nnx", "equinox": "equinox"}.items():
        if module in modules:
            return name
    raise TypeError(f"no program of a pair: {type(program)}")


def run(program: Program, *arguments: Any) -> Any:
    """Return what the program computes in its own framework."""
    match kind(program):
        case "torch":
            import torch

            with torch.no_grad():
                return program(*_mapped(torch.from_numpy, arguments))
        case "keras":
            return program(*_mapped(np.asarray, arguments), training=False)
        case "jax":
            import jax

            function, tree = program
            return jax.jit(function)(tree, *arguments)
        case _:
            return program(*_mapped(_jax_array, arguments))


def leaves(result: Any) -> list[np.ndarray]:
    """Return the arrays of an output in order."""
    if result is None:
        return []
    if isinstance(result, Mapping):
        return [leaf for value in result.values() for leaf in leaves(value)]
    if isinstance(result, tuple | list):
        return [leaf for value in result for leaf in leaves(value)]
    return [np.asarray(result, dtype=np.float64)]


def weights(program: Program) -> Weights:
    """Return the weights by the names that the framework gives them, running statistics among them."""
    match kind(program):
        case "torch":
            return {name: value.detach().numpy() for name, value in program.state_dict().items()}
        case "keras":
            return {name: np.asarray(variable) for name, variable in _variables(program).items()}
        case _:
            return dict(zip(*_tree_weights(program)[:2], strict=True))


def load(program: Program, values: Mapping[str, np.ndarray]) -> Program:
    """Return the program with weights of these names replaced; modules and Keras models are changed in place."""
    match kind(program):
        case "torch":
            import torch

            own = program.state_dict()
            with torch.no_grad():
                for name, value in values.items():
                    own[name].copy_(torch.from_numpy(_fits(name, value, own[name].shape)))
            return program
        case "keras":
            variables = _variables(program)
            for name, value in values.items():
                variables[name].assign(_fits(name, value, variables[name].shape))
            return program
        case _:
            names, arrays, build = _tree_weights(program)
            unknown = values.keys() - set(names)
            if unknown:
                raise KeyError(f"no weights of these names: {sorted(unknown)}")
            return build([_fits(n, values.get(n, a), a.shape) for n, a in zip(names, arrays, strict=True)])


def randomized(program: Program, seed: int, keep: str = "") -> Program:
    """Return the program with no two weights alike: what frameworks set to zeros or ones is random, too.

    keep: a regular expression of the names of weights that are constants of the network.
    """
    generator = np.random.default_rng(seed)
    replaced = {}
    for name, value in weights(program).items():
        if value.dtype.kind != "f" or (keep and re.search(keep, name)):
            continue
        noise = generator.standard_normal(value.shape)
        if value.size and np.ptp(value) == 0:
            if any("var" in part for part in re.split(r"[./]", name)[-2:]):
                new = 0.5 + generator.random(value.shape)
            else:  # about one for a scale, about zero for a bias, and for the scales of layers that begin as if absent
                new = (value.flat[0] >= 0.1) + 0.2 * noise
        else:
            # Not less than what keeps the size of values: of small ones, activations are nearly linear.
            new = noise * max(value.std(), value.size**-0.25 * (value.ndim > 1))
        replaced[name] = new.astype(value.dtype)
    return load(program, replaced)


def images(batch: int, side: int, seed: int = 0) -> np.ndarray:
    """Return random images, channels last."""
    return np.random.default_rng(seed).standard_normal((batch, side, side, 3)).astype(np.float32)


def tokens(batch: int, length: int, vocabulary: int, seed: int = 0) -> np.ndarray:
    """Return random token numbers."""
    return np.random.default_rng(seed).integers(2, vocabulary, (batch, length)).astype(np.int64)


def channels_first(image: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(image.transpose(0, 3, 1, 2))


def _variables(model: Program) -> dict[str, Any]:
    """Return the variables of a Keras model by path; some models have several of the same."""
    variables: dict[str, Any] = {}
    for variable in model.weights:
        same = sum(name.partition("#")[0] == variable.path for name in variables)
        variables[f"{variable.path}#{same + 1}" if same else variable.path] = variable
    return variables


def _fits(name: str, value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    if tuple(value.shape) != tuple(shape):
        raise ValueError(f"{name}: {tuple(value.shape)} for {tuple(shape)}")
    return np.ascontiguousarray(value)


def _tree_weights(program: Program) -> tuple[list[str], list[np.ndarray], Callable[[list[np.ndarray]], Program]]:
    """Return names and arrays of a JAX program, and a function that builds it of others."""
    import jax

    rebuilt: Callable[[Any], Program]
    match kind(program):
        case "jax":
            tree, rebuilt = program[1], lambda new: (program[0], new)
        case "nnx":
            from flax import nnx

            graph, state, rest = nnx.split(program, (nnx.Param, nnx.BatchStat), ...)
            tree, rebuilt = state, lambda new: nnx.merge(graph, new, rest)
        case _:
            import equinox as eqx

            tree, static = eqx.partition(program, eqx.is_inexact_array)
            rebuilt = lambda new: eqx.combine(new, static)  # noqa: E731
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value") for path, _ in paths]

    def build(arrays: list[np.ndarray]) -> Program:
        return rebuilt(structure.unflatten([jax.numpy.asarray(array) for array in arrays]))

    return names, [np.asarray(leaf) for _, leaf in paths], build


def _jax_array(array: np.ndarray) -> Any:
    import jax

    return jax.numpy.asarray(array)


def _mapped(function: Callable[[np.ndarray], Any], value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _mapped(function, item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_mapped(function, item) for item in value)
    return function(value) if isinstance(value, np.ndarray) else value
