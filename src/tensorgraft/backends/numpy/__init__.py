"""NumPy as a backend: eager, mutable, and nothing but NumPy (SciPy for special functions and some factorisations)."""

from tensorgraft.backends.numpy.backend import NumpyBackend

__all__ = ["NumpyBackend"]
