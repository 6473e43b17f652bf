"""The backend on JAX: CPU, GPU and TPU through XLA, compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorgraft.backends.jax.backend import JaxBackend

__all__ = ["JaxBackend"]


def __getattr__(name: str) -> Any:
    """`JaxBackend`, with which JAX is imported: `deferred` does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tensorgraft.backends.jax import backend

    return backend.JaxBackend
