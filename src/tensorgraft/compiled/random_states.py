"""States of Python's and NumPy's random number generators."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy.random  # noqa: F401  which NumPy imports at its first use: in a trace there would be no state before it

from tensorgraft.importing import random_states, set_random_states


def states_of(generators: Sequence[Any]) -> list[Any]:
    return [*random_states(), *map(state_of, generators)]


_DRAW = ("bit_generator", "random_raw", "get_state")  # NumPy's generators have one of these


def is_generator(value: Any) -> bool:
    """Return whether a value is a generator of Python's or NumPy's random numbers."""
    kind = type(value)
    numpys = kind.__module__.startswith("numpy.random")
    return isinstance(value, random.Random) or (numpys and any(hasattr(kind, name) for name in _DRAW))


def state_of(generator: Any) -> Any:
    if isinstance(generator, random.SystemRandom):
        return None
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    if hasattr(generator, "random_raw"):  # a BitGenerator
        return generator.state
    return generator.get_state() if type(generator).__module__.startswith("numpy") else None


def same_state(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same_state(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        if isinstance(a, tuple) and {*map(type, a)} == {int}:  # the words of Python's generator
            return bool(a == b)
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same_state, a, b))
    return a is b or (a.tobytes() == b.tobytes() if hasattr(a, "tobytes") and hasattr(b, "tobytes") else bool(a == b))


def set_states(states: list[Any], generators: Sequence[Any]) -> None:
    if all(a is None or same_state(a, b) for a, b in zip(states, states_of(generators), strict=True)):
        return
    set_random_states(states[:2])
    for generator, state in zip(generators, states[2:], strict=True):
        if isinstance(generator, random.Random):
            if state is not None:
                generator.setstate(state)
        elif hasattr(generator, "bit_generator"):
            generator.bit_generator.state = state
        elif hasattr(generator, "random_raw"):
            generator.state = state
        elif state is not None:
            generator.set_state(state)
