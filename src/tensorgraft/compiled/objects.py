"""Results of compiled functions that are objects (dataclasses, distributions, subclasses of containers): they are
created at every call, with the arrays of that call in them."""

from __future__ import annotations

import contextlib
import copy
import gc
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from weakref import ReferenceType

from tensorgraft.compiled.captured_objects import is_program_class, is_python_class, slots_of
from tensorgraft.compiled.lookups import content_of
from tensorgraft.compiled.values import is_plain
from tensorgraft.errors import TracedValueError
from tensorgraft.importing import program_freezes

_ATOMS = (type, types.BuiltinFunctionType, types.CodeType)


@contextlib.contextmanager
def collecting_new_objects() -> Iterator[frozenset[int]]:
    """Context that restricts the garbage collector to objects made inside: to scan all takes as long as a trace. Yields
    the identities of older objects that it scans nevertheless."""
    if program_freezes():
        old_objects = gc.get_objects()  # kept alive: a new object could otherwise have the id of a freed one
        yield frozenset(map(id, old_objects))
        del old_objects
        return
    gc.freeze()
    try:
        yield frozenset()
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def tracking_new_objects() -> Iterator[Callable[..., bool]]:
    """Context that yields a function which says whether an object was made inside. Others that will be asked for are
    looked up with it, as a look takes some milliseconds, however many objects there are."""
    new: set[int] = set()
    old: set[int] = set()

    def is_new(value: Any, *others: Any) -> bool:
        if type(value) in (dict, tuple):  # the collector does not know those that hold plain values only
            return True
        if id(value) not in new and id(value) not in old:
            new.update({id(obj) for obj in gc.get_objects()}.difference(old_ids))
            old.update({id(value), *map(id, others)} - new)
        return id(value) in new

    with collecting_new_objects() as old_ids:
        yield is_new


class Template:
    """An object of a trace, of which each call gets a copy.

    Arguments:
        value: the object.
        is_array: tells arrays, which are replaced at each call; they are listed in `arrays`, each once.
        is_old: tells objects from outside, which are not copied.
    """

    def __init__(self, value: Any, is_array: Callable[[Any], bool], is_old: Callable[[Any], bool]) -> None:
        self.value = value
        self.arrays: list[Any] = []
        self.old: list[Any] = []
        self._functions: list[types.FunctionType] = []
        self._cells: list[types.CellType] = []  # the variables of these that were made inside
        self._weak: list[ReferenceType[Any]] = []  # weak references to objects that were made inside
        self._reduced: list[Any] = []  # objects whose classes leave out attributes where they are copied
        self._copied = False  # something is in it that has to be copied
        self._find(value, is_array, is_old)
        if self._copied:
            self.make(self.arrays)  # raises, while the function is traced, for objects that cannot be copied

    def _find(self, value: Any, is_array: Callable[[Any], bool], is_old: Callable[[Any], bool]) -> None:
        for x in reachable_objects(value, lambda x: is_array(x) or is_old(x)):
            if is_array(x):
                self.arrays.append(x)
            elif is_old(x) or isinstance(x, types.ModuleType) or _refers_to_old(x, is_old):
                self.old.append(x)
            else:
                self._copied = True
                if isinstance(x, types.FunctionType):
                    self._functions.append(x)
                elif isinstance(x, types.CellType):
                    self._cells.append(x)
                elif isinstance(x, ReferenceType):
                    self._weak.append(x)
                elif _leaves_out_attributes(type(x)):
                    self._reduced.append(x)

    def emptied(self) -> Template:
        """Return the same template without its arrays, which it would keep alive."""
        holes = [object() for _ in self.arrays]
        empty, old = set(map(id, holes)), set(map(id, self.old))
        template = Template(self.make(holes), lambda x: id(x) in empty, lambda x: id(x) in old)
        template.arrays = holes  # in their order
        return template

    def make(self, arrays: Sequence[Any], old: Sequence[Any] | None = None) -> Any:
        """Return a copy with other arrays in it. `old`: the objects that replace `self.old` at this call."""
        memo: dict[int, Any] = dict(zip(map(id, self.arrays), arrays, strict=True))
        memo.update(zip(map(id, self.old), self.old if old is None else old, strict=True))
        try:
            memo.update((id(cell), types.CellType()) for cell in self._cells)
            memo.update((id(x), object.__new__(type(x))) for x in self._reduced)
            for fn in self._functions:
                memo[id(fn)] = _with_cells(fn, memo)
            for cell in self._cells:
                with contextlib.suppress(ValueError):  # a variable that is not bound
                    memo[id(cell)].cell_contents = copy.deepcopy(cell.cell_contents, memo)
            for fn in self._functions:
                new_function = memo[id(fn)]
                new_function.__defaults__ = copy.deepcopy(fn.__defaults__, memo)
                new_function.__kwdefaults__ = copy.deepcopy(fn.__kwdefaults__, memo)
                new_function.__dict__.update(copy.deepcopy(vars(fn), memo))
            for x in self._reduced:
                for name, value in (
                    *getattr(x, "__dict__", {}).items(),
                    *((n, getattr(x, n)) for n in slots_of(type(x)) if hasattr(x, n)),
                ):
                    object.__setattr__(memo[id(x)], name, copy.deepcopy(value, memo))
            for reference in self._weak:
                memo[id(reference)] = ReferenceType(copy.deepcopy(reference(), memo))
            return copy.deepcopy(self.value, memo)
        except TracedValueError:
            raise
        except Exception as error:
            why = str(error).partition("\n")[0]
            raise TracedValueError(
                f"a compiled function returns or keeps a {type(self.value).__qualname__} that cannot be copied, so"
                f" that calls cannot each have their own ({type(error).__name__}: {why}).\n  return its arrays: "
                " in tuples, lists or dictionaries\n  create it:          outside of the compiled function"
            ) from error


