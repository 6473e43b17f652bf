"""`filter_jit`: `tg.jit` of functions of any pytrees, modules among them; and how often functions are traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorgraft.transforms.module import field
from tensorgraft.transforms.wrapper import WrappedFunction, adopted, name_of


class _Jit(WrappedFunction):
    compiled: Any = field(static=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(*adopted((self.fn, args, kwargs)))


def filter_jit(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function, module or bound method of pytrees with leaves of any kind.

    Arrays, including those that the function itself contains, are inputs of the program; other leaves (functions,
    strings, static fields) are constants: for other ones it is compiled again. Python numbers are inputs as long as the
    function does not read their values. Results may have leaves of any kind.

        step = tg.transforms.filter_jit(tg.transforms.filter_value_and_grad(loss))
        value, grads = step(model, x, y)

    It is `tg.jit` for arrays of `tensorgraft.array_api`: in-place writes are made as in eager code. Arrays of NumPy and
    of the frameworks are converted as by `asarray`.

    Raises TypeError for leaves that are neither arrays nor hashable; ValueError for arrays on several devices.
    """
    from tensorgraft.frontends.array_api.transforms.jit import Jitted

    def call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return fn(*args, **kwargs)

    call.__name__ = call.__qualname__ = name_of(fn)
    call.__wrapped__ = fn  # type: ignore[attr-defined]  # of which errors tell
    return _Jit(fn, Jitted(call))


class _Counted(WrappedFunction):
    max_traces: int | None = field(static=True)
    traces: list[int] = field(static=True)  # one number, which copies of the wrapper share

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from tensorgraft.frontends.array_api.core.tracing import is_compiling

        if is_compiling():
            self.traces[0] += 1
            if self.max_traces is not None and self.traces[0] > self.max_traces:
                raise RuntimeError(
                    f"{name_of(self.fn)} is being traced for the {self.traces[0]}th time, but at most"
                    f" {self.max_traces} are allowed (assert_max_traces): shapes, dtypes or Python arguments have"
                    " changed"
                )
        return self.fn(*args, **kwargs)


def assert_max_traces(fn: Callable[..., Any] | None = None, *, max_traces: int | None) -> Callable[..., Any]:
    """Return a decorator for functions inside `tg.jit`, which raise RuntimeError when they are traced more often than
    `max_traces`:

        @tg.transforms.filter_jit
        @tg.transforms.assert_max_traces(max_traces=1)
        def f(x): ...

    Calls outside of compiled functions do not count; a backend that does not compile (NumPy) has no traces. Raises
    RuntimeError from the call that is traced once too often.
    """
    if fn is None:
        return lambda fn: assert_max_traces(fn, max_traces=max_traces)
    return _Counted(fn, max_traces, [0])


def get_num_traces(fn: Any) -> int:
    """Return how often a function of `assert_max_traces` was traced. Raises TypeError for any other."""
    while isinstance(fn, WrappedFunction) and not isinstance(fn, _Counted):
        fn = fn.fn
    if not isinstance(fn, _Counted):
        raise TypeError(f"get_num_traces: {name_of(fn)} is not a function returned by assert_max_traces")
    return fn.traces[0]
