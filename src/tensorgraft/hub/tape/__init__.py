"""Derivatives on backends whose framework has none: a backend that keeps a tape of the hub's primitives."""

from tensorgraft.hub.tape.backend import TapeBackend, Variable
from tensorgraft.hub.tape.transforms import jvp, vjp

__all__ = ["TapeBackend", "Variable", "jvp", "vjp"]