class CopiedObjects:
    """The objects among the leaves of a result, whose arrays are further leaves."""

    def __init__(self, count: int, templates: dict[int, tuple[Template, int]]) -> None:
        self.count, self._templates = count, templates

    @classmethod
    def extract(
        cls, leaves: Sequence[Any], is_array: Callable[[Any], bool], is_old: Callable[[Any], bool]
    ) -> tuple[CopiedObjects, list[Any]]:
        """Return the objects of a trace, and its leaves with None in place of each object, followed by the arrays in
        the objects.

        Arguments:
            leaves: of the trace.
            is_array, is_old: as of `Template`.
        """
        out: list[Any] = []
        arrays: list[Any] = []
        templates: dict[int, tuple[Template, int]] = {}
        for i, x in enumerate(leaves):
            if is_array(x) or is_plain(x) or is_old(x):
                out.append(x)
                continue
            template = Template(x, is_array, is_old)
            templates[i] = template.emptied(), len(template.arrays)
            arrays += template.arrays
            out.append(None)
        return cls(len(out), templates), out + arrays

    def __len__(self) -> int:
        return len(self._templates)

    def placed(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the leaves of a call, with new objects, of those and the arrays that come after them."""
        out, arrays = list(leaves[: self.count]), iter(leaves[self.count :])
        for i, (template, n) in self._templates.items():
            out[i] = template.make([next(arrays) for _ in range(n)])
        return out


def _children(x: Any) -> Iterator[Any]:
    """Yield the objects that an object refers to; Python modules are not entered."""
    if isinstance(x, types.ModuleType):
        return
    if isinstance(x, dict):
        yield from x.keys()
        yield from x.values()
    elif isinstance(x, list | tuple | set | frozenset | deque):
        yield from x
    elif isinstance(x, types.CellType):
        yield content_of(x)
    elif isinstance(x, types.FunctionType):
        yield from x.__closure__ or ()
        yield from x.__defaults__ or ()
        yield from (x.__kwdefaults__ or {}).values()
        yield from vars(x).values()
        return
    elif isinstance(x, types.MethodType):
        yield x.__self__
        return
    elif isinstance(x, ReferenceType):
        yield x()
    elif type(x).__name__ == "partial" and hasattr(x, "func"):
        yield from (x.func, *x.args, *x.keywords.values())
    elif isinstance(x, BaseException):
        yield from x.args
    attributes = getattr(x, "__dict__", None)
    if isinstance(attributes, dict):
        yield from attributes.values()
    yield from (getattr(x, name) for name in slots_of(type(x)) if hasattr(x, name))


def reachable_objects(value: Any, is_whole: Callable[[Any], bool] = lambda x: False) -> Iterator[Any]:
    """Yield an object and all objects reachable from it, each once; objects for which `is_whole` holds are not
    entered."""
    seen_objects: dict[int, Any] = {}
    queue = deque([value])
    while queue:
        x = queue.popleft()
        if is_plain(x) or isinstance(x, _ATOMS) or id(x) in seen_objects:
            continue
        seen_objects[id(x)] = x
        yield x
        if not is_whole(x):
            queue.extend(_children(x))


def containers(tree: Any) -> Iterator[Any]:
    """Yield the lists, tuples, dictionaries, deques and sets of a tree, each once."""
    stack, known = [tree], set[int]()
    while stack:
        x = stack.pop()
        if isinstance(x, dict | list | tuple | deque | set) and id(x) not in known:
            known.add(id(x))
            yield x
            stack.extend(x.values() if isinstance(x, dict) else x)


def has_objects_of_calls(
    results: Any,
    leaves: Sequence[Any],
    is_array: Callable[[Any], bool],
    is_old: Callable[[Any], bool],
    known: Collection[int],
    arguments: Collection[int],
) -> bool:
    """Return True if results include objects that differ from call to call: new ones, arguments, or objects that these
    refer to.

    Arguments:
        leaves: the results, flattened.
        is_array, is_old: as of `Template`.
        known: the identities of all objects, including containers, that the function reaches.
        arguments: the identities of those that it reaches through its arguments.
    """
    objects = [x for x in leaves if not (is_array(x) or is_plain(x))]
    if any(id(x) in arguments or not is_old(x) for x in objects):
        return True
    return any(id(x) in known for x in containers(results))


def _leaves_out_attributes(kind: type) -> bool:
    """Return True if a class of the program selects by `__getstate__` the attributes that are copied, and defines
    nothing else for copying."""
    if not isinstance(getattr(kind, "__getstate__", None), types.FunctionType) or hasattr(kind, "__deepcopy__"):
        return False
    return is_program_class(kind) and all(map(is_python_class, kind.__mro__[:-1]))


def _refers_to_old(x: Any, is_old: Callable[[Any], bool]) -> bool:
    """Return whether it is a weak reference to an object from outside, or to none."""
    return isinstance(x, ReferenceType) and ((of := x()) is None or is_old(of))


def _with_cells(fn: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """Return a copy of a function whose closure has the variables that `memo` has in place of its own."""
    cells = tuple(memo[id(cell)] for cell in fn.__closure__ or ())
    new_function = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, None, cells)
    new_function.__qualname__, new_function.__doc__ = fn.__qualname__, fn.__doc__
    return new_function
