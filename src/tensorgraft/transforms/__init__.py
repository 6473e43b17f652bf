"""Transforms of programs: compilation."""

from tensorgraft.transforms.jit import jit, report

__all__ = ["jit", "report"]
