"""Products and factorisations of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub.backend import Backend

Array = Any


@rule("dot_general")
def dot_general(
    xp: Backend, a: Array, b: Array, *, dimension_numbers: Any, preferred_element_type: Any, out: Any, **_: Any
) -> Array:
    ((contract_a, contract_b), (batch_a, batch_b)) = dimension_numbers
    return xp.dot_general(
        a, b, (tuple(contract_a), tuple(contract_b)), (tuple(batch_a), tuple(batch_b)), np.dtype(out[0].dtype)
    )
