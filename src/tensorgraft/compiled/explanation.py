"""Explanations of a call, as `tg.explain` returns them."""

from __future__ import annotations

import dataclasses
from typing import Any

from tensorgraft.compiled.explained_call import ExplainedCall


class Explanation(ExplainedCall):
    """An explanation of how `tg.jit` compiles one call. `print` it, or convert it with `to_dict()`."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        from tensorgraft.compiled.rendering import as_text

        return as_text(self)

    def __rich__(self) -> Any:
        from tensorgraft.compiled.rendering import rendered

        return rendered(self)
