"""The Array API standard (2025.12) over every backend: `import tensorgraft.array_api as xp`."""

from tensorgraft.frontends.array_api import protocols  # noqa: F401  (these two give `Array` methods)
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.standard import operators  # noqa: F401

__all__ = ["Array"]
