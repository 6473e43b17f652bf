"""`tg.jit`: a function, a whole training step included, as one program of its backend."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, get_args, overload

import optree

from tensorgraft.arrays import framework_of
from tensorgraft.compiled import background
from tensorgraft.compiled.agreement import Check, default_check
from tensorgraft.compiled.background import At, When
from tensorgraft.compiled.captured_objects import roots, walk
from tensorgraft.compiled.function import own_compiled
from tensorgraft.compiled.objects import reachable_objects
from tensorgraft.compiled.surroundings import OfAnother
from tensorgraft.hub.straight_line import MISSED

_P = ParamSpec("_P")
_R = TypeVar("_R")


@overload
def jit(
    fn: Callable[_P, _R],
    *,
    guard_values: bool = False,
    compile: When = "recurring",
    at: At | None = None,
    check: Check | None = None,
) -> Callable[_P, _R]: ...


@overload
def jit(
    fn: None = None,
    *,
    guard_values: bool = False,
    compile: When = "recurring",
    at: At | None = None,
    check: Check | None = None,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    guard_values: bool = False,
    compile: When = "recurring",
    at: At | None = None,
    check: Check | None = None,
) -> Callable[..., Any]:
    """Compile what `fn` does on the device, with `loss.backward()` and `optimizer.step()` if it has them.

    Tensors that `fn` reads, arguments or not, are inputs of the program; in-place writes are made as in eager code, and
    their memory is reused. Shapes, dtypes and Python values are constants: other ones are traced and compiled again.
    Learning rates and random numbers are inputs. On a backend that does not compile (NumPy) `fn` itself is called.

    Arguments:
        fn: a function or a module of a PyTorch program on the device `graft`, or on the CPU, where Dynamo captures it
            and the default device computes; or a function of `Array`s. Without `fn`, `jit` returns a decorator.
        guard_values: allow Python to read integers and booleans from tensors (`if mask.any():`), which otherwise is an
            error. Each call computes them first and waits for them; for other values another program is compiled.
        compile: when a signature (shapes, dtypes, Python values) is compiled: at its first call, or where eager
            operators have a cold tier (`tg.eager`), and the function has a program for another one, when it recurs.
            Until then its calls run `fn` uncompiled. "background": another thread compiles while the first calls of
            each signature run `fn` uncompiled.
        at: the number of the call of a signature that waits for the program from the thread and switches to it: 2 or
            more, None for 32. "ready": the first call after it has been compiled; which calls are compiled, and so the
            last bits of results, then differ from run to run.
        check: when a signature is traced once more and the two programs are compared: at its "second" call, "always" or
            "never". If they differ, a warning names the difference, and the signature runs as eager code. None: the
            value of the environment variable `TENSORGRAFT_JIT_CHECK`, or never.

    Side effects on Python objects are kept: what `fn` changes in lists, dictionaries, sets, attributes and variables is
    changed at every call. Results may be objects of any class that can be copied.

    Returns:
        A function with the arguments and results of `fn`; of a module a module, as `torch.compile` returns it, whose
        parameters, attributes and mode are those of `fn` (`_orig_mod`). Its results can be differentiated, to any
        order, by compiled backward passes, which keep the same activations as PyTorch.

    Raises:
        TracedValueError: from a call, if `fn` reads the value of a tensor (`.item()`, `if tensor:`) or has an effect
            that compiled calls could not repeat (draws random numbers on the CPU, writes a CPU tensor). Every tensor
            and object then has its value of before the call.
        ValueError: for another `compile`, `at` or `check`, and for `at` without "background".
        RuntimeError: if `fn` continues the autograd history of a tensor from outside (pass it as an argument).

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> tg.jit(lambda x: xp.sum(x * 2))(xp.asarray([1.0, 2.0], device="jax")).tolist()
    6.0
    """
    if fn is None:
        return functools.partial(jit, guard_values=guard_values, compile=compile, at=at, check=check)
    if compile not in get_args(When):
        raise ValueError(f"tg.jit(fn, compile=...): expected 'first', 'recurring' or 'background', got {compile!r}")
    at = background.checked(compile, at)
    if check is None:
        check = default_check()
    elif check not in get_args(Check):
        raise ValueError(f"tg.jit(fn, check=...): expected 'second', 'always' or 'never', got {check!r}")
    compiled = own_compiled(fn)
    if compiled is not None:
        return compiled
    compiler = functools.partial(Jit, guard_values=guard_values, compile=compile, check=check, at=at)
    module: Any = fn
    if not _is_torch_module(module):
        return compiler(fn)
    from tensorgraft.frontends.torch.compiled.module import compiled_module

    return compiled_module(module, compiler)


class Jit:
    """A compiled function. At each call its arguments determine whether it is a program of PyTorch or of the Array API;
    without arguments of either, the objects that it refers to do."""

    def __init__(
        self,
        fn: Callable[..., Any],
        guard_values: bool,
        compile: When,
        check: Check = "never",
        at: At = background.SWITCH,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn, self._options = fn, (guard_values, compile, check, at)
        self._compiled: Any = None  # compiled by the front end of the last call
        self._all: dict[str, Any] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Jit:
        return Jit(copy.deepcopy(self.fn, memo), *self._options)

    def __reduce__(self) -> Any:
        if getattr(sys.modules.get(self.__module__), self.__qualname__, None) is self:  # pickled by its name
            return self.__qualname__
        return Jit, (self.fn, *self._options)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        compiled = self._compiled
        if compiled is None:
            compiled = self.decided(args, kwargs)
        out = compiled.straight(args, kwargs)
        if out is not MISSED:
            return out
        try:
            return compiled.looked_up(args, kwargs)
        except OfAnother:
            other = self.decided(args, kwargs)
            if other is compiled:
                raise
        return other(*args, **kwargs)

    def decided(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the compiled function of the front end whose call this is."""
        front_end = _front_end(self.fn, args, kwargs)
        if front_end not in self._all:
            self._all[front_end] = self._compiled_for(front_end)
        self._compiled = self._all[front_end]
        return self._compiled

    def _compiled_for(self, front_end: str) -> Any:
        guard_values, when, check, at = self._options
        if front_end == "tensorgraft":
            from tensorgraft.frontends.array_api.transforms.jit import Jitted

            return Jitted(self.fn, check, when, at)
        from tensorgraft.frontends.torch.compiled.jit import Compiled

        return Compiled(self.fn, guard_values=guard_values, compile=when, check=check, at=at)

    # attributes are the function's, which has them under another name too, and may count its calls in one

    def __getattr__(self, name: str) -> Any:
        fn = self.__dict__.get("fn")
        while type(fn) is Jit:  # compiled twice
            fn = fn.fn
        if name in getattr(fn, "__dict__", ()):
            return vars(fn)[name]
        if name.startswith("__") or self.__dict__.get("_compiled") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._compiled, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OF_COMPILED or name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(self.fn, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.fn, name)


