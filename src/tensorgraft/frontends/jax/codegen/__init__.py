"""JAX programs as `tensorgraft.codegen.trace.SourceTrace`s, of which readable source is written."""

from tensorgraft.frontends.jax.codegen.programs import trace_function

__all__ = ["trace_function"]
