"""`__array_namespace_info__`: the capabilities, devices and dtypes of the namespace."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core import devices as _devices
from tensorgraft.frontends.array_api.core.promotion import STANDARD
from tensorgraft.frontends.array_api.standard.data_types import isdtype
from tensorgraft.hub import dtypes


class Info:
    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> _devices.Device:
        return _devices.default()

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """Return the default dtypes, which are the same on every device."""
        _devices.resolve(device)
        return {
            "real floating": dtypes.float64,
            "complex floating": dtypes.complex128,
            "integral": dtypes.int64,
            "indexing": dtypes.int64,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype]:
        """Return the dtypes of the standard, by name; every device has them all."""
        _devices.resolve(device)
        return {str(d): d for d in STANDARD if kind is None or isdtype(d, kind)}

    def devices(self) -> tuple[_devices.Device, ...]:
        return _devices.known()


def __array_namespace_info__() -> Info:
    """Return the capabilities of the namespace (`capabilities()`), its devices, and the dtypes and default dtypes of
    each."""
    return Info()


__all__ = ["__array_namespace_info__"]
