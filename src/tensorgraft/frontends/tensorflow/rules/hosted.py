"""Operations whose results have shapes that depend on values: computed by NumPy on the host, and refused in a trace."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.values import is_known
from tensorgraft.hub.backend import Backend

F = TypeVar("F", bound=Callable[..., Any])
ON_HOST: set[str] = set()  # operations that this says of


def on_host(*names: str, traced: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """The rule of operations is a function of `numpy.ndarray`s (and of attributes), and gives such. It is called as if
    it had a backend, too, so that what it is given says which arguments there are: `fn(operands..., *, attributes)`.
    `traced`: the rule where operands are being traced, which may say that there is none (None)."""

    def register(fn: F) -> F:
        def run(xp: Backend, *operands: Any, **attributes: Any) -> Any:
            if any(not is_known(x) and xp.is_traced(x) for x in operands):
                found = None if traced is None else traced(xp, *operands, **attributes)
                if found is not None:
                    return found
                raise TracedValueError(
                    f"{' / '.join(names)} has results whose shape depends on values, or is computed on the host, and"
                    " its operands are being traced: call the program without compiling it"
                )
            return fn(*[np.asarray(x) if is_known(x) else xp.to_numpy(x) for x in operands], **attributes)

        run.__signature__ = _with_backend(fn)  # type: ignore[attr-defined]
        rule(*names, either=tuple(range(32)))(run)
        ON_HOST.update(names)
        return fn

    return register


def _with_backend(fn: Callable[..., Any]) -> Any:
    signature = inspect.signature(fn)
    first = inspect.Parameter("xp", inspect.Parameter.POSITIONAL_ONLY)
    others = [
        p.replace(kind=p.POSITIONAL_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p
        for p in signature.parameters.values()
    ]
    return signature.replace(parameters=[first, *others])
