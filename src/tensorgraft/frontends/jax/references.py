"""Jaxprs without arrays that are written."""

from __future__ import annotations

from jax._src.core import internal_mutable_array_effect
from jax._src.state.discharge import discharge_state
from jax.extend import core


def discharged(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return the jaxpr without `jax.new_ref`: values written to references are passed on instead."""
    return discharge_state(closed) if internal_mutable_array_effect in closed.effects else closed
