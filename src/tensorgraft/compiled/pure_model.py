"""A model of another framework as a pure function and its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tensorgraft.hub.array import Array


class PureModel(NamedTuple):
    """A model as a pure function: `out, buffers = apply(params, buffers, *args, **kwargs)`. `params` are the arrays
    that are trained, `buffers` the others; names are those of the model."""

    apply: Callable[..., tuple[Any, Any]]
    params: dict[str, Array]
    buffers: dict[str, Array]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model with its own values. Raises ValueError where it writes buffers, which only `apply` returns."""
        out, buffers = self.apply(self.params, self.buffers, *args, **kwargs)
        written_names = [name for name, x in buffers.items() if x is not self.buffers[name]]
        if written_names:
            raise ValueError(
                f"the model writes {', '.join(written_names)}: call .apply(params, buffers, ...), which returns them"
            )
        return out
