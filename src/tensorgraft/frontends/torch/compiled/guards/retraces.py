"""Reasons why a compiled function was traced again: differences from the calls that it had been traced for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import optree
import torch
from torch.utils import _pytree

from tensorgraft.compiled.captured_objects import DirectCaptures, is_plain_tensor, objects_behind
from tensorgraft.compiled.function import Expanded
from tensorgraft.compiled.source_location import quoted
from tensorgraft.compiled.values import SameObject, is_plain
from tensorgraft.frontends.torch.compiled.guards.assumptions import Guards, modes
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.source_location import Place, in_library
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.core.trees import Structure, unflatten_call
from tensorgraft.hub import settings

Tensor = torch.Tensor
_MODES = (
    "grad mode",
    "inference mode",
    "autocast",
    "dtype of autocast",
    "autocast policy",
    "settings",
    "placements over a mesh",
    "modes around",
)
_SHOWN = 4  # values of one argument in a message
_WAYS_OUT = (
    "  a number that changes:  pass it as a tensor on the device",
    "  a shape that changes:   pad to a few sizes, and mask what was added",
)
_FOLLOW_SHAPE = ("strides", "offset", "array inside")  # not reported if the shape has changed, too


# The parts of the key of a trace by the program's names for them, of each its properties: "" where it has but one.
NamedKey = dict[str, dict[str, Any]]


@dataclass
class History:
    """The traces of one compiled function."""

    fn: Callable[..., Any]
    reach: DirectCaptures
    calls: list[NamedKey] = field(default_factory=list)
    cold: list[NamedKey] = field(default_factory=list)  # the first that ran uncompiled (`recurring`)

    def call(self, leaves: Sequence[Any], structure: Structure, backend: Any) -> NamedKey:
        parts: NamedKey = {"arguments": {"": str(structure)}, "device": {"": backend.name}}
        parts |= {name: {"": value} for name, value in zip(_MODES, modes(), strict=True)}
        parts["settings"] = settings.by_name()
        for name, value in zip(self.reach.names(), self.reach.current(), strict=True):
            parts[f"variable {name}"] = {"": value if is_plain(value) else _Other(type(value).__name__, id(value))}
        first: dict[int, str] = {}
        for name, leaf in zip(leaf_names(self.fn, leaves, structure), leaves, strict=True):
            parts[f"argument {name}"] = _properties(leaf)
            if isinstance(leaf, Tensor) and leaf.device.type == TYPE:
                other = first.setdefault(id(cell_of(leaf)), name)
                parts[f"argument {name}"]["memory"] = "its own" if other == name else f"that of {other}"
        return parts

    def why(self, call: NamedKey, known: Sequence[Guards], leaves: Sequence[Any]) -> list[str]:
        """Describe the differences of a call from earlier ones. `known`: guards of the traces with its key."""
        if known:
            return [known[-1].failure(leaves, self.names(leaves))]
        differing = [differences(before, call) for before in reversed(self.calls)]
        return min(differing, key=lambda difference: difference[0], default=(0, []))[1]

    def names(self, leaves: Sequence[Any]) -> dict[int, str]:
        """Return the program's names for objects, by id."""
        roots = [("", self.fn), *((f"argument {i}", leaf) for i, leaf in enumerate(leaves))]
        return {id(value): name for name, value in reversed(list(objects_behind(roots, in_library))) if name}

    def too_many(self, name: str, most: int, call: NamedKey, why: Sequence[str], location: Place | None) -> str:
        lines = [f"{_where(name, location)} would be traced again: tg.jit has compiled {name} {most} times."]
        lines += ["What keeps changing:", *(self._changing([*self.calls, call]) or [f"  {w}" for w in why[:3]])]
        return "\n".join(
            [
                *lines,
                "Each is a program of its own. Ways out:",
                *_WAYS_OUT,
                "  anything else:          change it outside, or call the function without tg.jit",
            ]
        )

    def keeps_changing(self, name: str, line: Place | None) -> str | None:
        """Return a warning of signatures that run cold one after the other; None if nothing that has a name changes."""
        if not (changing := self._changing([*self.calls, *self.cold])):
            return None
        return "\n".join(
            [
                f"{_where(name, line)} runs uncompiled: tg.jit compiles a new signature of {name} when it comes back.",
                "What keeps changing:",
                *changing,
                "Padded to a few sizes, all calls would be compiled ones. Ways out:",
                *_WAYS_OUT,
                '  each is worth it:       tg.jit(fn, compile="first") compiles at once',
            ]
        )

    def _changing(self, calls: Sequence[NamedKey]) -> list[str]:
        """Return the parts that change most among calls, a line for each."""
        changing = [(part, values) for part in calls[-1] if len(values := _values(part, calls)) > 1]
        lines = []
        for part, values in sorted(changing, key=lambda item: -len(item[1]))[:3]:
            end = f", ... ({len(values)} kinds)" if len(values) > _SHOWN else ""
            lines.append(f"  {part}: {', '.join(values[:_SHOWN])}{end}")
        return lines


