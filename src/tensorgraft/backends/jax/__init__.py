"""The backend on JAX: CPU, GPU and TPU through XLA, compiled."""

from tensorgraft.backends.jax.backend import JaxBackend

__all__ = ["JaxBackend"]
