"""Guards for Python values in attributes that a traced function reads: `self.scale`, `module.eps`.

They are constants of the program, so a trace is valid only while they are unchanged. While a function is traced, the
attributes that it reads of modules, of the object whose method it is, and of other objects that it reaches are
recorded. An attribute that is only incremented (`self.calls += 1`) is not read: that is a side effect
(`compiled/side_effects`), which each call repeats. For one that the function changes otherwise, the guard requires the
value before the call.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch

from tensorgraft.compiled.captured_objects import (
    in_library,
    is_called_back,
    is_of_program,
    is_program_class,
    is_python_class,
    slots_of,
)
from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.instructions import is_counted_up
from tensorgraft.compiled.libraries import PATCHED
from tensorgraft.compiled.lookups import Lookups
from tensorgraft.compiled.outside_calls import calling_frame
from tensorgraft.compiled.side_effects import Reachable, function_of, opaque, with_hooks
from tensorgraft.compiled.source_location import OURS
from tensorgraft.compiled.surroundings import Surroundings
from tensorgraft.compiled.tables import Slots
from tensorgraft.compiled.values import Replaceable, is_plain, is_same_value, plain
from tensorgraft.frontends.torch.core.settings import Flag, Flagged, flags
from tensorgraft.hub.straight_line import NotStraight, StraightLine

plain(torch.dtype, torch.device, torch.Size, torch.memory_format)
# their contents are inputs, or have other guards
_UNWATCHED = (torch.Tensor, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
opaque(*_UNWATCHED, torch.Generator, torch.amp.GradScaler)
PATCHED.append(torch.Tensor)


@functools.cache
def _of_optimizers() -> frozenset[str]:
    """Return the attributes that every optimizer has. PyTorch imports its compiler, which takes 3 s, when the first
    optimizer is created; one is therefore created here only after the program has created its own."""
    return frozenset({*dir(torch.optim.Optimizer), *vars(torch.optim.SGD([torch.empty(0)]))})


with_hooks(torch.optim.Optimizer, lambda optimizer: step_hooks(optimizer), _of_optimizers)
_OWN = frozenset({*dir(torch.nn.Module), *vars(torch.nn.Module())}) - {
    "training",
    "__dict__",
    "__reduce_ex__",
}  # attributes of `nn.Module` itself


def step_hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the functions that run around the steps of an optimizer: hooks, including those of all optimizers, and
    replacements of its `step`."""
    of_all = vars(sys.modules[torch.optim.Optimizer.__module__])
    tables = (
        of_all["_global_optimizer_pre_hooks"],
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        of_all["_global_optimizer_post_hooks"],
    )
    instance_hooks = [vars(optimizer)["step"]] if "step" in vars(optimizer) else []
    return instance_hooks + [hook for table in tables for hook in table.values()]


