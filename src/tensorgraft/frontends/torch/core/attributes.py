"""Python values behind attributes that a traced function reads: `self.scale`, `module.eps`.

They are constants of the program, so that a trace holds only as long as they do. While a function is traced, the
attributes that it reads of modules, and of the object that it is a method of, are noted: those with plain values. One
that the function itself changes (`self.ready = True`) is expected as it was before, so that the next call is traced
again. If that trace changes it too (`self.calls += 1`), no trace could ever serve two calls: it is not looked at any
more, and a warning says that Python runs while a function is traced, not at every call.
"""

from __future__ import annotations

import contextlib
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch

from tensorgraft.compiled.surroundings import Surroundings, is_of_program
from tensorgraft.compiled.values import is_plain, plain, same

plain(torch.dtype, torch.device, torch.Size, torch.memory_format)
_OWN = frozenset({*dir(torch.nn.Module), *vars(torch.nn.Module())}) - {"training"}  # of `nn.Module` itself


class Reads:
    """The attributes that were read, with the values that were found first: plain ones, and of objects of the program's
    own classes all others, which `surroundings` looks into."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self.owners: dict[int, Any] = {}  # by identity: everything that was read of, whatever was read
        self.values: dict[int, dict[str, Any]] = {}
        self._tensors: dict[int, dict[str, torch.Tensor]] = {}  # of the owners, when they were first read
        self._before: dict[int, tuple[Any, list[dict[str, Any]]]] = {}  # objects, and all that they had themselves

    def meet(self, owner: Any) -> None:
        """Note the tensors that an owner has before the function changes it."""
        self.owners[id(owner)] = owner
        self._tensors[id(owner)] = _tensors_of(owner)
        self.keep(owner)

    def keep(self, owner: Any) -> None:
        """Note what an object has, before the function runs."""
        if id(owner) not in self._before:
            self._before[id(owner)] = owner, [dict(table) for table in _tables_of(owner)]

    def restore(self) -> None:
        """Of a trace that failed: attributes that the function has given tensors of the trace are as they were."""
        for owner, tables in self._before.values():
            for now, before in zip(_tables_of(owner), tables, strict=False):
                for name, value in list(now.items()):
                    if not isinstance(value, torch.Tensor) or before.get(name) is value:
                        continue
                    if name in before:
                        now[name] = before[name]
                    else:
                        del now[name]

    def rebound(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """(an attribute, its tensor before, its tensor now) where the function has given it another tensor."""
        for key, before in self._tensors.items():
            owner = self.owners[key]
            now = _tensors_of(owner)
            for name, t in before.items():
                if name in now and now[name] is not t:
                    yield f"{type(owner).__name__}.{name}", t, now[name]

    def note(self, owner: Any, name: str, value: Any) -> None:
        known = self.values.setdefault(id(owner), {})
        if name in known or name.startswith("__"):
            return
        if is_plain(value):
            if not _computed(owner, name):
                known[name] = value
        elif name in getattr(owner, "__dict__", ()) and is_of_program(owner):
            known[name] = value
            self._surroundings.add(f"{type(owner).__name__}.{name}", value)
            for obj in self._surroundings.new_objects():
                watch_class(type(obj))

    def modules(self) -> list[torch.nn.Module]:
        return [owner for owner in self.owners.values() if isinstance(owner, torch.nn.Module)]


def _tensors_of(owner: Any) -> dict[str, torch.Tensor]:
    """Those of its classes, too, in whose place it may put its own."""
    tables = (*(vars(cls) for cls in reversed(type(owner).__mro__)), *_tables_of(owner))
    return {name: t for table in tables for name, t in table.items() if isinstance(t, torch.Tensor)}


def _tables_of(owner: Any) -> tuple[dict[str, Any], ...]:
    held = vars(owner) if hasattr(owner, "__dict__") and not isinstance(owner, type) else {}
    return held, held.get("_buffers") or {}, held.get("_parameters") or {}


def _computed(owner: Any, name: str) -> bool:
    """An attribute that a property or the like computes."""
    if name in getattr(owner, "__dict__", ()):
        return False
    held = next((vars(cls)[name] for cls in type(owner).__mro__ if name in vars(cls)), None)
    return hasattr(type(held), "__get__") and not isinstance(held, types.MemberDescriptorType)


class _Active(threading.local):
    reads: Reads | None = None

    def __init__(self) -> None:
        self.classes: set[type] = set()  # those that are watched


# what they hold is fed, or guarded, otherwise
_UNWATCHED = (torch.Tensor, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)


_active = _Active()
_lock = threading.Lock()
_watched: dict[type, tuple[int, Any]] = {}  # classes: by how many traces, and their own `__getattribute__`


@contextlib.contextmanager
def noting(reads: Reads, *owners: Any) -> Iterator[None]:
    """Inside, this thread's reads of attributes of modules and of `owners` are noted."""
    before, _active.reads = _active.reads, reads
    outer, _active.classes = _active.classes, set()
    watch_class(torch.nn.Module)
    try:
        for owner in owners:
            reads.keep(owner)
            watch_class(type(owner))
        yield
    finally:
        for cls in _active.classes:
            _release(cls)
        _active.reads, _active.classes = before, outer


