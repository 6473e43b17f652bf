"""Guards for mutable state that a compiled function reads outside of its arguments: lists and dictionaries, variables
of the functions that it calls, arrays of other frameworks.

They are constants of a trace, which is valid only while they are unchanged: containers are compared by the identity of
their items (plain values by value), writable arrays by their contents. Attributes of classes and of Python modules are
compared, too, for the names that the function mentions. State that it only writes is not compared (`side_effects`).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any
from weakref import WeakSet

import numpy as np

from tensorgraft.arrays import framework_of
from tensorgraft.compiled.captured_objects import (
    ContainerContents,
    has_attributes,
    is_namespace,
    is_of_program,
    objects_in,
    roots,
    walk,
)
from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.descriptions import classes_of, described, uses_decimals, values_at, with_guarded_classes
from tensorgraft.compiled.instructions import (
    asked_modules,
    global_names,
    imported_modules,
    names_of,
)
from tensorgraft.compiled.lookups import ABSENT, Lookups
from tensorgraft.compiled.outside_calls import decimal_settings
from tensorgraft.compiled.packages import Namespaces, entries_of
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.tables import ContextValue, Environment, Namespace, Slots, Table, Variables
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.compiled.values import Replaceable, SameObject, exact, is_plain, is_same_value
from tensorgraft.errors import TracedValueError
from tensorgraft.hub.straight_line import NotStraight, StraightLine

# methods of a class that Python calls, or does without; while a function is traced there are others besides
_IMPLICIT = ("__call__", "__getattr__", "__bool__", "__len__", "__eq__")
_LARGEST = 1 << 24  # bytes of an array that are compared at every call
_KEPT = 1 << 28  # bytes of arrays that a trace keeps so that it can put them back


class Contents:
    """An array that can be written, and its values, or no more than their hash (`keep`)."""

    def __init__(self, name: str, array: Any, framework: str, keep: bool = True) -> None:
        self.name, self.of, self._framework = name, array, framework
        host = _on_host(array, framework)
        if host.nbytes > _LARGEST:
            raise TracedValueError(
                f"a compiled function reaches {name}, an array of {framework} of {host.nbytes:,} bytes, whose"
                " values would be constants of the program. It is too large to be compared at every call.\n"
                "  pass it:          as an argument, converted to a tensor or an array of the program\n"
                "  make it constant: array.flags.writeable = False, for NumPy arrays"
            )
        self._keeps_values = keep
        self._values = self._current(host)
        self._objects = host.ravel().tolist() if host.dtype.hasobject else []
        self._mask = np.array(np.ma.getmask(host))

    def _current(self, host: np.ndarray) -> Any:
        return bits_of(host) if self._keeps_values else hash(bits_of(host))

    def holds(self) -> bool:
        return self._current(_on_host(self.of, self._framework)) == self._values

    def put_back(self) -> None:
        """Write the values that it had, where it has others. Raises TracedValueError where they were not kept."""
        if not self.holds():
            if not self._keeps_values:
                raise TracedValueError(
                    f"a compiled function writes {self.name} of {self._framework}, and uses so many such arrays"
                    " that their values before the call were not kept. It has been written once, by tracing."
                    " Write it outside of the function"
                )
            dtype, shape, kept_values, _ = self._values
            if isinstance(kept_values, tuple):  # objects
                before = np.empty(len(self._objects), dtype)
                for k, value in enumerate(self._objects):  # at once, lists would be taken for rows
                    before[k] = value
            else:
                before = np.frombuffer(kept_values, dtype)
            _write(self.of, self._framework, before.reshape(shape))
            if isinstance(self.of, np.ma.MaskedArray):
                self.of.mask = self._mask


class OfAnother(TypeError):
    """An argument is an array of another front end than the one that compiles."""


class Surroundings:
    """The surroundings of one trace of a function. `front_end`: the framework whose arrays the trace itself
    notices when they are read; of the Array API, only arrays of `backend`."""

    def __init__(self, front_end: str, backend: Any = None) -> None:
        self._front_end, self._backend = front_end, backend
        self._containers: list[ContainerContents] = []
        self._arrays: list[Contents] = []
        self._watched: list[Contents] = []
        self._visited: dict[int, Any] = {}
        self._objects: list[Any] = []  # objects of the program's classes
        self._lookups, self._lookup_values = Lookups(), list[Any]()
        self._growing: list[ContainerContents] = []  # containers whose elements are read
        self._lengths: list[int] = []
        self._elements: list[Any] = []
        self._bare: list[dict[str, Any]] = []  # `__dict__`s of tensors and functions without attributes
        self._namespaces = Namespaces(())
        self._reported = 0

    def new_objects(self) -> list[Any]:
        """Return the objects of the program's classes that were found since the last call of this."""
        new = self._objects[self._reported :]
        self._reported = len(self._objects)
        return new

    def around(self, fn: Callable[..., Any]) -> None:
        """Examine the objects that a function reaches; its captured functions are part of the key of its calls
        (`DirectCaptures`)."""
        if isinstance(fn, types.FunctionType):
            self._visited[id(fn)] = fn
        if (code := getattr(fn, "__code__", None)) is not None:
            loaded = {name for name in imported_modules(code) if name in sys.modules}
            self.look_up("sys.modules", Lookups((sys.modules, name) for name in sorted(loaded | asked_modules(code))))
        for name, value in roots(fn):
            self.add(name, value)

    def add(self, name: str, value: Any) -> None:
        """Examine a value that the function reaches, and its contents."""
        for its_name, x, contents in walk([(name, value)], self._visited, modules=self._front_end != "torch"):
            framework = _framework(x)
            if framework is not None:
                if not self._is_own(x, framework) and _is_mutable(x, framework):
                    self._take(its_name, x, framework)
                for element in objects_in(x):
                    self.add(f"{its_name}[...]", element)
                if isinstance(x, np.ndarray) and (attributes := getattr(x, "__dict__", None)):  # of a derived class
                    self._containers.append(
                        ContainerContents(its_name, attributes, functools.partial(_items, attributes))
                    )
                    for key, value_of in attributes.items():
                        self.add(f"{its_name}.{key}", value_of)
            elif contents is not None:
                grows = isinstance(x, _GROWING) or is_of_program(x) or is_namespace(x)
                if (contents.before or grows) and (is_of_program(x) or not isinstance(x, _FIXED)):
                    self._containers.append(contents)
                if isinstance(x, tuple) and is_of_program(x):
                    self._objects.append(x)
            elif is_of_program(x):
                self._objects.append(x)

    def _take(self, name: str, array: Any, framework: str) -> None:
        """Remember the contents of a writable array. Raises TracedValueError for a large one."""
        self._arrays.append(Contents(name, array, framework))

    def written(self) -> str | None:
        """Return the name of an array of another framework that the trace has written, or None."""
        return next((one.name for one in (*self._arrays, *self._watched) if not one.holds()), None)

    def functions(self) -> list[types.FunctionType]:
        """Return the functions that were found."""
        return [x for x in self._visited.values() if isinstance(x, types.FunctionType)]

    def look_up(self, name: str, lookups: Lookups) -> None:
        """Look at attributes and entries, be they there or not."""
        names = [f".{key}" for _, key in (*lookups.entries, *lookups.attributes)]
        self._containers.append(ContainerContents(name, lookups, lookups.current, names, lookups))

    def ask(self, settings: Iterable[tuple[str, Callable[[], Any]]]) -> None:
        """Record the results of functions that return settings of the process."""
        for name, setting in settings:
            current = functools.partial(_setting, setting)
            self._containers.append(ContainerContents(name, setting, current, [""] * len(current())))

    def watch(self, world: Reachable) -> None:
        """Take the values of further arrays that the function may write, before it is traced."""
        known = {id(watched_array.of) for watched_array in self._arrays}
        kept_bytes = 0
        for x in world.visited.values():
            framework = _framework(x)
            if framework is None or id(x) in known or self._is_own(x, framework) or not _is_mutable(x, framework):
                continue
            size = _on_host(x, framework).nbytes
            if size <= _LARGEST:  # a larger one is refused where the function reads it
                kept_bytes += size
                self._watched.append(Contents(f"an array of {framework}", x, framework, keep=kept_bytes <= _KEPT))

    def _is_own(self, x: Any, framework: str) -> bool:
        if framework != self._front_end:
            return False
        return self._backend is None or all(cell.backend is self._backend for cell in x._cells())

    def settle(
        self,
        world: Reachable,
        changes: Sequence[Change],
        slot: Callable[[Any], Replaceable | None],
        methods: Iterable[types.FunctionType],
        whole_objects: Iterable[Any] = (),
    ) -> None:
        """Collect the guards after the trace, whose effects have been undone. Tables that the function only writes are
        left out; in those that it reads and changes, entries for which `slot` returns a slot may differ at each call.
        `methods`: methods whose variables are guarded, too. `whole_objects`: objects all of whose attributes are
        guarded. Raises RunsUncompiled for arrays of other frameworks that the function has written."""
        changed_array = next((memory for memory in (*self._arrays, *self._watched) if not memory.holds()), None)
        if changed_array is not None:
            self.undo()
            raise RunsUncompiled(f"writes {changed_array.name}, which is of another framework than its own")
        self._watched.clear()
        if id(sys.argv) in world.tables:
            self.add("sys.argv", sys.argv)
        self._add_libraries(world)
        for hook in world.hooks:
            self.add("a hook", hook)
        for name, results, known in world.used_caches():
            lookups = Lookups([(results, key) for key in results])
            contents = ContainerContents(f"a result that {name} remembers", results, lookups.current, None, lookups)
            for k, key in enumerate(results):  # a later call finds what this one has made: it is another program
                if key not in known and (changes or not _is_plain_result(results[key], key)):
                    contents.before[k] = object()
            self._containers.append(contents)
        for fn in methods:
            self.add(fn.__qualname__, fn)
        self._add_called(world)
        added = {id(change.table): [k for k in change.keys if k not in change.table.before] for change in changes}
        for table in world.tables.values():
            if isinstance(table.of, Namespace | Environment):
                self._guard_names(table, added.get(id(table), ()))
            if world.reads_subclasses and isinstance(table.of, Namespace) and isinstance(cls := table.of.of, type):
                below = functools.partial(type.__subclasses__, cls)
                self._containers.append(ContainerContents(f"{cls.__name__}.__subclasses__()", table.of, below))
        self._guard_names_and_classes(world)
        for owner in world.owners if world.reads_vars else ():  # not by their names alone
            if id(owner) not in world.finders and isinstance(getattr(owner, "__dict__", None), dict):
                self._add_all(owner)
        for table, keys in world.written_as_before(changes):
            if keys:
                self.look_up(table.name, _entries(table.of, keys))
        changed = {_identity(change.table.of): change for change in changes}
        for table in world.of_tensors:
            self._settle_bare(table.name, table.of, id(table.of) in changed)
            for key, value in table.before.items():
                self.add(f"{table.name}.{key}", value)
        for fn in self.functions():
            if not has_attributes(fn):
                self._settle_bare(f"{fn.__name__}.__dict__", vars(fn), id(vars(fn)) in changed)
        for owner in whole_objects:
            self._add_all(owner)
        self._settle_containers(world, changed, slot)
        # arguments of one call among them, whose memory would be kept
        self._visited = {key: x for key, x in self._visited.items() if framework_of(x) is None}

    def _settle_bare(self, name: str, attributes: dict[str, Any], changed: bool) -> None:
        """Guard the `__dict__`s of objects that usually have no attributes."""
        if attributes or changed:
            self._containers.append(ContainerContents(name, attributes, functools.partial(_items, attributes)))
        else:
            self._bare.append(attributes)

    def _settle_containers(
        self, world: Reachable, changed: Mapping[Any, Change], slot: Callable[[Any], Replaceable | None]
    ) -> None:
        """Collect the entries of all containers in a few lists, which are compared at once."""
        left = []
        for container in self._containers:
            change = changed.get(_identity(container.of))
            if change is None or not world.only_written(change):
                left.append(container)
                if change is not None:
                    container.before = [slot(value) or value for value in container.before]
        self._containers = left
        self._growing = [container for container in left if container.lookups is None]
        self._lengths = [len(container.before) for container in self._growing]
        self._elements = list(chain.from_iterable(container.before for container in self._growing))
        guarded = [
            (container.lookups, container.lookups.split(container.before))
            for container in left
            if container.lookups is not None
        ]
        lookups_of = ((lookups.entries, lookups.cells, lookups.attributes) for lookups, _ in guarded)
        self._lookups = Lookups(*map(chain.from_iterable, zip(*lookups_of, strict=True)))
        lookup_values = zip(*(values for _, values in guarded), strict=True)
        self._lookup_values = list(chain.from_iterable(map(chain.from_iterable, lookup_values)))
        self._lookup_values = self._lookups.each_once(self._lookup_values)

    def _add_all(self, owner: Any) -> None:
        """Guard all attributes of an object, and examine their values."""
        name = type(owner).__name__
        if not hasattr(owner, "__dict__"):  # a named tuple, an object with slots: the values are all there is
            self.add(name, owner)
            return
        self._containers.append(ContainerContents(name, vars(owner), functools.partial(_own_items, owner)))
        for key, value in list(vars(owner).items()):
            self.add(f"{name}.{key}", value)

    def _add_libraries(self, world: Reachable) -> None:
        """Add attributes of libraries, and the functions that the program has set there."""
        entries = [(vars(owner), name) for owner, name in world.libraries.entries()]
        entries += world.packages.places()
        self._namespaces = world.packages.namespaces()
        self.look_up("a library", Lookups(entries, attributes=world.libraries.properties()))
        for name, of in world.packages.containers():
            self._containers.append(ContainerContents(name, of, functools.partial(entries_of, of)))
        for name, fn in world.packages.functions():
            self.add(name, fn)
        for table, name in entries:
            if isinstance(table[name], types.FunctionType):
                self.add(name, table[name])

    def _add_called(self, world: Reachable) -> None:
        """Add the variables of methods that the examined functions may call, by the names that these mention."""
        known = -1
        while known != (known := len(self._visited)):
            names = {name for fn in self.functions() for name in names_of(fn.__code__)}
            for fn in world.called_by_name(names):
                self.add(fn.__qualname__, fn)

    def undo(self) -> None:
        """Give the arrays of other frameworks the values that they had before the trace."""
        for memory in (*self._arrays, *self._watched):
            memory.put_back()

    def _guard_names(self, table: Table, added: Iterable[str]) -> None:
        space = table.of
        if isinstance(space, Environment):
            container = ContainerContents(table.name, space, lambda: [*space.entries().items()])
        else:
            bases = [(space.of, "__mro__")] if isinstance(space.of, type) else []
            coming = [name for name in _IMPLICIT if name not in vars(space.of)] if bases else []
            lookups = Lookups([(vars(space.of), name) for name in (*space.names, *added, *coming)], attributes=bases)
            locations = (*lookups.entries, *lookups.attributes)
            container = ContainerContents(
                table.name, space, lookups.current, [f".{name}" for _, name in locations], lookups
            )
        if container.before:
            self._containers.append(container)
        for name, value in table.before.items():
            of_module = isinstance(value, types.FunctionType) and isinstance(space.of, types.ModuleType)
            if of_module or not isinstance(value, types.FunctionType | type | classmethod | staticmethod | property):
                self.add(f"{table.name}.{name}", value)

    def _guard_asked(self, world: Reachable) -> None:
        """Guard the attributes that the functions have asked for by names that they compute."""
        if (attributes := world.asked) is None:
            return
        attributes.finish()
        for name, lookups in attributes.places():
            self.look_up(name, lookups)
        for name, owner, contents in attributes.contents():
            self._containers.append(ContainerContents(name, owner, contents))
        for name, value in attributes.values():
            self.add(name, value)

    def _guard_virtual_subclasses(self, world: Reachable) -> None:
        """Guard the classes that are registered with abstract ones (`abc.ABCMeta.register`), if the functions use
        `isinstance` or the like."""
        classes = [table.of.of for table in world.tables.values() if isinstance(table.of, Namespace)]
        asks = {name for code in world.codes for name in global_names(code)} & {"isinstance", "issubclass"}
        if asks and any(isinstance(cls, abc.ABCMeta) for cls in classes):
            self.ask([("abc.get_cache_token()", abc.get_cache_token)])

    def _guard_names_and_classes(self, world: Reachable) -> None:
        """Guard names, documentation and annotations of functions and classes, the classes of objects, and the settings
        of `decimal`, as far as the functions read them."""
        self._guard_asked(world)
        self._guard_virtual_subclasses(world)
        if places := described(world, self.functions()):
            described_now = functools.partial(values_at, places)
            self._containers.append(ContainerContents("the name of a function or a class", places, described_now))
            for of, name in places:
                self.add(f"{of.__name__}.{name}", getattr(of, name))
        if owners := with_guarded_classes(world):
            classes = functools.partial(classes_of, owners)
            self._containers.append(ContainerContents("the class of an object", owners, classes, [""] * len(owners)))
        if uses_decimals(world):
            self.ask([("decimal.getcontext()", decimal_settings)])

    def hold(self) -> bool:
        if any(self._bare) or not self._namespaces.hold():
            return False
        if not all(map(is_, self._lookups.current(), self._lookup_values)):
            return self._equal()
        if self._growing:
            contents_now = [container.current() for container in self._growing]
            if [*map(len, contents_now)] != self._lengths:
                return False
            if not all(map(is_, chain.from_iterable(contents_now), self._elements)):
                return self._equal()
        return not self._arrays or all(memory.holds() for memory in self._arrays)

    def write(self, code: StraightLine) -> None:
        """Write that everything is the same: equal values in other objects are another call's business."""
        if any(value.__class__ is Replaceable for value in (*self._lookup_values, *self._elements)):
            raise NotStraight
        code.require_empty(self._bare)
        if self._namespaces:
            code.require(f"{code.name(self._namespaces.hold)}()")
        self._lookups.write(code, self._lookup_values)
        for container in self._growing:
            container.write(code)
        for memory in self._arrays:
            code.require(f"{code.name(memory.holds)}()")

    def _equal(self) -> bool:
        """Return whether each object that was replaced is the same plain value as before."""
        return all(container.holds() for container in self._containers) and all(
            memory.holds() for memory in self._arrays
        )

    def failure(self) -> str | None:
        """Return a description of a change, or None."""
        for container in self._containers:
            if not container.holds():
                return (
                    f"{container.name or 'a variable'} has other elements"
                    if container.names is None
                    else _description(container)
                )
        if any(self._bare):
            return f"a tensor or function has an attribute now: {next(iter(next(filter(None, self._bare))))}"
        changed = next((memory for memory in self._arrays if not memory.holds()), None)
        return self._namespaces.failure() if changed is None else f"{changed.name} has other values"

    def __bool__(self) -> bool:
        return bool(self._containers or self._arrays or self._bare or self._namespaces)


