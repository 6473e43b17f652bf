"""The values that a function has from around it, by the names that its code has for them."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any


def captured_values(
    fn: Any, *, of_user: Callable[[str], bool] = lambda path: True, stop: Callable[[Any], bool] = lambda fn: False
) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of what a function has from around it: the arguments of a `partial`, `self` of a method, the
    variables of its closure, and of a user's file also the defaults of parameters and the globals that it names.

    Arguments:
        of_user: whether a file, given by its path, is the user's.
        stop: whether an object that a decorator wraps is a value, which is then all there is, with the name "model".
    """
    if isinstance(fn, functools.partial):
        yield from captured_values(fn.func, of_user=of_user, stop=stop)
        yield from ((f"arg{i}", x) for i, x in enumerate((*fn.args, *fn.keywords.values())))
        return
    fn = getattr(fn, "python_function", fn)  # the function of a `tf.function`
    if isinstance(fn, types.MethodType):
        yield "self", fn.__self__
        fn = fn.__func__
    fn = inspect.unwrap(fn, stop=stop) if callable(fn) else fn
    if stop(fn):
        yield "model", fn
    fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is not filled yet
            continue
    if of_user(code.co_filename):
        positional = code.co_varnames[: code.co_argcount]
        defaults = fn.__defaults__ or ()
        yield from zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
        yield from (fn.__kwdefaults__ or {}).items()
        yield from ((name, fn.__globals__[name]) for name in names_in(code) if name in fn.__globals__)


def names_in(code: types.CodeType) -> list[str]:
    """Return the names of globals and attributes in a function's code and that of the functions in it, each once."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return list(dict.fromkeys([*code.co_names, *(name for c in inner for name in names_in(c))]))