def watch_class(cls: type) -> None:
    """Note what is read of its objects, too."""
    made_in_python = bool(cls.__flags__ & 1 << 9)
    if made_in_python and cls not in _active.classes and not issubclass(cls, (*_UNWATCHED, *_active.classes)):
        _active.classes.add(cls)
        _watch(cls)


def _watch(cls: type) -> None:
    with _lock:
        count, own = _watched.get(cls, (0, vars(cls).get("__getattribute__")))
        if not count:
            original: Any = cls.__getattribute__
            cls.__getattribute__ = _noted(original)  # type: ignore[method-assign,assignment]
        _watched[cls] = (count + 1, own)


def _release(cls: type) -> None:
    with _lock:
        count, own = _watched.pop(cls)
        if count > 1:
            _watched[cls] = (count - 1, own)
        elif own is None:
            del cls.__getattribute__
        else:
            cls.__getattribute__ = own  # type: ignore[method-assign]


def _noted(original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def __getattribute__(self: Any, name: str) -> Any:
        reads = _active.reads
        if reads is None:
            return original(self, name)
        if id(self) not in reads.owners:
            _active.reads = None
            try:
                reads.meet(self)
            finally:
                _active.reads = reads
        value = original(self, name)
        if name not in _OWN:
            _active.reads = None  # what is asked here is not the function's
            try:
                reads.note(self, name, value)
            finally:
                _active.reads = reads
        return value

    return __getattribute__


class Attributes:
    """The guard: the attributes have the values that the function found.

    `changed`: attributes that earlier traces have changed, by owner and name; it is added to.
    """

    def __init__(self, reads: Reads, changed: set[tuple[int, str]]) -> None:
        self._groups: list[tuple[Callable[[Any], Any], Any]] = []
        self._names: list[tuple[Any, str]] = []
        self._held: list[Any] = []
        for key, values in reads.values.items():
            owner = reads.owners[key]
            kept = {}
            for name, value in values.items():
                now = getattr(owner, name, None)
                if same(now, value):
                    kept[name] = now
                elif not is_plain(value):  # it puts others in their place: tensors are `_check_rebound`'s
                    continue
                elif (key, name) in changed and is_plain(now):
                    _warn(owner, name, value, now)
                else:
                    changed.add((key, name))
                    kept[name] = value
            if kept:
                names = [*kept] if len(kept) > 1 else [*kept] * 2  # of several names a getter makes a tuple
                self._groups.append((attrgetter(*names), owner))
                self._names += [(owner, name) for name in names]
                self._held += [kept[name] for name in names]

    def hold(self) -> bool:
        try:
            now = [get(owner) for get, owner in self._groups]
        except AttributeError:
            return False
        if all(map(is_, chain.from_iterable(now), self._held)):
            return True
        values = list(chain.from_iterable(now))
        if not all(map(same, values, self._held)):
            return False
        self._held = values
        return True

    def broken(self) -> str | None:
        """What has changed, in words."""
        for (owner, name), held in zip(self._names, self._held, strict=True):
            now = getattr(owner, name, None)
            if not same(now, held):
                own = f"{type(owner).__name__}.{name}"
                return f"{own} was {held!r} and is {now!r}" if is_plain(now) else f"{own} is another object"
        return None


def _warn(owner: Any, name: str, before: Any, after: Any) -> None:
    warnings.warn(
        f"a function under tg.jit changes {type(owner).__name__}.{name} from {before!r} to {after!r} in Python, which"
        " happens when it is traced, not at every call. Keep what changes in a tensor (register_buffer), or change it"
        " outside of the function.",
        UserWarning,
        stacklevel=2,
    )