class Reads:
    """The attributes that were read, with their first values: plain ones and tensors, and for objects of the program's
    classes all others, which `surroundings` examines.

    `world` copies the attributes of an object before the function changes them; objects in `keyed` are part of the
    call's key.
    """

    def __init__(self, surroundings: Surroundings, world: Reachable, keyed: Collection[int]) -> None:
        self._surroundings, self._world, self._keyed = surroundings, world, keyed
        self._flags = flags()
        self.used: dict[int, set[str]] = {}  # names of attributes that this thread has read or written, of each owner
        self.written: dict[int, tuple[Any, set[str]]] = {}  # owners, and the names that it has set or deleted
        self.standard = world.standard  # reads of other instances of such classes do not concern the function
        self.owners: dict[int, Any] = {}  # {id: object}, for all objects of which attributes were read
        self.values: dict[int, dict[str, Any]] = {}
        self._counted: set[tuple[int, str]] = set()
        self._functions: dict[int, types.FunctionType] = {}  # methods and properties that were read
        self.dicts: dict[int, Any] = {}  # {id: owner whose `__dict__` the program has read}
        self.absent: dict[tuple[int, str], Any] = {}  # {(id of an owner, name): owner without that attribute}

    def meet(self, owner: Any) -> None:
        """Note an owner before anything is read of it."""
        self.owners[id(owner)] = owner
        self._world.watch(type(owner).__name__, owner)

    def uses(self, owner: Any, name: str) -> bool:
        """Return True if this thread has read or written an attribute; PyTorch reads attributes of modules in another
        way."""
        used = self.used.get(id(owner), ())
        return name in used or "__dict__" in used or (name in _OWN and isinstance(owner, torch.nn.Module))

    def note(self, owner: Any, name: str, value: Any, at: types.FrameType) -> None:
        self._world.packages.see(at.f_code, at.f_globals)
        copied = name == "__reduce_ex__"  # `copy` and `pickle` take all attributes
        if (copied and is_of_program(owner)) or (name == "__dict__" and not in_library(at.f_code.co_filename)):
            self.dicts[id(owner)] = owner
        known = self.values.setdefault(id(owner), {})
        if name in known or name.startswith("__") or id(owner) in self._keyed:
            return
        if isinstance(owner, torch.optim.Optimizer) and name in _of_optimizers():
            return
        if type(value) in (int, float) and is_counted_up(at.f_code, at.f_lasti):
            self._counted.add((id(owner), name))
            return
        own_names = _own_names(owner, name)
        if name not in own_names and (fn := _member(owner, name)) is not None:
            self._functions[id(fn)] = fn
        before = self._before(owner, name, value)
        if before is not value:
            if (id(owner), name) not in self._counted:  # the function has given it this value
                return
            value = before
        if is_plain(value):
            member = None if name in getattr(owner, "__dict__", ()) else _entry_of_class(owner, name)
            found = name in own_names or member is not None
            if not _is_computing(member) and (found or not _finds_itself(type(owner))):
                known[name] = value
            elif not hasattr(type(member), "__set__"):  # an entry of the object would take its place
                self.note_absent(owner, name)
        elif name not in own_names:  # one of its own_names would take the place of its class's
            self.note_absent(owner, name)
        elif isinstance(value, torch.Tensor):
            known[name] = value
        elif (
            isinstance(owner, torch.nn.Module)
            or is_of_program(owner)
            or id(owner) in self.standard
            or is_called_back(value)
        ):
            known[name] = value
            self._surroundings.add(f"{type(owner).__name__}.{name}", value)
            for obj in self._surroundings.new_objects():
                watch_class(type(obj))

    def note_absent(self, owner: Any, name: str) -> None:
        """Note that an attribute was read that does not exist; parts of a module are not found this way."""
        if id(owner) not in self._keyed and not any(name in table for table in _parts_of(owner)):
            self.absent[id(owner), name] = owner

    def _before(self, owner: Any, name: str, value: Any) -> Any:
        """Return the value of an attribute before the trace."""
        if isinstance(owner, Flagged):
            return self._flags.get((id(owner), name), value)
        own_attributes: Any = getattr(owner, "__dict__", ())
        of = own_attributes if name in own_attributes else self._world.slotted.get(id(owner))
        table = self._world.tables.get(id(of))
        return value if table is None or name not in _own_names(owner, name) else table.before.get(name)

    def look_up_absent(self) -> None:
        """Add attributes that were read and do not exist to the surroundings. To be called after the changes of the
        trace were undone."""
        spaces: dict[type, Any] = {}  # the same object for all, so that none is looked up twice
        for (_, name), owner in self.absent.items():
            classes = [spaces.setdefault(cls, vars(cls)) for cls in type(owner).__mro__ if is_python_class(cls)]
            found = next((k for k, table in enumerate(classes) if name in table), None)
            above = [*_parts_of(owner), *classes] if found is None else classes[:found]
            tables = [getattr(owner, "__dict__", {}), *above]
            if found is not None and isinstance(classes[found][name], types.MemberDescriptorType):  # a slot
                self._surroundings.look_up(type(owner).__name__, Lookups(attributes=[(owner, name)]))
            elif not any(name in table for table in tables):
                of_class = [] if found is None or not is_of_program(owner) else [classes[found]]
                places = [(table, name) for table in (*tables, *of_class)]
                self._surroundings.look_up(type(owner).__name__, Lookups(places))

    def stored(self) -> dict[int, set[str]]:
        """Return {id of an object: names of its attributes that were set}."""
        slotted = self._world.slotted
        places = (
            (getattr(owner, "__dict__", None), slotted.get(id(owner)), names) for owner, names in self.written.values()
        )
        return {id(of): names for attributes, slots, names in places for of in (attributes, slots) if of is not None}

    @property
    def counted(self) -> set[tuple[int, str]]:
        """The attributes that are counted up and not read otherwise, by the identity of the dictionary they are in."""
        only_counted = ((self.owners[key], name) for key, name in self._counted if name not in self.values.get(key, ()))
        return {(id(getattr(owner, "__dict__", None)), name) for owner, name in only_counted}

    def uncounted(self, changes: Iterable[Change]) -> str | None:
        """Return the name of an attribute that is incremented by a value that differs from call to call."""
        changed = {(id(c.table.of), key): c for c in changes for key in c.keys}
        for key, name in self.counted:
            if (change := changed.get((key, name))) is not None and name not in (change.counts or {}):
                return next(f"{type(o).__name__}.{name}" for o in self.owners.values() if id(vars(o)) == key)
        return None

    def functions(self, modules: Iterable[torch.nn.Module]) -> list[types.FunctionType]:
        """Return the methods and properties that were read, and the functions that calls of objects and modules run."""
        called_methods = ((m, "forward") for m in modules)
        calls = ((owner, "__call__") for owner in self.owners.values() if not isinstance(owner, torch.nn.Module))
        members = (
            function_of(vars(cls)[name])
            for owner, name in (*called_methods, *calls)
            for cls in type(owner).__mro__
            if name in vars(cls)
        )
        functions_by_id = {id(fn): fn for fn in (*self._functions.values(), *members) if fn is not None}
        return [fn for fn in functions_by_id.values() if not in_library(fn.__code__.co_filename)]

    def modules(self) -> list[torch.nn.Module]:
        return [owner for owner in self.owners.values() if isinstance(owner, torch.nn.Module)]