def _description(container: ContainerContents) -> str:
    values_now = container.current()
    for name, a, b in zip(container.names or (), container.before, values_now, strict=False):
        if not is_same_value(a, b):
            if a is ABSENT or b is ABSENT:
                return f"{container.name}{name} is {'there now' if a is ABSENT else 'gone'}"
            plain = is_plain(a) and is_plain(b)
            return (
                f"{container.name}{name} was {a!r} and is {b!r}"
                if plain
                else f"{container.name}{name} is another object"
            )
    return f"{container.name} has other elements"


def _entries(of: Any, keys: list[Any]) -> Lookups:
    """Return a function that looks up entries of a table by their keys."""
    if isinstance(of, Variables):
        names = [key for key in keys if isinstance(key, str)]
        return Lookups([(of.fn.__globals__, name) for name in names])  # cells are looked at anyway
    if isinstance(of, Slots):
        return Lookups(attributes=[(of.of, key) for key in keys])
    return Lookups([(of, key) for key in keys])


def _identity(of: Any) -> int:
    """Tell a table by the object that the program has."""
    if isinstance(of, Variables):
        return id(of.fn)
    if dataclasses.is_dataclass(of) or is_namespace(of):
        return id(getattr(of, "__dict__", of))
    return id(of.of) if isinstance(of, Namespace | Slots | ContextValue) else id(of)


