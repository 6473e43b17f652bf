"""Side effects of a traced function on Python's objects: entries of containers, attributes, variables, draws of random
numbers.

Before a trace `Reachable` takes a shallow copy of everything mutable that the function reaches. After it the copies are
compared: what differs is a `Change`, which is undone, and done again at every call of the compiled program.
"""

from __future__ import annotations

import gc
import io
import sys
import threading
import types
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from operator import is_not
from typing import Any
from weakref import ReferenceType

from tensorgraft.arrays import framework_of
from tensorgraft.compiled.asked_attributes import AskedAttributes, asks
from tensorgraft.compiled.captured_objects import (
    REMEMBERS,
    Call,
    Named,
    functions_around,
    functions_held,
    in_library,
    is_bound_builtin,
    is_compiled_function,
    is_namespace,
    is_of_program,
    is_python_class,
    is_tensor_with_attributes,
    objects_in,
    slots_of,
)
from tensorgraft.compiled.changes import Change, change_of
from tensorgraft.compiled.instructions import (
    WRITES,
    asked_attributes,
    codes_of,
    global_names,
    is_dotted_name,
    names_of,
    stored_attributes,
    uses_of,
)
from tensorgraft.compiled.libraries import Libraries, modules_named
from tensorgraft.compiled.lookups import content_of
from tensorgraft.compiled.outside_calls import (
    HIDDEN_RESULTS,
    SIGNAL_METHODS,
    SIGNALS,
    STREAM_METHODS,
    differs_at_each_call,
    has_hidden_state,
    is_outside,
)
from tensorgraft.compiled.packages import Packages
from tensorgraft.compiled.random_states import is_generator, same_state, set_states, state_of, states_of
from tensorgraft.compiled.tables import (
    MAKING,
    ContextValue,
    Environment,
    Find,
    Namespace,
    Slots,
    Table,
    Variables,
    entries_of,
    find_argument,
    find_attribute,
    find_attributes,
    find_item,
    find_keyword,
    is_special,
)
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.compiled.values import is_scalar

_MOST = 100_000  # objects that are examined
_MOST_STRINGS = 1000
_OPAQUE: list[type] = [types.BuiltinFunctionType, types.GenericAlias, types.CodeType, types.FrameType]
# packages whose objects' attributes are not compared; loggers and random generators are compared in another way
_OWN_MODULES = ("tensorgraft", "jax", "jaxlib", "optree", "ml_dtypes", "logging", "random")
_OF_STANDARD = frozenset(sys.stdlib_module_names) - {"types", "collections", "__main__", "builtins"}


def opaque(*kinds: type) -> None:
    """Leave out objects of these types: a front end detects their changes in another way."""
    _OPAQUE.extend(kinds)


_HOOKS: list[tuple[type, Callable[[Any], Iterable[Any]], Callable[[], Collection[str]]]] = []


def with_hooks(
    kind: type, hooks: Callable[[Any], Iterable[Any]], own_attributes: Callable[[], Collection[str]]
) -> None:
    """Examine the program's functions that objects of an opaque type call, and for a class of the program the
    attributes other than `own_attributes()` of the type."""
    _HOOKS.append((kind, hooks, own_attributes))


# names by which functions read attributes of an object that no trace notes; Pydantic's methods do so outside of Python
_READS_ALL = {"vars", "__dict__", "__getattribute__", "getattr_static", "model_dump", "model_dump_json", "model_copy"}
_IMPORTING = ("import_module", "__import__", "modules")
_DYNAMIC = {"globals", "eval", "exec", "dir"}  # names that can reach objects which the code does not mention

# {class: its methods that read the clock}; the functions of `time` are found wherever that module is used
_CLOCKS = {"datetime": ("now", "today", "utcnow"), "date": ("today",)}


def _of_library(cls: type) -> bool:
    return in_library(getattr(sys.modules.get(cls.__module__), "__file__", None) or "")


