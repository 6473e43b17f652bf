"""Errors for side effects of a JAX function while it is traced: a traced function cannot write objects that are no
arguments or results, or that JAX flattens and rebuilds."""

from __future__ import annotations

import collections
import contextlib
import gc
import site
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.core import Tracer

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.jax.objects import is_object

_LIBRARIES = tuple(site.getsitepackages())
_CONTAINERS = (dict, list, tuple, collections.OrderedDict, collections.defaultdict, type(None))
_CONTAINERS_OF_ANY = (list, tuple, set, dict, collections.deque)
_FARTHEST = 12  # steps from an array to who keeps it


@contextlib.contextmanager
def refused(arguments: Any, fn: Callable[..., Any]) -> Iterator[None]:
    """Raises TracedValueError where an argument of a class that its program registered as a pytree was written: the
    caller's object would not be. (Dictionaries, lists and the states of `nnx.split` are copies, as under `jax.jit`.)"""
    leaves = jax.tree.leaves(arguments, is_leaf=lambda x: is_object(x) or _is_own(x))
    before = [(x, _parts(x)) for x in leaves if _is_own(x)]
    yield
    for x, parts in before:
        parts_now = _parts(x)
        if parts is None or parts_now is None:
            continue
        if parts_now[1] != parts[1] or any(a is not b for a, b in zip(parts_now[0], parts[0], strict=True)):
            raise TracedValueError(
                f"{_name(fn)} writes an argument, a {type(x).__qualname__}. It is traced with a copy, so that the"
                " caller's object would not change.\n"
                "  return it:  and use the result in its place\n"
                "  write it:   keep what changes in variables of flax.nnx, which are updated"
            )


def _is_own(x: Any) -> bool:
    if isinstance(x, Tracer | tuple) or type(x) in _CONTAINERS or is_object(x):
        return False
    # The functional way of nnx: a model is merged of a state inside, and its state afterwards is a result.
    return not type(x).__module__.startswith("flax.nnx") and hasattr(x, "__dict__") and _parts(x) is not None


def _parts(x: Any) -> tuple[list[Any], Any] | None:
    """Return (leaves, structure), or None for an object that is no pytree node."""
    try:
        leaves, structure = jax.tree.flatten(x)
    except Exception:  # a class of the program that can be taken apart once (equinox.nn.State)
        return None
    return None if len(leaves) == 1 and leaves[0] is x else (leaves, structure)


def refuse_new_state(fn: Callable[..., Any]) -> None:
    """Raises TracedValueError: a module has the state that it had when it was grafted."""
    raise TracedValueError(
        f"{_name(fn)} changes more of itself than the arrays in its variables: an attribute, or a new variable"
        " (such as those of `sow`). The grafted module has the variables that the model had when it was"
        " grafted.\n"
        "  create them before:   call the model once before tg.graft\n"
        "  return new values:    as results\n"
        "  make it an argument:  graft a function that takes the model as an argument"
    )


def arrays_left(trace: weakref.ref[Any], old_ids: frozenset[int]) -> tuple[list[Any], frozenset[int]]:
    """Return the arrays of a trace that has ended that are still there, and the identities of all objects that are new.
    Inside of `among_new_objects`, which gave `old_ids`."""
    if trace() is None:
        return [], frozenset()
    gc.collect()
    ended_trace = trace()
    if ended_trace is None:
        return [], frozenset()
    all_objects = gc.get_objects()
    # by `type(x)`: an object's `__class__` may run code of its own
    arrays = [x for x in all_objects if issubclass(type(x), Tracer) and x._trace is ended_trace]
    return arrays, frozenset(map(id, all_objects)) - old_ids


def refuse_keeping(x: Any, holder: str, fn: Callable[..., Any]) -> None:
    """Raises TracedValueError."""
    raise TracedValueError(
        f"{_name(fn)} keeps an array that is being traced ({x.aval.str_short()}): {holder}. At later calls the"
        " function itself does not run, so that nothing would be kept.\n"
        "  return it:  as a result of the function\n"
        "  write it:   to a variable of flax.nnx among the arguments"
    )


@contextlib.contextmanager
def _unfrozen() -> Iterator[None]:
    """Let the garbage collector list objects that were frozen (`gc.freeze`)."""
    if not gc.get_freeze_count():
        yield
        return
    gc.unfreeze()
    try:
        yield
    finally:
        gc.freeze()


