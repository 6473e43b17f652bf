"""Derivatives on backends whose framework has none: a backend that keeps a tape of the hub's primitives."""

from tensorgraft.hub.tape.backend import Variable
from tensorgraft.hub.tape.transforms import ByTape, TapeBackend, jvp, vjp

__all__ = ["ByTape", "TapeBackend", "Variable", "jvp", "vjp"]
