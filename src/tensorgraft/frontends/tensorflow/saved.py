"""SavedModels: folders with signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tensorgraft.frontends.tensorflow.grafted import GraftedGraph
from tensorgraft.hub.backend import Backend


class GraftedSignatures(Mapping[str, GraftedGraph]):
    """The signatures of a SavedModel, by name: functions of arrays by name, which give arrays by name. Where there is
    one alone, it is what is called."""

    def __init__(self, directory: str, xp: Backend) -> None:
        self.directory = directory
        self.loaded = tf.saved_model.load(directory)  # which holds the variables
        self._signatures = {name: GraftedGraph(f, xp) for name, f in self.loaded.signatures.items()}

    def __getitem__(self, name: str) -> GraftedGraph:
        if name not in self._signatures:
            raise KeyError(f"{self.directory} has no signature {name!r}; it has {', '.join(self) or 'none'}")
        return self._signatures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._signatures)

    def __len__(self) -> int:
        return len(self._signatures)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises TypeError where there is not one signature alone."""
        if len(self) != 1:
            raise TypeError(f"{self.directory} has {len(self)} signatures ({', '.join(self)}): choose one of them")
        return next(iter(self.values()))(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<signatures of {self.directory}: {', '.join(self)}>"
