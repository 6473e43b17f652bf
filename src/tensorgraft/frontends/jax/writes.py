"""What a JAX function does to the objects around it while it is traced: what is no argument or result of it, or is an
object that JAX takes apart and makes anew, cannot be written by a traced function, and that is an error.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import site
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.jax.objects import is_object

_LIBRARIES = tuple(site.getsitepackages())
_CONTAINERS = (dict, list, tuple, collections.OrderedDict, collections.defaultdict, type(None))


@contextlib.contextmanager
def refused(arguments: Any, fn: Callable[..., Any]) -> Iterator[None]:
    """Raises TracedValueError where an argument of a class that its program registered as a pytree was written: the
    caller's object would not be. (Dictionaries, lists and the states of `nnx.split` are copies, as under `jax.jit`.)"""
    leaves = jax.tree.leaves(arguments, is_leaf=lambda x: is_object(x) or _is_own(x))
    before = [(x, _parts(x)) for x in leaves if _is_own(x)]
    yield
    for x, parts in before:
        now = _parts(x)
        if parts is None or now is None:
            continue
        if now[1] != parts[1] or any(a is not b for a, b in zip(now[0], parts[0], strict=True)):
            raise TracedValueError(
                f"{_name(fn)} writes an argument, a {type(x).__qualname__}. It is traced with a copy of that, so that"
                " the caller's object would stay as it was.\n"
                "  return it:       and take the result in its place\n"
                "  let it be seen:  keep what changes in variables of flax.nnx, which are written"
            )


def _is_own(x: Any) -> bool:
    if isinstance(x, Tracer | tuple) or type(x) in _CONTAINERS or is_object(x):
        return False
    # The functional way of nnx: a model is merged of a state inside, and its state afterwards is a result.
    return not type(x).__module__.startswith("flax.nnx") and hasattr(x, "__dict__") and _parts(x) is not None


def _parts(x: Any) -> tuple[list[Any], Any] | None:
    """Leaves and structure; None of what is no pytree of its own."""
    try:
        leaves, structure = jax.tree.flatten(x)
    except Exception:  # a class of the program that can be taken apart once (equinox.nn.State)
        return None
    return None if len(leaves) == 1 and leaves[0] is x else (leaves, structure)


def refuse_new_state(fn: Callable[..., Any]) -> None:
    """Raises TracedValueError: a module has the state that it had when it was grafted."""
    raise TracedValueError(
        f"{_name(fn)} changes more of itself than the arrays in its variables: an attribute, or a variable that is new"
        " (as those of `sow`). What tg.graft has made of it has the variables that it had then.\n"
        "  make them before:     call the model once, and graft it then\n"
        "  return what is new:   as a result\n"
        "  let it all be seen:   graft a function that takes the model as an argument"
    )


def kept(trace: weakref.ref[Any]) -> list[tuple[Any, str]]:
    """The arrays of a trace that has ended that objects outside still hold, and where."""
    if trace() is None:
        return []
    gc.collect()
    ended = trace()
    if ended is None:
        return []
    tracers = [x for x in gc.get_referrers(ended) if isinstance(x, Tracer)]
    seen = {id(ended), id(tracers)}
    return [(x, holder) for x in tracers if (holder := _holder(x, 4, set(seen))) is not None]


def refuse_keeping(x: Any, holder: str, fn: Callable[..., Any]) -> None:
    """Raises TracedValueError."""
    raise TracedValueError(
        f"{_name(fn)} keeps an array that is only being traced ({x.aval.str_short()}): {holder}. At later calls the"
        " function itself does not run, so that nothing would be kept.\n"
        "  return it:       as a result of the function\n"
        "  let it be seen:  in a variable of flax.nnx among the arguments, which is written"
    )


def _holder(x: Any, depth: int, seen: set[int]) -> str | None:
    """Where the program keeps an object: an attribute, a variable of a module or of a closure."""
    seen.add(id(x))
    for referrer in gc.get_referrers(x):
        if id(referrer) in seen or isinstance(referrer, types.FrameType | types.TracebackType):
            continue
        if isinstance(referrer, types.CellType):
            if (function := _function_around(referrer)) is not None:
                return f"in a variable of {function}"
        elif isinstance(referrer, types.FunctionType):
            if not _is_library(referrer.__module__):
                return f"in a default of {referrer.__qualname__}"
        elif isinstance(referrer, dict):
            if (owner := _owner(referrer)) is not None:
                names = [name for name, value in referrer.items() if value is x]
                return f"in {owner}.{names[0]}" if names else f"in {owner}"
        elif not _is_jaxs(referrer):  # attributes in an object itself: slots, or a dictionary that nobody has asked for
            slots = [n for c in type(referrer).__mro__ for n in getattr(c, "__slots__", ())]
            for name in (*getattr(referrer, "__dict__", ()), *slots):
                if getattr(referrer, name, None) is x:
                    return f"in {name} of a {type(referrer).__qualname__}"
        if isinstance(referrer, list | tuple | set | dict | collections.deque) and depth:
            found = _holder(referrer, depth - 1, seen)
            if found is not None:
                return found
    return None


def _function_around(cell: types.CellType) -> str | None:
    """The program's function that has a variable in its closure."""
    closures = [x for x in gc.get_referrers(cell) if isinstance(x, tuple)]
    functions = [f for c in closures for f in gc.get_referrers(c) if isinstance(f, types.FunctionType)]
    return next((f.__qualname__ for f in functions if not _is_library(f.__module__)), None)


def _owner(namespace: dict[Any, Any]) -> str | None:
    """Whose attributes a dictionary has, if that is the program's."""
    for referrer in gc.get_referrers(namespace):
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
    """Whose objects are not the program's: what a library makes inside may live on in a cache of compiled functions,
    where nobody looks for it. (JAX itself raises UnexpectedTracerError where somebody does.)"""
    root = (module or "").partition(".")[0]
    if root in ("jax", "jaxlib", "tensorgraft", "weakref", "functools", "builtins"):
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return file is not None and file.startswith(_LIBRARIES)


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
