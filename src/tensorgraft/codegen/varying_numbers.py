"""Numbers that differ between the calls of a function: expressions of sizes, or arguments of it."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tensorgraft.codegen.functions import Invoke, SourceFunction, Static, attribute_of
from tensorgraft.codegen.size_merging import Extent, Quantity
from tensorgraft.codegen.sizes import Sizes
from tensorgraft.codegen.trace import SourceStep, changed, given
from tensorgraft.codegen.words import WORDS
from tensorgraft.hub.operations import operations

# arguments that are extents of arrays: what differs between modules in them is one of their arrays' extents
_EXTENTS = frozenset({"shape", "sizes", "n"})


def settle(
    function: SourceFunction,
    originals: list[list[SourceStep]],
    n: int,
    root: bool,
    attributes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, list[Any]]:
    """Numbers that no size of an argument tells become arguments, but of the program: name -> the value in each
    instance. `attributes` of the modules are names for them."""
    seen: list[tuple[Any, Any]] = []
    for v in [*function.arguments, *function.parameters]:
        seen += [(_values(d, n), None) for d in v.shape if d is not Ellipsis]
    statics: dict[str, list[Any]] = {}

    named: dict[str, Static] = {}

    def tell(tree: Any, trees: list[Any], name: str, method: str = "") -> Any:
        if not _varies(tree):
            return tree
        sizes = Sizes(seen)
        if _said(tree, sizes) and any(map(_varies, trees)):
            return tree
        if name in _EXTENTS and isinstance(tree, tuple) and all(d in sizes for d in tree):
            return tree
        if (
            name == "shape"
            and method == "reshape"
            and isinstance(tree, tuple)
            and (sum(isinstance(d, Extent) for d in tree) == 1 or sum(d not in sizes for d in tree) == 1)
        ):
            return tree  # -1
        if isinstance(tree, dict):
            return {k: tell(tree[k], [t[k] for t in trees], k, method) for k in tree}
        if isinstance(tree, list | tuple):
            return type(tree)([tell(x, [t[i] for t in trees], name, method) for i, x in enumerate(tree)])
        if isinstance(tree, slice):
            ends = [tell(getattr(tree, e), [getattr(t, e) for t in trees], e) for e in ("start", "stop", "step")]
            return slice(*ends)
        if root:
            return tree
        for known, values in statics.items():
            if repr(values) == repr(trees) and known.rstrip("0123456789_") == name:
                return named[known]
        known_as = attribute_of(trees, attributes)
        fresh = next(k for k in itertools.chain(known_as, [name], (f"{name}_{i}" for i in itertools.count(2)))
                     if k not in statics and k not in function.argument_names)  # fmt: skip
        statics[fresh] = trees
        named[fresh] = Static(fresh)
        return named[fresh]

    for i, call in enumerate(function.calls):
        assert isinstance(call, SourceStep)
        others = [calls[i] for calls in originals]
        if isinstance(call, Invoke):
            statics_of = {
                k: tell(v, [o.statics[k] for o in others], k)  # type: ignore[attr-defined]
                for k, v in call.statics.items()
            }
            function.calls[i] = changed(call, statics=statics_of)
        else:
            names = parameter_names(call.method)
            args = tuple(
                tell(a, [o.args[j] for o in others], names[min(j, len(names) - 1)], call.method)
                for j, a in enumerate(call.args)
            )
            kwargs = {k: tell(v, [o.kwargs[k] for o in others], k, call.method) for k, v in call.kwargs.items()}
            function.calls[i] = changed(call, args=args, kwargs=kwargs)
        for v in given(call):
            seen += [(_values(d, n), None) for d in v.shape if d is not Ellipsis]
    return statics


def _values(x: Any, n: int) -> tuple[int, ...]:
    return x.values if isinstance(x, Extent) else (int(x),) * n


def _varies(tree: Any) -> bool:
    """Say whether a number in the tree depends on the sizes of the program's arguments."""
    if isinstance(tree, list | tuple):
        return any(map(_varies, tree))
    if isinstance(tree, dict):
        return any(map(_varies, tree.values()))
    if isinstance(tree, slice):
        return any(map(_varies, (tree.start, tree.stop, tree.step)))
    return isinstance(tree, Extent | Quantity)


def _said(tree: Any, sizes: Sizes) -> bool:
    """Say whether every number in the tree has an expression in these sizes; arrays need none."""
    if isinstance(tree, Extent | Quantity):
        return sizes.expression_exists(tree)
    if isinstance(tree, list | tuple):
        return all(_said(x, sizes) for x in tree)
    if isinstance(tree, dict):
        return all(_said(x, sizes) for x in tree.values())
    if isinstance(tree, slice):
        return all(_said(x, sizes) for x in (tree.start, tree.stop, tree.step))
    return True


def parameter_names(method: str) -> list[str]:
    """Return the parameter names of an operation of the hub or a word, without the backend."""
    fn = WORDS.get(method) or operations().get(method)
    if fn is None:
        return ["value"]
    return list(inspect.signature(fn).parameters)[1:] or ["value"]
