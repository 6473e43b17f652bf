"""A backend that computes shapes and dtypes only: the single home of the rules that every backend is tested against."""

from tensorgraft.hub.abstract.array import ShapeDtype
from tensorgraft.hub.abstract.backend import AbstractBackend

__all__ = ["AbstractBackend", "ShapeDtype"]