class Reachable:
    """All mutable objects that a function reaches, with their contents when they were first examined."""

    def __init__(self, fn_roots: Iterable[Named], call: Call = ((), {})) -> None:
        self.tables: dict[int, Table] = {}
        self.visited: dict[int, Any] = {}  # every object that was found, kept alive so that its id is unique
        self.finders: dict[int, Find] = {}  # finders of objects that arguments refer to
        self.codes: list[types.CodeType] = []
        self.is_new: Callable[..., bool] = lambda *values: (
            False
        )  # returns whether values were made in the current trace
        self.methods: list[tuple[str, bool, types.FunctionType]] = []  # methods of classes; `called_by_name` reads them
        self.owners: list[Any] = []  # objects of the program's classes
        self.standard: dict[int, Any] = {}  # objects of the standard library's classes, by identity
        self.slotted: dict[int, Slots] = {}  # the attributes of objects whose classes have `__slots__`
        self.outside: list[tuple[dict[str, Any], str]] = []  # global variables that are watched functions
        self.hooks: list[Any] = []  # hooks of tensors and optimizers
        self.of_tensors: list[Table] = []  # attributes of tensors that are no arguments
        self.named: list[Table] = []  # variables, and attributes of objects that are no arguments
        self.stored: dict[int, set[str]] = {}  # {id of a table: attributes that were set}
        self.libraries, self.packages = Libraries(), Packages()
        self._spaces: list[tuple[str, Any]] = []
        self.generators: list[Any] = []
        # functions that cache results: their name, the cache, the number of results, and these
        self._caches: list[tuple[str, Any, Any, frozenset[Any]]] = []
        self._strings: set[str] = set()  # strings by which the function may read attributes and modules
        # only if other threads run, which may change state, too: for each value what it refers to, with the names of
        # the attributes; and the values that the walk began with
        self._links: dict[int, list[tuple[str | None, Any]]] | None = {} if threading.active_count() > 1 else None
        self._starts: list[Any] = []
        # clocks, iterators and the like, and the attribute by which each is reached (None: it is none)
        self._one_time_objects: list[tuple[str, str | None]] = []
        self._walk([(name, value, None) for name, value in fn_roots])
        args, kwargs = call
        self._walk([(f"args[{i}]", a, find_argument(i)) for i, a in enumerate(args)])
        self._walk([(k, a, find_keyword(k)) for k, a in kwargs.items()])
        names = self._walk_spaces()
        self.reads_subclasses = "__subclasses__" in names
        self.reads_vars = not _READS_ALL.isdisjoint(names)
        # a source of new values at each call (a clock, an iterator) that the function's code mentions
        self.once = next(
            (name for name, attribute in self._one_time_objects if attribute is None or attribute in names), None
        )
        self.asked = AskedAttributes(self, names) if asks(names) else None
        if "argv" in names:
            self._walk([("sys.argv", sys.argv, None)])
        if "environ" in names or "getenv" in names:
            self._add("os.environ", Environment(), None)
        self._dice = states_of(self.generators)

    def _walk_spaces(self) -> dict[str, Any]:
        """Examine the attributes of classes and Python modules that functions mention, and the objects that these refer
        to, until there are no further functions; return the names that all of them mention."""
        known = -1, -1, -1, -1
        while known != (known := (len(self.codes), len(self._spaces), len(self._strings), len(self.libraries))):
            names = dict.fromkeys(name for code in self.codes for name in sorted(names_of(code)))
            if not names.keys().isdisjoint(_IMPORTING):
                self._walk([(module.__name__, module, None) for module in modules_named(self._strings, "")])
            if "__subclasses__" in names:
                classes: list[Any] = [of for _, of in self._spaces if isinstance(of, type)]
                self._walk([(below.__name__, below, None) for of in classes for below in type.__subclasses__(of)])
            asked_by_value = sorted(self._strings - names.keys())
            stored = {name for code in self.codes for name in stored_attributes(code)}
            requested = {name for code in self.codes for name in asked_attributes(code)}
            tables = [
                (name, Namespace(space, [*names, *asked_by_value], stored, requested)) for name, space in self._spaces
            ]
            self._walk([(f"{name}.{key}", v, None) for name, t in tables for key, v in t.entries().items()])
            self._walk([(name, value, None) for name, value in self.libraries.mention(names.keys())])
        for name, table in tables:
            self._add(name, table, None)
        for owner, name in self.libraries.entries():
            self.packages.meet(vars(owner), name, frozenset(names), looked_up=True)
        return names

    def _add(self, name: str, of: Any, find: Find | None) -> Any:
        names = {name} if id(of) in self.visited and id(of) not in self.tables else set()
        self.tables[id(of)] = table = Table(name, of, entries_of(of), find, names=names)
        return table.before

    def _walk(self, roots: Iterable[tuple[str, Any, Find | None]]) -> None:
        queue = deque(roots)
        if self._links is not None:
            # numbers refer to nothing, and one that represents an input of the trace must not be kept alive
            self._starts += [value for _, value, _ in queue if not is_scalar(value)]
        seen_objects = self.visited
        while queue and len(seen_objects) < _MOST:
            name, value, find = queue.popleft()
            if is_scalar(value):
                if value.__class__ is str and len(self._strings) < _MOST_STRINGS and is_dotted_name(value):
                    self._strings.add(value)
                continue
            if id(value) in seen_objects:
                if (table := self.tables.get(id(value))) is not None and table.names:
                    table.names.add(name)
                continue
            seen_objects[id(value)] = value
            if find is not None:
                self.finders[id(value)] = find
            children = list(self._entries_behind(name, value, find))
            queue.extend(children)
            if self._links is not None:
                owned = is_of_program(value)  # the trace observes which of its attributes are used
                links = [(its_name.rpartition(".")[2] if owned else None, child) for its_name, child, _ in children]
                self._links[id(value)] = [link for link in links if not is_scalar(link[1])]

    def _entries_behind(self, name: str, value: Any, find: Find | None) -> Iterator[tuple[str, Any, Find | None]]:
        """Note a value; yield the values that it refers to."""
        if isinstance(value, type | types.ModuleType):
            self._one_time_objects += [(f"{name}.{clock}", clock) for clock in _CLOCKS.get(value.__name__, ())]
            yield from self._space(name, value)
        elif differs_at_each_call(value) or (is_bound_builtin(value) and has_hidden_state(value.__self__)):
            _, dot, attribute = name.rpartition(".")
            self._one_time_objects.append((name, attribute if dot else None))
        elif isinstance(value, io.IOBase):
            self._one_time_objects += [(f"{name}.{method}", method) for method in STREAM_METHODS]
        elif has_hidden_state(value):
            methods = [method for method in dir(type(value)) if not is_special(method)]
            self._one_time_objects += [(f"{name}.{method}", method) for method in methods]
        elif isinstance(value, SIGNALS):  # another thread reacts to them, which cannot be undone
            self._one_time_objects += [(f"{name}.{method}", method) for method in SIGNAL_METHODS]
            yield from self._children(name, value, find)
        elif is_generator(value):
            self.generators.append(value)
            self._one_time_objects += [(f"{name}.{method}", method) for method in ("get_state", "getstate")]
        elif (hidden := HIDDEN_RESULTS.get(f"{type(value).__module__}.{type(value).__name__}")) is not None:
            self._one_time_objects += [(f"{name}.{method}", method) for method in hidden]
        elif is_bound_builtin(value):
            yield "self", value.__self__, None
        elif is_tensor_with_attributes(value):
            yield type(value).__name__, type(value), None
            yield from self._of_tensor(name, value, find)
        elif isinstance(value, tuple(_OPAQUE)):
            yield from self._of_opaque(name, value, find)
        elif framework_of(value) is None:
            yield from self._children(name, value, find)
        else:
            yield from ((f"{name}[...]", element, None) for element in objects_in(value))

    def _of_tensor(self, name: str, value: Any, find: Find | None) -> Iterator[tuple[str, Any, None]]:
        """Note the attributes of a tensor (those of an argument are part of the call's key), and yield them and its
        hooks."""
        before = self._add(name, value.__dict__, None if find is None else find_attributes(find))
        if find is None:
            self.of_tensors.append(self.tables[id(value.__dict__)])
        hooks = (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None))
        hooked = [hook for table in hooks for hook in (table or {}).values()]
        self.hooks += hooked
        yield from ((f"{name}.{key}", child, None) for key, child in before.items())
        yield from ((f"a hook of {name}", hook, None) for hook in hooked)

    def _of_opaque(self, name: str, value: Any, find: Find | None) -> Iterator[tuple[str, Any, Find | None]]:
        for kind, hooks, own_attributes in _HOOKS:
            if isinstance(value, kind):
                hooked = list(hooks(value))
                self.hooks += hooked
                yield from ((f"a hook of {name}", hook, None) for hook in hooked)
                if is_of_program(value):
                    found_inside, of_kind = self._attributes(name, value, find), own_attributes()
                    yield from (entry for entry in found_inside if entry[0].rpartition(".")[2] not in of_kind)

    def _space(self, name: str, value: Any) -> Iterator[tuple[str, Any, None]]:
        """Note a class or a Python module; yield the functions of a class, the `__getattr__` of a module of the
        program, and the modules in a library."""
        if isinstance(value, types.ModuleType):
            if not in_library(getattr(value, "__file__", None) or "") and value.__name__ not in sys.stdlib_module_names:
                self._spaces.append((name, value))
                for fn in functions_of(vars(value).get("__getattr__")):
                    self.methods.append((fn.__name__, True, fn))
                    yield fn.__qualname__, fn, None
            else:
                yield from ((name, module, None) for module in self.libraries.add(value))
            return
        if not is_python_class(value):
            return
        for cls in (*value.__mro__, *type(value).__mro__):
            if not is_python_class(cls) or _of_library(cls):
                continue
            if cls is value or id(cls) not in self.visited:
                self.visited[id(cls)] = cls
                self._spaces.append((cls.__name__, cls))
                above = {name for base in cls.__mro__[1:-1] if _of_library(base) for name in vars(base)}
                for key, member in vars(cls).items():
                    if isinstance(member, REMEMBERS):
                        yield member.__name__, member, None
                    anyway = key in above or (is_special(key) and key != "__init_subclass__")
                    for fn in functions_of(member):
                        self.methods.append((cls.__name__ if key in MAKING else key, anyway, fn))
                        yield fn.__qualname__, fn, None

    def _children(self, name: str, value: Any, find: Find | None) -> Iterator[tuple[str, Any, Find | None]]:
        if isinstance(value, dict):
            before = self._add(name, value, find)
            for key, child in before.items():
                yield f"{name}[{key!r}]" if is_scalar(key) else f"{name}[...]", child, find_item(find, key)
            if isinstance(value, defaultdict):
                yield f"{name}.default_factory", value.default_factory, None
        elif isinstance(value, list | deque):
            for k, child in enumerate(self._add(name, value, find)):
                yield f"{name}[{k}]", child, find_item(find, k)
        elif isinstance(value, set):
            self._add(name, value, find)
        elif isinstance(value, tuple):
            for k, child in enumerate(value):
                yield f"{name}[{k}]", child, find_item(find, k)
        elif isinstance(value, types.FunctionType):
            yield from self._function(name, value)
        elif isinstance(value, types.MethodType):
            yield name, value.__func__, None
            yield "self", value.__self__, None
        elif is_compiled_function(value):
            yield name, value.__wrapped__, None
        elif held := functions_held(value):
            yield from ((f"{name}.{key}", child, None) for key, child in held.items())
        elif isinstance(value, ReferenceType):
            yield name, value(), None
        elif isinstance(value, ContextVar):
            yield from ((name, child, None) for child in self._add(name, ContextValue(value), None).values())
        elif isinstance(value, REMEMBERS):
            known = frozenset(key for results in _results_of(value) for key in results)
            self._caches.append((name, value, value.cache_info(), known))
            yield name, value.__wrapped__, None
            yield f"{name}.__dict__", vars(value), None
        if type(value).__name__ == "partial" and hasattr(value, "func"):
            yield name, value.func, None
            yield from ((f"args[{k}]", child, None) for k, child in enumerate(value.args))
            yield "keywords", value.keywords, None
            yield f"{name}.__dict__", vars(value), None
        elif not isinstance(value, types.FunctionType | types.MethodType):
            yield from self._attributes(name, value, find)

    def _attributes(self, name: str, value: Any, find: Find | None) -> Iterator[tuple[str, Any, Find | None]]:
        cls = type(value)
        package = cls.__module__.partition(".")[0]
        is_python = is_python_class(cls)
        if package in _OF_STANDARD and package not in _OWN_MODULES and not is_namespace(value):
            if is_python and isinstance(attributes := getattr(value, "__dict__", None), dict):
                self._add(name, attributes, None)
                self.standard[id(value)] = value
            return
        if package in _OWN_MODULES:
            return
        if is_python:
            yield cls.__name__, cls, None
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            for key, child in self._add(name, attributes, None if find is None else find_attributes(find)).items():
                yield f"{name}.{key}" if name else str(key), child, find_attribute(find, key)
            if find is None:
                self.named.append(self.tables[id(attributes)])
        if is_of_program(value):
            self.owners.append(value)
        if is_python and (slots := slots_of(cls)):
            table = self.slotted[id(value)] = Slots(value, slots)
            find_slots = None if find is None else lambda call: Slots(find(call), slots)
            for key, child in self._add(name, table, find_slots).items():
                yield f"{name}.{key}", child, find_attribute(find, key)
            if find is None:
                self.named.append(self.tables[id(table)])

    def _function(self, name: str, fn: types.FunctionType) -> Iterator[tuple[str, Any, Find | None]]:
        yield f"{name}.__dict__", vars(fn), None
        if in_library(fn.__code__.co_filename):
            self.packages.see(fn.__code__, fn.__globals__)
            yield from ((variable, child, None) for variable, child in functions_around(fn))
            return
        for variable, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            yield variable, content_of(cell), None
        self.codes.append(fn.__code__)
        variables = Variables(fn)
        self._add(name, variables, None)
        self.named.append(self.tables[id(variables)])
        dynamic = sorted(global_names(fn.__code__) & _DYNAMIC - fn.__globals__.keys())
        self._one_time_objects += [(f"{called_name}()", None) for called_name in dynamic]
        mentioned = {n for code in codes_of(fn.__code__) for n in code.co_names}
        for variable in sorted(mentioned & fn.__globals__.keys()):
            if is_outside(value := fn.__globals__[variable]):
                self.outside.append((fn.__globals__, variable))
            else:
                yield variable, value, None
        package = str(fn.__globals__.get("__package__") or "")
        for module in modules_named(names_of(fn.__code__), package):
            yield module.__name__, module, None
        defaults = {**{f"default {k}": x for k, x in enumerate(fn.__defaults__ or ())}, **(fn.__kwdefaults__ or {})}
        yield from ((key, child, None) for key, child in defaults.items())

    # ---- after a trace ---------------------------------------------------------------------------------------------

    def watch(self, name: str, of: Any) -> None:
        """Copy the attributes of an object before it is changed, unless it was made inside the trace."""
        if id(of) not in self.visited and not self.is_new(of):
            known = len(self.generators)
            self._walk([(name, of, None)])
            self._dice += map(state_of, self.generators[known:])

    def substituted(self, call: Call, new_of: dict[int, Any]) -> Call:
        """Return the call with objects replaced (`new_of`: {id: replacement}), in it and in everything mutable that it
        refers to; `undo` restores them."""
        if not new_of:
            return call
        for table in self.tables.values():
            if table.find is not None:
                entries = table.before.items() if isinstance(table.before, dict) else enumerate(table.before)
                new_values = {key: new for key, value in entries if (new := _substituted(value, new_of)) is not value}
                if new_values and not isinstance(table.before, set):
                    for key, value in new_values.items():
                        table.of[key] = value
                    table.start = entries_of(table.of)
        args, kwargs = call
        return _substituted(args, new_of), {key: _substituted(value, new_of) for key, value in kwargs.items()}

    def leave_to_others(self, uses: Callable[[Any, str], bool]) -> None:
        """Leave out changes that another thread may have made: those of objects that this thread has not read.
        `uses(object, name)` returns whether it has used an attribute of an object of the program."""
        if self._links is None:
            return
        reached: set[int] = set()
        queue = deque(self._starts)
        while queue:
            value = queue.popleft()
            if id(value) not in reached:
                reached.add(id(value))
                links = self._links.get(id(value), ())
                queue.extend(child for attribute, child in links if attribute is None or uses(value, attribute))
        directly = self.reads_vars or any("__setattr__" in names_of(code) for code in self.codes)
        for owner in self.owners:
            for of in (getattr(owner, "__dict__", None), self.slotted.get(id(owner))):
                if (table := self.tables.get(id(of))) is not None and not (directly and id(owner) in reached):
                    keys = (key for key in {**table.before, **table.entries()} if uses(owner, key))
                    table.restrict(set(keys) if id(owner) in reached else ())
        containers = (dict, list, deque, set)
        for key, table in list(self.tables.items()):
            if isinstance(table.of, containers) and key in self.visited and key not in reached:
                del self.tables[key]

    def changes(
        self,
        counted: Collection[tuple[int, str]] = (),
        sum_of: Callable[[Any], tuple[Any, Any] | None] = lambda value: None,
    ) -> list[Change]:
        """Compare with the copies, and return the differences; raises RunsUncompiled for one that cannot be repeated.

        Arguments:
            counted: {id of an attribute dictionary: names that are only incremented}.
            sum_of: returns (Python number, array) for a number that is their sum in the trace.
        """
        differences = [change for table in self.tables.values() if (change := change_of(table)) is not None]
        attributes = {id(vars(value)): value for value in self.standard.values()}
        for change in differences:
            if (value := attributes.get(id(change.table.of))) is not None:
                raise RunsUncompiled(f"changes a {type(value).__name__} of the standard library")
            before = change.table.before
            if isinstance(before, dict):
                counts = self._uses(change.table) == {"counted"}
                for k, (key, value) in enumerate(zip(change.keys, change.new, strict=True)):
                    if not counts and (id(change.table.of), key) not in counted:
                        continue
                    if type(value) is int and type(before.get(key)) is int:  # differences of floats are not exact
                        change.counts = {**(change.counts or {}), key: value - before[key]}
                    elif (terms := sum_of(value)) is not None and terms[0] is before.get(key):
                        change.new[k] = terms[1]
                        change.counts = {**(change.counts or {}), key: None}
        return differences

    def called_by_name(self, names: Collection[str]) -> Iterator[types.FunctionType]:
        """Yield the methods of the program's classes that functions mentioning these names may call: methods with these
        names, constructors of classes with them, operators, and methods that a library's class calls."""
        return (fn for name, anyway, fn in self.methods if anyway or name in names)

    def drew(self) -> bool:
        """Return whether Python's or NumPy's random numbers were drawn."""
        states_now = states_of(self.generators)
        return (
            not all(map(same_state, self._dice, states_now))
            if self._dice[1] is not None
            else states_now[0] != self._dice[0]
        )

    def remembered(self) -> str | None:
        """Return the name of a called function under `functools.lru_cache` whose keys contain arrays: a later call has
        other arrays, or the same with other values, so that the cached result would be wrong."""
        for name, results, _ in self.used_caches():
            keys = (key if isinstance(key, tuple | list) else (key,) for key in results)
            if any(framework_of(part) is not None for key in keys for part in key):
                return name
        return None

    def used_caches(self) -> Iterator[tuple[str, dict[Any, Any], frozenset[Any]]]:
        """Yield (name, table of results, keys before the trace) for functions under `functools.lru_cache` that were
        called."""
        for name, cached, before, known in self._caches:
            if cached.cache_info() != before:
                yield from ((name, results, known) for results in _results_of(cached))

    def forget(self) -> None:
        """Clear the caches of functions that have computed new results: those of a trace that is given up have no
        values."""
        for _, cached, before, _ in self._caches:
            if cached.cache_info().misses != before.misses:
                cached.cache_clear()

    def undo(self) -> None:
        """Restore every table and random state."""
        for table in self.tables.values():
            table.restore()
        set_states(self._dice, self.generators)

    def only_written(self, change: Change) -> bool:
        """Return whether a change does not depend on the table's previous contents, which the function never reads."""
        uses, table = self._uses(change.table), change.table
        if uses == {"counted"}:
            return change.counts is not None and change.counts.keys() == set(change.keys)
        # of a set with elements it depends on them: an added element may have been among them
        return uses == {"written"} and change.order is None and not (isinstance(table.of, set) and table.before)

    def written_as_before(self, changes: Iterable[Change]) -> Iterator[tuple[Table, list[Any]]]:
        """Yield (a table, keys) of entries that the function may have set to their previous values, which is no
        change."""
        changed = {id(change.table): change for change in changes}
        stored = {name for code in self.codes if code.co_name not in MAKING for name in stored_attributes(code)}
        for table in self.named:
            names = table.before.keys()
            keys = names if isinstance(table.of, Variables) else names & (stored | self.stored.get(id(table.of), set()))
            yield table, self._unchanged(keys, changed.get(id(table)))
        for change in changes:
            if isinstance(change.table.of, dict) and change.table.find is None and self.only_written(change):
                yield change.table, self._unchanged(change.table.before, change)

    @staticmethod
    def _unchanged(keys: Iterable[Any], change: Change | None) -> list[Any]:
        new = set() if change is None else {*change.keys, *change.dropped}
        return [key for key in keys if key not in new]

    def _uses(self, table: Table) -> set[str]:
        names = {name.rpartition(".")[2] for name in table.names}
        if self.reads_vars or not _writes_blindly(table.of) or not all(map(str.isidentifier, names)):
            return {"read"}
        return {use for name in names for use in uses_of(name, self.codes)}


