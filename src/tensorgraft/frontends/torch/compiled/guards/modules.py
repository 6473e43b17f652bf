"""The guard of modules: their attributes, modes, classes and hooks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch.nn.utils import parametrize

from tensorgraft.compiled.captured_objects import is_program_class
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.tensors import cell_of, storages_of
from tensorgraft.frontends.torch.device import scripted
from tensorgraft.frontends.torch.sparse.parts import is_sparse
from tensorgraft.hub.straight_line import NotStraight, StraightLine

Tensor = torch.Tensor
requires_grad_of = attrgetter("requires_grad")
_END = object()  # after the last of what modules hold: one more, or one less, stands in its place
_ENDS = (_END, _END)


class _ValuesWithout:
    """An iterable over the values of a table, without those of some keys."""

    def __init__(self, table: dict[Any, Any], excluded: Collection[Any]) -> None:
        self._table, self._excluded = table, excluded

    def __iter__(self) -> Iterator[Any]:
        return (value for key, value in self._table.items() if key not in self._excluded)

    def keys(self) -> Iterator[Any]:
        return (key for key in self._table if key not in self._excluded)


_GLOBAL_HOOKS = [
    table
    for name, table in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and name.endswith("hooks") and isinstance(table, dict)
]


def global_hooks() -> list[Any]:
    """Return the hooks of all modules."""
    return [hook for table in _GLOBAL_HOOKS for hook in table.values()]


# tables of a module, which a program may replace (`m._forward_hooks = OrderedDict()`, `m.__dict__.update(...)`)
_TABLES = (
    *("_parameters", "_buffers", "_modules"),
    *("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"),
)
_mode_and_tables = itemgetter("training", *_TABLES)

_METHODS = {name for name, value in vars(torch.nn.Module).items() if callable(value)}

# tables of hooks, and of the identities of those that are called in another way
_MARKS = (
    ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    ("_forward_hooks", "_forward_hooks_with_kwargs"),
    ("_forward_hooks", "_forward_hooks_always_called"),
)


def _marks_of(holder: Any, prefix: str = "") -> list[Any]:
    """Return how the hooks of a module are called (with keyword arguments, also after an exception), or those of all
    modules, whose names have a prefix."""
    marked = ((getattr(holder, prefix + hooks), getattr(holder, prefix + marks, ())) for hooks, marks in _MARKS)
    calls = [key in marks for hooks, marks in marked for key in hooks]
    return [*calls, getattr(holder, f"{prefix}_is_full_backward_hook")]


def _tensors_of(m: torch.nn.Module) -> Iterator[Tensor | None]:
    return chain(m._parameters.values(), m._buffers.values())


def _hooks_of(m: torch.nn.Module, used: Collection[str] = ()) -> list[dict[int, Any]]:
    """Return the tables of hooks of a module's calls, and of others (`state_dict`) those that are in use."""
    tables = [m._forward_pre_hooks, m._forward_hooks, m._backward_pre_hooks, m._backward_hooks]
    others = [vars(m).get(name) for name in sorted(used) if name.endswith("_hooks")]
    return tables + [of for of in others if isinstance(of, dict) and not any(of is table for table in tables)]


