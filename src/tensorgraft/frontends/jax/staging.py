"""What is computed while a function is traced: whatever does not depend on its arguments, but for effects. A callback,
or an array that is written, belongs to every run of the program, and in a branch only to the runs that take it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import callback, config, core, debugging

_staged = contextvars.ContextVar("staged", default=False)


@contextlib.contextmanager
def compile_time_eval() -> Iterator[None]:
    """`jax.ensure_compile_time_eval`, without effects."""
    token = _staged.set(True)
    try:
        with jax.ensure_compile_time_eval():
            yield
    finally:
        _staged.reset(token)


def _bind(bind: Callable[..., Any], *operands: Any, **params: Any) -> Any:
    if not _staged.get():
        return bind(*operands, **params)
    with config.eager_constant_folding(False):
        return bind(*operands, **params)


for _primitive in (
    *(callback.pure_callback_p, callback.io_callback_p, debugging.debug_callback_p, debugging.debug_print_p),
    *(core.ref_p, core.empty_ref_p),
):
    # JAX asks nobody which primitives it may compute: what binds one is to say that for it (instances have their own)
    _primitive.bind = functools.partial(_bind, _primitive.bind)  # type: ignore[method-assign]