def _is_plain_result(result: Any, key: Any) -> bool:
    """Return True if a remembered result is a plain value; a cache of limited size wraps it in a link."""
    if type(result).__name__ == "_lru_list_elem":
        return all(is_plain(of) for of in gc.get_referents(result) if of is not key and not isinstance(of, type))
    return is_plain(result)


def _items(table: dict[str, Any]) -> list[Any]:
    return [*table, *table.values()]


def _setting(ask: Callable[[], Any]) -> list[Any]:
    value = ask()
    value = tuple(sorted(value.items())) if isinstance(value, dict) else value
    values = value if isinstance(value, list) else [value]
    return [_numbers.setdefault(v, v) if type(v) is int else v for v in values]  # the same object for the same number


_numbers: dict[int, int] = {}


def _own_items(owner: Any) -> list[Any]:
    return _items(vars(owner))  # another table where it has been replaced


_GROWING = (dict, list, deque, set, WeakSet)
_FIXED = (
    tuple,
    frozenset,
    functools.partial,
    types.MethodType,
    types.BuiltinMethodType,
    types.MethodWrapperType,
)  # what is in them cannot change


# ---- arrays ----------------------------------------------------------------------------------------------------------


def _is_mutable(x: Any, framework: str) -> bool:
    if framework == "numpy":
        while isinstance(x, np.ndarray):
            if x.flags.writeable:
                return True
            x = x.base
        return False
    if framework == "memory":
        return not memoryview(x).readonly
    return framework in ("torch", "tensorgraft") or (framework == "tensorflow" and hasattr(x, "assign"))