def _where(name: str, location: Place | None) -> str:
    return name if location is None else quoted(*location)


def _values(part: str, calls: Sequence[NamedKey]) -> list[str]:
    """Return the values that a part has had in these calls, in words."""
    values = [c[part] for c in calls if part in c]
    varying = [p for p in values[0] if any(f.get(p) != values[0][p] for f in values)]
    if "shape" in varying:
        varying = [p for p in varying if p not in _FOLLOW_SHAPE]
    return list(dict.fromkeys(", ".join(f"{p} {f.get(p)}".strip() for p in varying) for f in values))


@dataclass(frozen=True)
class _Other:
    """An object that is known by its identity."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"another {self.kind}"


def differences(before: NamedKey, new_call: NamedKey) -> tuple[int, list[str]]:
    """Return the number of differences between two calls, and a description for each part that differs."""
    count, texts = 0, []
    for name in dict.fromkeys((*new_call, *before)):
        old, new = before.get(name), new_call.get(name)
        if old is None or new is None:
            count += 1
            texts.append(f"{name}: {'was given' if new is None else 'was not given'} before")
            continue
        properties = [p for p in new if p not in old or old[p] != new[p] or type(old[p]) is not type(new[p])]
        count += len(properties)
        if "shape" in properties:
            properties = [p for p in properties if p not in _FOLLOW_SHAPE]
        if len(properties) > 1:  # the other says it
            properties = [p for p in properties if p != "array inside"]
        if properties:
            texts.append(f"{name}: " + "; ".join(_change(p, old.get(p), new[p]) for p in properties))
    if any(text.startswith("argument ") for text in texts):  # then that says it
        texts = [text for text in texts if not text.startswith("arguments:")]
    return count, texts


def _change(name: str, old_part: Any, new_part: Any) -> str:
    if isinstance(new_part, _Other) and isinstance(old_part, _Other):
        return f"another {new_part.kind}"
    if name:
        return f"{name} {new_part}, was {old_part}"
    return f"{_value_text(new_part)}, was {_value_text(old_part)}"


def _value_text(value: Any) -> str:
    return str(value) if isinstance(value, torch.dtype | _Other) else repr(value)


def _properties(leaf: Any) -> dict[str, Any]:
    if not isinstance(leaf, Tensor):
        return {"": leaf if is_plain(leaf) else _Other(type(leaf).__name__, id(leaf))}
    properties = {
        "device": str(leaf.device),
        "dtype": leaf.dtype,
        "shape": tuple(leaf.shape),
        "strides": leaf.stride(),
        "offset": leaf.storage_offset(),
        "requires_grad": leaf.requires_grad,
        "is_leaf": leaf.is_leaf,
        "conj": leaf.is_conj(),
        "neg": leaf.is_neg(),
    }
    if is_plain_tensor(leaf):
        properties["attributes"] = {k: v if is_plain(v) else SameObject(v) for k, v in leaf.__dict__.items()}
    if leaf.device.type == TYPE:
        cell = cell_of(leaf)
        array = cell.array
        properties["array inside"] = f"{array.scheme if cell.backend.compound else array.dtype} {tuple(array.shape)}"
    return properties


def leaf_names(fn: Callable[..., Any], leaves: Sequence[Any], structure: Structure) -> list[str]:
    """Return the program's names for the leaves of a call: `x`, `batch['ids']`."""
    call: Any = unflatten_call(structure, list(leaves))
    try:
        known = [
            p.name
            for p in inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):  # some built-in functions have none
        known = []
    paths = optree.tree_paths(call, none_is_leaf=True, namespace="torch")
    count = structure.count if isinstance(structure, Expanded) else len(leaves)
    if len(paths) != count:  # containers that PyTorch's own pytree knows alone
        try:
            keyed = _pytree.tree_flatten_with_path(call)[0]
        except ValueError:  # the program has not said what the parts of a class of its own are called
            keyed = []
        paths = [tuple(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k))) for k in path) for path, _ in keyed]
    names = []
    for kind, argument, *rest in paths:
        name = argument if kind == 1 else known[argument] if argument < len(known) else f"args[{argument}]"
        names.append(name + "".join(f"[{key!r}]" for key in rest))
    return names + [f"args, part {k}" for k in range(len(leaves) - len(names))]  # parts of objects