@_unfrozen()
def kept_arrays(tracers: list[Any], new_ids: frozenset[int], results: Sequence[Any]) -> list[tuple[Any, str]]:
    """Return the arrays of a trace that the program keeps, and the objects that keep them.

    Objects made during the trace do not count by themselves: a closure in one of JAX's caches is out of the program's
    reach. The search from an array upwards therefore ends in an object that existed before, in an attribute or variable
    of one, or in one of the `results`. Referrers are looked up for all arrays at once, because `gc` examines every
    object.

    Arguments:
        tracers: arrays of the trace.
        new_ids: the identities of the objects that are new.
        results: values that the function returns, other than arrays.
    """
    kept_by: dict[int, tuple[Any, str]] = {}
    returned = set(map(id, results))
    of = {id(x): (x, "") for x in tracers}  # for each object of a level an array in it, and the nearest name for where
    level: list[Any] = list(tracers)
    seen_ids = set(of)
    for _ in range(_FARTHEST):
        referrers = gc.get_referrers(*level)
        level_ids = set(map(id, level))
        seen_ids.update((id(level), id(referrers), id(tracers), id(results)))
        outer: list[Any] = []
        for referrer in referrers:
            if id(referrer) in seen_ids or isinstance(referrer, types.FrameType | types.TracebackType):
                continue
            seen_ids.add(id(referrer))
            referent = next((y for y in gc.get_referents(referrer) if id(y) in level_ids), None)
            if referent is None:
                continue
            x, near = of[id(referent)]
            location = _referrer_words(referrer, referent)
            is_new = id(referrer) in new_ids
            of[id(referrer)] = x, near or location or ""
            if id(referrer) in returned or (location is not None and not is_new):
                kept_by.setdefault(
                    id(x), (x, of[id(referrer)][1] or f"in a {type(referrer).__qualname__} among the results")
                )
            elif isinstance(referrer, _CONTAINERS_OF_ANY) or (is_new and not _is_of_traces(referrer)):
                outer.append(referrer)
        if not outer:
            break
        level = outer
    return list(kept_by.values())


def _is_of_traces(x: Any) -> bool:
    """Return whether an object is JAX's own record of a trace, which no program holds."""
    return type(x).__module__.startswith(("jax._src.core", "jax._src.interpreters"))


def _referrer_words(referrer: Any, x: Any) -> str | None:
    """Return, in the program's terms, where an object that refers to `x` keeps it; None for containers and for objects
    of libraries."""
    if isinstance(referrer, types.CellType):
        function = _function_around(referrer)
        return None if function is None else f"in a variable of {function}"
    if isinstance(referrer, types.FunctionType):
        return None if _is_library(referrer.__module__) else f"in a default of {referrer.__qualname__}"
    if isinstance(referrer, dict):
        owner = _owner(referrer)
        name = next((name for name, value in referrer.items() if value is x), None)
        return None if owner is None else f"in {owner}.{name}" if name is not None else f"in {owner}"
    if _is_jaxs(referrer):
        return None
    # attributes that are stored in the object itself: slots, or a `__dict__` that was never materialised
    slots = [n for c in type(referrer).__mro__ for n in getattr(c, "__slots__", ())]
    names = (name for name in (*getattr(referrer, "__dict__", ()), *slots) if getattr(referrer, name, None) is x)
    name = next(names, None)
    # an empty `__dict__` that was materialised during the trace
    if name is None and getattr(referrer, "__dict__", None) is x:
        return f"in a {type(referrer).__qualname__}"
    return None if name is None else f"in {name} of a {type(referrer).__qualname__}"


def _function_around(cell: types.CellType) -> str | None:
    """Return the program's function that has a variable in its closure."""
    closures = [x for x in gc.get_referrers(cell) if isinstance(x, tuple)]
    functions = [f for c in closures for f in gc.get_referrers(c) if isinstance(f, types.FunctionType)]
    return next((f.__qualname__ for f in functions if not _is_library(f.__module__)), None)


def _owner(namespace: dict[Any, Any]) -> str | None:
    """Return the name of the object whose attributes a dictionary has; None where it is not the program's."""
    for referrer in gc.get_referrers(namespace):
        if isinstance(referrer, type):  # its `__dict__` is a view of the class
            return None if _is_library(referrer.__module__) else referrer.__qualname__
        if getattr(referrer, "__dict__", None) is not namespace:
            continue
        if isinstance(referrer, types.ModuleType):
            return None if _is_jaxs(referrer) else referrer.__name__
        if not _is_jaxs(referrer) and not isinstance(referrer, BaseException):
            return f"a {type(referrer).__qualname__}"
    return None


def _is_jaxs(x: Any) -> bool:
    return _is_library(x.__name__ if isinstance(x, types.ModuleType) else type(x).__module__)


def _is_library(module: str | None) -> bool:
    """Return True if a module's objects are a library's, not the program's: an array that a library keeps may be in a
    cache of compiled functions that is not read again. (JAX raises UnexpectedTracerError if it is.)"""
    root = (module or "").partition(".")[0]
    if root in ("jax", "jaxlib", "tensorgraft", "weakref", "functools", "builtins"):
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return file is not None and file.startswith(_LIBRARIES)


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