def _framework(x: Any) -> str | None:
    """Return whose array a value is, "memory" for one of Python's own buffers."""
    array, ctypes, mmap = (sys.modules.get(name) for name in ("array", "ctypes", "mmap"))
    is_buffer = isinstance(x, bytearray | memoryview) or (array is not None and isinstance(x, array.array))
    is_buffer = is_buffer or (mmap is not None and isinstance(x, mmap.mmap))
    is_buffer = is_buffer or (ctypes is not None and isinstance(x, ctypes.c_int.__mro__[-2]))  # `_CData`
    return "memory" if is_buffer else framework_of(x)


def _on_host(x: Any, framework: str) -> np.ndarray:
    if framework == "torch":
        torch = sys.modules["torch"]
        x = _values(x).cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return np.asarray(x.view(torch.uint8) if x.numel() else x.to(torch.uint8))
    if framework == "tensorgraft":
        backend = x._cells()[0].backend
        return np.asarray(backend.to_numpy(x.native))
    if framework == "tensorflow":
        with sys.modules["tensorflow"].init_scope():  # a program of TensorFlow may be under way
            return np.asarray(x.numpy())
    if framework == "memory":
        return np.frombuffer(bytes(memoryview(x)), np.uint8)
    return x if isinstance(x, np.ma.MaskedArray) else np.asarray(x)