def _results_of(cached: Any) -> list[dict[Any, Any]]:
    """Return the table of results of a function under `functools.lru_cache`."""
    return [of for of in gc.get_referents(cached) if isinstance(of, dict) and of is not vars(cached)]


def _writes_blindly(of: Any) -> bool:
    """Return whether the methods that write to a container are Python's own, and so do not read it in the program."""
    methods = (getattr(of, name, None) for name in ("__setitem__", "__getitem__", *WRITES))
    return all(is_bound_builtin(method) and method.__self__ is of for method in methods if method is not None)


def functions_of(member: Any) -> list[types.FunctionType]:
    """Return the functions of an entry of a class: a method of any kind, or the functions of a property."""
    names = ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")
    inner = [member, *(getattr(member, name, None) for name in names)]
    return [fn for fn in inner if isinstance(fn, types.FunctionType)]


def function_of(member: Any) -> types.FunctionType | None:
    """Return the first of `functions_of`, which is called when the entry is read."""
    return next(iter(functions_of(member)), None)


def _substituted(value: Any, substitutes: dict[int, Any]) -> Any:
    if id(value) in substitutes:
        return substitutes[id(value)]
    if isinstance(value, tuple):
        new_items = [_substituted(v, substitutes) for v in value]
        if any(map(is_not, new_items, value)):
            return type(value)(*new_items) if hasattr(value, "_fields") else type(value)(new_items)
    return value
