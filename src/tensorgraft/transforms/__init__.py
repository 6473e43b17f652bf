"""Transforms of programs: compilation, and what is told of it."""

from tensorgraft.transforms.explain import Explanation, explain
from tensorgraft.transforms.jit import jit, report

__all__ = ["Explanation", "explain", "jit", "report"]