class Modules:
    """Modules keep their submodules, parameters and buffers, these their storages, and no hooks are added."""

    def __init__(
        self,
        modules: Iterable[torch.nn.Module],
        rebound: Collection[tuple[int, Any]] = (),
        used: Mapping[int, Collection[str]] | None = None,
    ) -> None:
        """`rebound`: places that the function gives other values: a table's identity, and a key. `used`: names of
        attributes that the function uses, by modules' identity."""
        modules = scripted.with_parts({id(m): m for m in modules}.values())
        used = used or {}
        self._take_tables(modules, rebound, used)
        self._names = self._names_now()
        self._expected = list(chain.from_iterable(self._full))
        self._until_end = [*self._expected, _END]
        self._modules = modules
        self._training = [scripted.attributes_of(m) for m in modules]
        self._modes = [d.get("training") for d in self._training]
        self._hooks = global_hooks()
        self._hooked: list[Any] = [(m,) for m in modules if any(_hooks_of(m))]
        if self._hooks:
            self._hooked.append((torch.nn.modules.module, "_global"))
        self._marks = self._marks_now()
        self._kinds = list(map(type, modules))
        self.classes = list(dict.fromkeys(self._kinds))
        # a method of its own makes one entry more; others that the function itself adds may come
        derived = dict.fromkeys(cls for kind in self.classes for cls in kind.__mro__ if is_program_class(cls))
        instance_dicts = [d for d in self._training if isinstance(d, dict)]
        whole = {"training", *_TABLES}  # a class of the program may have one of them as a property
        self._with_tables = [
            m for m, d in zip(modules, self._training, strict=True) if isinstance(d, dict) and whole <= d.keys()
        ]
        self._tables = self._tables_now()
        self._dicts: list[Any] = [*instance_dicts]
        self._dicts += [vars(cls) for cls in derived if issubclass(cls, torch.nn.Module)]
        self._lengths = list(map(len, self._dicts))
        self._methods = self._methods_now()
        own_methods = zip(instance_dicts, self._methods, strict=False)  # those of classes are guarded by their names
        self._overrides = [(d, *entry) for d, own in own_methods for entry in own.items()]
        # one that comes as another attribute goes leaves the length as it was
        self._inheriting = [d for d in instance_dicts if "forward" not in d]
        hook_tables = [*chain.from_iterable(_hooks_of(m, used.get(id(m), ())) for m in modules), *_GLOBAL_HOOKS]
        self.hooks = [hook for table in hook_tables for hook in table.values()]
        self._scripted = [d for d in self._training if isinstance(d, scripted.ScriptAttributes)]
        tensors = {id(t): t for t in self._expected if isinstance(t, Tensor)}
        self._tensors = list(tensors.values())
        self._requires_grad = [t.requires_grad for t in self._tensors]
        self._tensor_kinds = [*map(type, self._tensors)]
        # parts of sparse tensors have guards of their own (`sparse_tensors.SparseGuard`)
        self._device_tensors = [t for t in self._tensors if t.device.type == TYPE and not is_sparse(t)]
        for t in self._device_tensors:
            cell_of(t)  # raises for those without one
        self._storages = storages_of(self._device_tensors)
        self.rebindings = state.rebindings

    def _take_tables(
        self,
        modules: Iterable[torch.nn.Module],
        rebound: Collection[tuple[int, Any]],
        used: Mapping[int, Collection[str]],
    ) -> None:
        """Take the tables of parts and hooks whose values are compared, and those that have to stay empty."""
        tables: list[dict[Any, Any]] = []
        self._empty: list[dict[Any, Any]] = []
        named: set[int] = set()  # tables in which names count, too
        for m in modules:
            parts = m._parameters, m._buffers, m._modules
            tables += parts
            named.update(map(id, parts))
            for hooks in _hooks_of(m, used.get(id(m), ())):
                (tables if hooks else self._empty).append(hooks)
        excluded_of: dict[int, set[Any]] = {}
        for table_id, key in rebound:
            excluded_of.setdefault(table_id, set()).add(key)
        saving = [m for m in modules if "_non_persistent_buffers_set" in used.get(id(m), ())]
        self._unsaved: list[set[str]] = [m._non_persistent_buffers_set for m in saving]  # for `state_dict`
        self._unsaved_before = [*map(set, self._unsaved)]
        self._full: list[Any] = []
        self._named: list[Any] = []
        for table in tables:
            if excluded := excluded_of.get(id(table)):
                self._full.append(without := _ValuesWithout(table, excluded))
                self._named.append(without.keys)
            elif table:
                self._full.append(scripted.values_of(table))
                if id(table) in named:
                    self._named.append(table.keys)
        tables = [table for table in tables if id(table) not in excluded_of]
        self._empty += [table for table in tables if not table]

    @property
    def tensors(self) -> set[int]:
        """The identities of the tensors in them."""
        return set(map(id, self._tensors))

    def _methods_now(self) -> list[dict[str, Any]]:
        """Return the methods of `torch.nn.Module` that modules and their classes have themselves."""
        return [{name: d[name] for name in _METHODS & d.keys()} for d in self._dicts]

    def _tables_now(self) -> list[Any]:
        """Return the modes of modules and their tables, one after the other."""
        return [*chain.from_iterable(map(_mode_and_tables, map(vars, self._with_tables)))]

    def _names_now(self) -> list[list[str]]:
        return [[*keys()] for keys in self._named]

    def _marks_now(self) -> list[list[Any]]:
        return [_marks_of(*holder) for holder in self._hooked]

    def hold(self) -> bool:
        if not self._modules:
            return True
        if not all(map(is_, self._tables_now(), self._tables)):
            return False
        if any(self._empty) or not all(map(is_, chain(chain.from_iterable(self._full), _ENDS), self._until_end)):
            return False
        if self._names_now() != self._names or self._unsaved != self._unsaved_before:
            return False
        if self._marks_now() != self._marks:
            return False
        if [d.get("training") for d in self._training] != self._modes or list(map(type, self._modules)) != self._kinds:
            return False
        if (self._hooks or any(_GLOBAL_HOOKS)) and global_hooks() != self._hooks:
            return False
        if any(own.get(name) is not method for own, name, method in self._overrides):
            return False
        if any("forward" in d for d in self._inheriting):
            return False
        lengths = list(map(len, self._dicts))
        if lengths != self._lengths:
            if self._methods_now() != self._methods:
                return False
            self._lengths = lengths
        for d in self._scripted:
            if not d.hold():
                return False
        if [*map(type, self._tensors)] != self._tensor_kinds:
            return False
        return list(map(requires_grad_of, self._tensors)) == self._requires_grad and self.have_storages()

    def have_storages(self) -> bool:
        """Return whether the tensors have the storages that they had."""
        if state.rebindings != self.rebindings:
            if storages_of(self._device_tensors) != self._storages:
                return False
            self.rebindings = state.rebindings
        return True

    def write(self, code: StraightLine) -> None:
        """Write the conditions of `hold`."""
        if self._scripted or any(table.__class__ is _ValuesWithout for table in self._full):
            raise NotStraight
        code.require_empty(self._empty)
        if any(isinstance(m, parametrize.ParametrizationList) for m in self._modules):  # a mode in the key of others
            code.require(f"not {code.name(parametrize)}._cache_enabled")
        start = 0
        for values in self._full:
            size = len(list(values))
            code.require_objects(code.name(values), self._expected[start : start + size])
            start += size
        tables = [keys.__self__ for keys in self._named]
        names = [*chain.from_iterable(self._names)]
        code.require(f"[*{code.name(chain.from_iterable)}({code.name(tables)})] == {code.name(names)}")
        if self._unsaved:
            code.require(f"{code.name(self._unsaved)} == {code.name(self._unsaved_before)}")
        if self._hooked:
            code.require(f"{code.name(self._marks_now)}() == {code.name(self._marks)}")
        self._write_tables(code)
        for d in self._dicts:
            code.require(f"len({code.name(d)}) == {len(d)}")
        for own, name, method in self._overrides:
            code.require(f"{code.name(own)}[{name!r}] is {code.name(method)}")
        for d in self._inheriting:
            code.require(f"'forward' not in {code.name(d)}")
        for m in self._modules:
            code.require(f"type({code.name(m)}) is {code.name(type(m))}")
        if self._hooks:
            code.require(f"{code.name(global_hooks)}() == {code.name(self._hooks)}")
        elif self._modules:
            code.require_empty(_GLOBAL_HOOKS)
        code.require_equal(requires_grad_of, self._tensors, self._requires_grad)
        code.require_equal(type, self._tensors, self._tensor_kinds)
        if self._device_tensors:
            code.require(
                f"{code.name(state)}.rebindings == {code.name(self)}.rebindings or {code.name(self)}.have_storages()"
            )

    def _write_tables(self, code: StraightLine) -> None:
        """Write that modules have their modes and tables. Comparing tuples is twice as fast as comparing their elements
        by `is`, and the same unless a table was replaced by one that holds other tensors of one element, which `==`
        compares by value."""
        single = [any(t is not None and t.numel() == 1 for t in _tensors_of(m)) for m in self._with_tables]
        others = [m for m, is_single in zip(self._with_tables, single, strict=True) if not is_single]
        expected = [_mode_and_tables(vars(m)) for m in others]
        code.require(f"[*map({code.name(_mode_and_tables)}, map(vars, {code.name(others)}))] == {code.name(expected)}")
        if any(single):
            code.require(f"all(map({code.name(is_)}, {code.name(self._tables_now)}(), {code.name(self._tables)}))")

    def failure(self, names: dict[int, str]) -> str:
        """Describe a change in the modules since the trace."""
        for m, d, mode in zip(self._modules, self._training, self._modes, strict=True):
            if d.get("training") is not mode:
                return f"{names.get(id(m)) or type(m).__name__}.training is {d.get('training')}, was {mode}"
        for m, kind in zip(self._modules, self._kinds, strict=True):
            if type(m) is not kind:
                return f"{names.get(id(m)) or kind.__name__} is a {type(m).__name__} now, was a {kind.__name__}"
        places = [(m, name) for m in self._with_tables for name in ("training", *_TABLES)]
        for (m, name), value, before in zip(places, self._tables_now(), self._tables, strict=True):
            if value is not before:
                return f"{names.get(id(m)) or type(m).__name__}.{name} is another object"
        if global_hooks() != self._hooks:
            return "a hook of all modules was added or removed"
        for now, known in zip(self._methods_now(), self._methods, strict=True):
            changed = [name for name in now.keys() | known.keys() if now.get(name) is not known.get(name)]
            if changed:
                return f"{min(changed)} of a module is another function"
        for d in self._scripted:
            if not d.hold():
                return d.failure()
        for t, before in zip(self._tensors, self._requires_grad, strict=True):
            if t.requires_grad is not before:
                return f"{names.get(id(t), 'a tensor')}.requires_grad is {t.requires_grad}, was {before}"
        for t, kind in zip(self._tensors, self._tensor_kinds, strict=True):
            if type(t) is not kind:
                return f"{names.get(id(t), 'a tensor')} is a {type(t).__name__} now, was a {kind.__name__}"
        if self._marks_now() != self._marks:
            return "a hook of a module is called in another way"
        values_now = list(chain.from_iterable(self._full))
        if any(self._empty) or len(values_now) != len(self._expected) or not all(map(is_, values_now, self._expected)):
            held_ids = set(map(id, self._expected))
            added = next((names.get(id(v)) for v in values_now if id(v) not in held_ids), None)
            return f"{added or 'a parameter, a buffer, a module or a hook'} was added, or took the place of another"
        if self._names_now() != self._names:
            return "a parameter, a buffer or a module has another name"
        if self._unsaved != self._unsaved_before:
            return "a buffer is persistent now, or is so no more"
        for t, storage in zip(self._device_tensors, self._storages, strict=True):
            if t.untyped_storage() is not storage:
                return f"{names.get(id(t), 'a parameter or buffer')} has another storage (its .data was set)"
        return "a module has changed"
