"""Steps of optimizers."""

from __future__ import annotations

from typing import Any

import optree


def apply_updates(model: Any, updates: Any) -> Any:
    """Return a copy of a pytree with `updates` added to its leaves; `updates` has its structure, with None for leaves
    that do not change. Shapes and dtypes are those of `p + u`. Raises ValueError for trees of different structures."""
    return optree.tree_map(lambda u, p: p if u is None else p + u, updates, model, is_leaf=lambda u: u is None)
