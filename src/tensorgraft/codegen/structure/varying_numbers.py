"""Numbers that differ between the calls of a function: expressions of sizes, or arguments of it."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorgraft.codegen.structure.functions import Invoke, SourceFunction, Static, attribute_of
from tensorgraft.codegen.structure.size_merging import Extent, Quantity
from tensorgraft.codegen.structure.sizes import Sizes
from tensorgraft.codegen.trace import SourceStep, Var, changed, outputs_of
from tensorgraft.codegen.words import WORDS
from tensorgraft.hub.operations import operations

# arguments that are extents of arrays: what differs between modules in them is one of their arrays' extents
_EXTENTS = frozenset({"shape", "sizes", "n"})


def extract_numbers(
    function: SourceFunction,
    originals: list[list[SourceStep]],
    n: int,
    root: bool,
    attributes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, list[Any]]:
    """Make arguments of numbers that differ between the instances of a function and do not follow from sizes of its
    arguments, except in the root. `attributes` of the modules suggest names. Returns {name: the value in each
    instance}."""
    numbers = _VaryingNumbers(function, n, root, attributes)
    for i, call in enumerate(function.calls):
        assert isinstance(call, SourceStep)
        other_calls = [calls[i] for calls in originals]
        if isinstance(call, Invoke):
            statics = {
                k: numbers.settled(v, [o.statics[k] for o in other_calls], k)  # type: ignore[attr-defined]
                for k, v in call.statics.items()
            }
            function.calls[i] = changed(call, statics=statics)
        else:
            names = parameter_names(call.method)
            args = tuple(
                numbers.settled(a, [o.args[j] for o in other_calls], names[min(j, len(names) - 1)], call.method)
                for j, a in enumerate(call.args)
            )
            kwargs = {
                k: numbers.settled(v, [o.kwargs[k] for o in other_calls], k, call.method)
                for k, v in call.kwargs.items()
            }
            function.calls[i] = changed(call, args=args, kwargs=kwargs)
        numbers.see(outputs_of(call))
    return numbers.statics


class _VaryingNumbers:
    """The numbers of a function that differ, and the sizes that its arrays have told so far."""

    def __init__(self, function: SourceFunction, n: int, root: bool, attributes: Sequence[Mapping[str, Any]]) -> None:
        self._function, self._n, self._root, self._attributes = function, n, root, attributes
        self._known_extents: list[tuple[Any, Any]] = []
        self.see([*function.arguments, *function.parameters])
        self.statics: dict[str, list[Any]] = {}
        self._named: dict[str, Static] = {}

    def see(self, arrays: Iterable[Var]) -> None:
        for v in arrays:
            self._known_extents += [(_values(d, self._n), None) for d in v.shape if d is not Ellipsis]

    def settled(self, tree: Any, trees: list[Any], name: str, method: str = "") -> Any:
        """Return an argument of a call, with statics for numbers that are told by nothing else; `trees`: that argument
        in each instance."""
        if not _varies(tree):
            return tree
        sizes = Sizes(self._known_extents)
        if _is_expressible(tree, sizes) and any(map(_varies, trees)):
            return tree
        if name in _EXTENTS and isinstance(tree, tuple) and all(d in sizes for d in tree):
            return tree
        if name == "shape" and method == "reshape" and _is_inferred(tree, sizes):
            return tree  # -1
        if isinstance(tree, dict):
            return {k: self.settled(tree[k], [t[k] for t in trees], k, method) for k in tree}
        if isinstance(tree, list | tuple):
            return type(tree)([self.settled(x, [t[i] for t in trees], name, method) for i, x in enumerate(tree)])
        if isinstance(tree, slice):
            ends = ("start", "stop", "step")
            return slice(*[self.settled(getattr(tree, e), [getattr(t, e) for t in trees], e) for e in ends])
        return tree if self._root else self._static(trees, name)

    def _static(self, trees: list[Any], name: str) -> Static:
        for known, values in self.statics.items():
            if repr(values) == repr(trees) and known.rstrip("0123456789_") == name:
                return self._named[known]
        known_as = attribute_of(trees, self._attributes)
        static_name = next(k for k in itertools.chain(known_as, [name], (f"{name}_{i}" for i in itertools.count(2)))
                     if k not in self.statics and k not in self._function.argument_names)  # fmt: skip
        self.statics[static_name] = trees
        self._named[static_name] = Static(static_name)
        return self._named[static_name]


def _is_inferred(shape: Any, sizes: Sizes) -> bool:
    """Return True for an extent of a new shape that follows from the others."""
    if not isinstance(shape, tuple):
        return False
    return sum(isinstance(d, Extent) for d in shape) == 1 or sum(d not in sizes for d in shape) == 1


def _values(x: Any, n: int) -> tuple[int, ...]:
    return x.values if isinstance(x, Extent) else (int(x),) * n


def _varies(tree: Any) -> bool:
    """Return whether a number in the tree depends on the sizes of the program's arguments."""
    if isinstance(tree, list | tuple):
        return any(map(_varies, tree))
    if isinstance(tree, dict):
        return any(map(_varies, tree.values()))
    if isinstance(tree, slice):
        return any(map(_varies, (tree.start, tree.stop, tree.step)))
    return isinstance(tree, Extent | Quantity)


def _is_expressible(tree: Any, sizes: Sizes) -> bool:
    """Return whether every number in the tree has an expression in these sizes; arrays need none."""
    if isinstance(tree, Extent | Quantity):
        return sizes.expression_exists(tree)
    if isinstance(tree, list | tuple):
        return all(_is_expressible(x, sizes) for x in tree)
    if isinstance(tree, dict):
        return all(_is_expressible(x, sizes) for x in tree.values())
    if isinstance(tree, slice):
        return all(_is_expressible(x, sizes) for x in (tree.start, tree.stop, tree.step))
    return True


def parameter_names(method: str) -> list[str]:
    """Return the parameter names of an operation of the hub or a word, without the backend."""
    fn = WORDS.get(method) or operations().get(method)
    if fn is None:
        return ["value"]
    return list(inspect.signature(fn).parameters)[1:] or ["value"]
