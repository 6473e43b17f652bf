"""`Backend`: the interface that a framework implements so that programs of every front end run on it.

Its methods are in four parts: operations on arrays, by area; arrays in memory and devices; programs; interchange with
users of the framework. Those marked `@primitive` are required; the others are composites of the primitives, which a
backend overrides if its framework has a native form. Arguments before `/` are arrays of the backend.
"""

from __future__ import annotations

from tensorgraft.hub.compiler import Compiler
from tensorgraft.hub.interchange import Interchange
from tensorgraft.hub.operations import Operations
from tensorgraft.hub.primitive import primitives
from tensorgraft.hub.runtime import Runtime
from tensorgraft.hub.transforms import Transforms


class Backend(Operations, Transforms, Runtime, Compiler, Interchange):
    """One framework's arrays on one of its devices: a class derives from it, has the primitives, and is found by its
    entry point. Arrays are the framework's own, dtypes `numpy.dtype`s.

    Raises TypeError, when one is made, for a class that lacks primitives, which it names.

    >>> import numpy as np
    >>> from tensorgraft.hub import registry
    >>> backend = registry.get("numpy")
    >>> backend.multiply(backend.asarray(np.array([1.0, 2.0])), 2).tolist()
    [2.0, 4.0]
    """

    cold: Backend | None = None  # computes on this one's memory, and needs no compiler: see `hub.tiers`
    host_visible = True  # where there is one: the host reads that memory, and does not compute on copies of arrays

    def __init__(self, index: int = 0, platform: str | None = None) -> None:
        """The device `index` of the framework (of the given platform, for example "gpu")."""
        missing = [name for name, f in primitives(type(self)).items() if getattr(type(self), name) is f]
        if missing:
            raise TypeError(f"{type(self).__name__} lacks the primitives {', '.join(missing)}")
        self.index = index
        self.platform = platform