def _own_names(owner: Any, name: str) -> Collection[str]:
    """Return the names among which an attribute is that an object has itself."""
    own_names: Any = getattr(owner, "__dict__", ())
    return own_names if name in own_names else slots_of(type(owner))


def _member(owner: Any, name: str) -> types.FunctionType | None:
    return function_of(_entry_of_class(owner, name))


def _entry_of_class(owner: Any, name: str) -> Any:
    """Return the class attribute of an object by name, or None."""
    return next((vars(cls)[name] for cls in type(owner).__mro__ if name in vars(cls)), None)


def _finds_itself(cls: type, names: Sequence[str] = ("__getattr__", "__getattribute__")) -> bool:
    """Return True for a class of the program that looks up attributes itself. A guard reads none of these: that may
    have effects, and what the class looks at is guarded."""
    members = (vars(base).get(name) for base in cls.__mro__ for name in names)
    return any(isinstance(fn, types.FunctionType) and not in_library(fn.__code__.co_filename) for fn in members)


def _parts_of(owner: Any) -> tuple[Any, ...]:
    attributes = getattr(owner, "__dict__", {})
    return tuple(attributes[key] for key in ("_parameters", "_buffers", "_modules") if key in attributes)


def _is_computing(member: Any) -> bool:
    """Return whether an entry of a class is a property or the like, which computes an attribute."""
    return hasattr(type(member), "__get__") and not isinstance(member, types.MemberDescriptorType | Flag)


def _class_of(owner: Any) -> tuple[type]:
    return (type(owner),)


class _Active(threading.local):
    reads: Reads | None = None

    def __init__(self) -> None:
        self.classes: set[type] = set()  # those that are watched


_active = _Active()
_lock = threading.Lock()
_watched: dict[type, tuple[int, dict[str, Any]]] = {}  # classes: by how many traces, and their own methods


@contextlib.contextmanager
def recording_reads(reads: Reads, *owners: Any) -> Iterator[None]:
    """Context that notes this thread's reads of attributes of modules and of `owners`."""
    before, _active.reads = _active.reads, reads
    outer, _active.classes = _active.classes, set()
    watch_class(torch.nn.Module)
    watch_class(Flagged)
    try:
        for owner in owners:
            watch_class(type(owner))
        yield
    finally:
        for cls in _active.classes:
            _release(cls)
        _active.reads, _active.classes = before, outer


def watch_class(cls: type) -> None:
    """Record reads of attributes of a class's instances, too."""
    if not is_python_class(cls) or cls in _active.classes or issubclass(cls, tuple(_active.classes)):
        return
    if not issubclass(cls, _UNWATCHED) or (issubclass(cls, torch.optim.Optimizer) and is_program_class(cls)):
        _active.classes.add(cls)
        _watch(cls)


def _watch(cls: type) -> None:
    with _lock:
        count, own = _watched.get(cls, (0, {name: vars(cls).get(name) for name in _ACCESS}))
        if not count:
            original: Any = cls.__getattribute__
            wrappers = _recorded(original, _is_standard(cls)), _writing(cls.__setattr__), _writing(cls.__delattr__)
            for name, wrapper in zip(_ACCESS, wrappers, strict=True):
                setattr(cls, name, wrapper)
        _watched[cls] = (count + 1, own)


def _release(cls: type) -> None:
    with _lock:
        count, own = _watched.pop(cls)
        if count > 1:
            _watched[cls] = (count - 1, own)
            return
        for name, before in own.items():
            if before is not None:
                setattr(cls, name, before)
            elif name in vars(cls):
                delattr(cls, name)


# code that reads the `__dict__` of an object for one of its attributes
_READ_ALL = (OURS, sys.modules[torch.nn.Module.__module__].__file__ or "")
_ACCESS = ("__getattribute__", "__setattr__", "__delattr__")


