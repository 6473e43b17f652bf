"""JAX programs as `tensorgraft.source.trace.Trace`s, of which readable source is written."""

from tensorgraft.frontends.jax.sourced.programs import trace_function

__all__ = ["trace_function"]