_OF_COMPILED = ("fn", "_options", "_compiled", "_all")


_MOST = 1024  # objects among the arguments that are looked at


def _front_end(fn: Callable[..., Any], args: Any, kwargs: Any) -> str:
    """ "tensorgraft" (the Array API) or "torch"."""
    call: Any = (args, kwargs)
    leaves = _leaves(call)
    objects = itertools.islice(
        reachable_objects([x for x in leaves if not callable(x)], lambda x: framework_of(x) is not None), _MOST
    )
    for around in (leaves, objects):
        frameworks = set(map(framework_of, around))
        if "tensorgraft" in frameworks or "torch" in frameworks:
            return "tensorgraft" if "tensorgraft" in frameworks else "torch"
    near = [*roots(fn), *(("", x) for x in (*args, *kwargs.values()))]
    for candidates in ([x for _, x in near], [x for _, x, _ in walk(near)]):
        if any(framework_of(x) == "tensorgraft" for x in candidates):
            return "tensorgraft"
        if any(map(_is_torch, candidates)):
            return "torch"
        if any(map(_of_arrays, candidates)):
            return "tensorgraft"
    return "torch"


def _leaves(call: Any) -> list[Any]:
    try:
        return optree.tree_leaves(call)
    except Exception:  # keys that have no order, tensors among them
        return [value for _, value, _ in walk([("", call)])]


def _is_torch_module(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.nn.Module)


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and (x is torch or isinstance(x, torch.Tensor | torch.nn.Module))


def _of_arrays(x: Any) -> bool:
    """Return True for the Array API's namespace, or a function of it."""
    name = x.__name__ if isinstance(x, types.ModuleType) else getattr(x, "__module__", None)
    return isinstance(name, str) and name.startswith(("tensorgraft.array_api", "tensorgraft.frontends.array_api"))


def report() -> list[Any]:
    """Return a report on the compiled functions of this process, the thousand newest: name, calls, traces and their
    reasons, seconds, operations. `tg.explain` describes one call in more detail. Raises nothing."""
    torch_jit = sys.modules.get("tensorgraft.frontends.torch.compiled.jit")  # without it there were no calls
    return [] if torch_jit is None else list(torch_jit.reports)
