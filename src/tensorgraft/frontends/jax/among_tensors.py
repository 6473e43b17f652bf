"""Pickled functions and modules name this class here."""

from tensorgraft.frontends.jax.interop.tensors import AmongTensors

__all__ = ["AmongTensors"]
