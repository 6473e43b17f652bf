"""Pickled functions and modules name this class here."""

from tensorgraft.frontends.jax.interop.keras import AmongKeras

__all__ = ["AmongKeras"]
