"""The trace of JAX that is under way, if there is one."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend import core

find_top_trace: Any = getattr(core, "find_top_trace", None) or jax.core.find_top_trace  # JAX 0.9

with jax.core.eval_context():  # this module may be imported during a trace
    EAGER: Any = find_top_trace(())  # the trace that computes at once


def current_trace() -> Any:
    """Return the trace in progress, or `EAGER`."""
    return find_top_trace(())


def is_tracing() -> bool:
    """Return whether a program is being traced, whose constants are no tracers."""
    return find_top_trace(()) is not EAGER