def _writing(original: Callable[..., None]) -> Callable[..., None]:
    def write(self: Any, name: str, *value: Any) -> None:
        if (reads := _active.reads) is not None:
            reads.used.setdefault(id(self), set()).add(name)
            reads.written.setdefault(id(self), (self, set()))[1].add(name)
        original(self, name, *value)

    return write


def _is_standard(cls: type) -> bool:
    return not (is_program_class(cls) or issubclass(cls, torch.nn.Module | torch.optim.Optimizer | Flagged))


def _recorded(original: Callable[[Any, str], Any], standard: bool) -> Callable[[Any, str], Any]:
    """`standard`: of a class of the standard library."""

    def __getattribute__(self: Any, name: str) -> Any:
        reads = _active.reads
        if reads is None or (standard and id(self) not in reads.standard):
            return original(self, name)
        if id(self) not in reads.owners:
            _active.reads = None
            try:
                reads.meet(self)
            finally:
                _active.reads = reads
        at = calling_frame()
        if name != "__dict__" or not at.f_code.co_filename.startswith(_READ_ALL):
            reads.used.setdefault(id(self), set()).add(name)
        try:
            value = original(self, name)
        except AttributeError:
            if not name.startswith("__"):
                reads.note_absent(self, name)
            raise
        if name not in _OWN:
            _active.reads = None  # reads below are not the function's
            try:
                reads.note(self, name, value, at)
            finally:
                _active.reads = reads
        return value

    return __getattribute__


class Attributes:
    """The guard of attributes: they have the values that the function has read. To be created after the changes of the
    trace were undone. `slot`: returns a slot for a value that the function replaces, which may be another one at each
    call."""

    def __init__(self, reads: Reads, changes: Iterable[Change], written: Collection[int], slot: Any) -> None:
        """`written`: tables that the function does not read, by identity."""
        changed = {
            (id(c.table.of.of if isinstance(c.table.of, Slots) else c.table.of), key)
            for c in changes
            if isinstance(c.table.before, dict)
            for key in c.keys
        }
        self._groups: list[tuple[Callable[[Any], Any], Any]] = []
        self._names: list[tuple[Any, str]] = []
        self._expected: list[Any] = []
        for key, owner in reads.owners.items():
            own_id = id(getattr(owner, "__dict__", None))
            guarded = {name: value for name, value in reads.values.get(key, {}).items() if id(value) not in written}
            for name, value in guarded.items():
                if (own_id, name) in changed or (id(owner), name) in changed:
                    guarded[name] = slot(value) or value
            if _finds_itself(type(owner), ("__getattribute__",)):
                self._groups.append((_class_of, owner))
                self._names.append((owner, "__class__"))
                self._expected.append(type(owner))
                continue
            if not isinstance(owner, torch.nn.Module):  # the guard of modules includes their classes
                guarded["__class__"] = owner.__class__
            if guarded:
                # an attrgetter of several names returns a tuple
                names = [*guarded] if len(guarded) > 1 else [*guarded] * 2
                self._groups.append((attrgetter(*names), owner))
                self._names += [(owner, name) for name in names]
                self._expected += [guarded[name] for name in names]

    def hold(self) -> bool:
        if not self._names:
            return True
        try:
            values_now = [get(owner) for get, owner in self._groups]
        except AttributeError:
            return False
        if all(map(is_, chain.from_iterable(values_now), self._expected)):
            return True
        values = list(chain.from_iterable(values_now))
        if not all(map(is_same_value, values, self._expected)):
            return False
        if not any(expected.__class__ is Replaceable for expected in self._expected):
            self._expected = values
        return True

    def write(self, code: StraightLine) -> None:
        """Write that the attributes have the very values that were expected last."""
        if any(expected.__class__ is Replaceable for expected in self._expected):
            raise NotStraight
        places = {
            (id(owner), name): (owner, name, value)
            for (owner, name), value in zip(self._names, self._expected, strict=True)
        }
        for owner, name, value in places.values():
            is_class = name == "__class__" and value is type(owner)
            read = f"type({code.name(owner)})" if is_class else f"{code.name(owner)}.{name}"
            code.require(f"{read} is {code.name(value)}")

    def failure(self) -> str | None:
        """Describe the first attribute whose value has changed; None if none has."""
        for (owner, name), expected in zip(self._names, self._expected, strict=True):
            value = getattr(owner, name, None)
            if not is_same_value(value, expected):
                label = f"{type(owner).__name__}.{name}"
                shows_values = is_plain(value) and is_plain(expected)
                return f"{label} was {expected!r} and is {value!r}" if shows_values else f"{label} is another object"
        return None
