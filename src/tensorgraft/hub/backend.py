"""`Backend`: what a framework must offer so that programs of every front end run on it.

Its methods are in four parts: operations on arrays, by area; arrays in memory and devices; programs; interchange with
the framework's own users. Those marked `@primitive` are required; the others are composites, written once on the
primitives, and overridden where a framework has its own. Arguments before `/` are arrays of the backend.
"""

from __future__ import annotations

from tensorgraft.hub.compiler import Compiler
from tensorgraft.hub.interchange import Interchange
from tensorgraft.hub.operations import Operations
from tensorgraft.hub.primitive import primitives
from tensorgraft.hub.runtime import Runtime
from tensorgraft.hub.transforms import Transforms


class Backend(Operations, Transforms, Runtime, Compiler, Interchange):
    """One framework's arrays on one of its devices."""

    def __init__(self, index: int = 0, platform: str | None = None) -> None:
        """The device `index` of the framework (of the given platform, for example "gpu")."""
        missing = [name for name, f in primitives(type(self)).items() if getattr(type(self), name) is f]
        if missing:
            raise TypeError(f"{type(self).__name__} lacks the primitives {', '.join(missing)}")
        self.index = index
        self.platform = platform
