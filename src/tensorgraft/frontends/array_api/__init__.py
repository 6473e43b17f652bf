"""The Array API standard (2025.12) over every backend: `import tensorgraft.array_api as xp`."""

from tensorgraft.frontends.array_api import operators  # noqa: F401  (gives `Array` its operators)
from tensorgraft.frontends.array_api.array import Array

__all__ = ["Array"]