def _values(x: Any) -> Any:
    """Return the values of a tensor of PyTorch, without history: those that it stores, if it is sparse."""
    x = x.detach()
    if x.layout is sys.modules["torch"].strided:
        return x
    return x._values() if x.is_sparse else x.values()


def _write(x: Any, framework: str, values: np.ndarray) -> None:
    if framework == "torch":
        torch = sys.modules["torch"]
        with torch.no_grad():
            memory = torch.from_numpy(values.copy())
            x = _values(x)
            x.copy_(memory.view(x.dtype).reshape(x.shape) if x.numel() else x)
    elif framework == "tensorflow":
        x.assign(values)
    elif framework == "tensorgraft":
        x[...] = values
    elif framework == "memory":
        before = values.tobytes()
        if isinstance(x, bytearray):
            x[:] = before
        elif hasattr(x, "frombytes"):
            del x[:]
            x.frombytes(before)
        else:
            memoryview(x).cast("B")[:] = before
    else:
        writeable, x.flags.writeable = x.flags.writeable, True  # it may be a view of what alone can be written
        np.copyto(x, values)
        x.flags.writeable = writeable


def bits_of(x: np.ndarray) -> Collection[Any]:
    """Equal for equal values, and masks of them, alone."""
    data, mask = np.asarray(x), np.ma.getmask(x)
    objects = objects_in(data) if data.dtype.hasobject else None
    values = data.tobytes() if objects is None else tuple(exact(v) if is_plain(v) else SameObject(v) for v in objects)
    return data.dtype, data.shape, values, None if mask is np.ma.nomask else mask.tobytes()
