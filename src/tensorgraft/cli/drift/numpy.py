"""A snapshot of NumPy: ufuncs with their types, and the names of the array API."""

from __future__ import annotations

import numpy as np

from tensorgraft.cli.drift import Kinds, hashed


def kinds() -> Kinds:
    names = [name for name in dir(np) if not name.startswith("_")]
    ufuncs = {name: getattr(np, name) for name in names if isinstance(getattr(np, name, None), np.ufunc)}
    return {
        "ufuncs": {name: hashed(f"{u.nin} {u.nout} {u.signature} {' '.join(u.types)}") for name, u in ufuncs.items()},
        "names": dict.fromkeys(names, ""),
    }
