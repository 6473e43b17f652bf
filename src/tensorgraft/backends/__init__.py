"""The backends of this package. Called, `tensorgraft.backends()` lists the names of those that can be used here."""

import sys
import types

from tensorgraft import private
from tensorgraft.hub import registry


class _Backends(types.ModuleType):
    """A module that can be called: Python binds the package's name over a function of the same name."""

    def __call__(self) -> list[str]:
        return registry.backends()


sys.modules[__name__].__class__ = _Backends
private.watch()
