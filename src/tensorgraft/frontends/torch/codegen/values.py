"""Values that a program asks for while it is recorded (`.item()`, a mask's `.all()`).

They are known where they depend on nothing but constants and sizes, which are those of the trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorgraft.codegen.trace import SourceStep
from tensorgraft.codegen.words import WORDS
from tensorgraft.hub import registry
from tensorgraft.hub.recorded.block import Block, Var, leaves, variables

_LARGEST = 1 << 22  # elements


Known = dict[Var, np.ndarray | None]  # None: it depends on unknown values


def values_of(makers: Mapping[Var, SourceStep], x: Var, known: Known) -> np.ndarray | None:
    """Return the values of an array, None for one that depends on arguments, weights or random numbers.

    `makers`: the steps that make arrays; `known`: values, to which those are added that are found out on the way.
    """
    stack = [x]
    while stack:
        v = stack[-1]
        if v in known or v.value is not None:
            stack.pop()
            continue
        step = makers.get(v)
        if step is None or step.method == "split_key" or v.size > _LARGEST or _has_blocks(step):
            known[v] = None
            stack.pop()
            continue
        operands = list(variables([step.args, step.kwargs]))
        missing = [w for w in operands if w.value is None and w not in known]
        if any(w.value is None and w in known and known[w] is None for w in operands):
            known.update((w, None) for w in variables(step.results))
            stack.pop()
        elif missing:
            stack += missing
        else:
            _compute(step, known)
            stack.pop()
    return x.value if x.value is not None else known[x]


def _has_blocks(step: SourceStep) -> bool:
    return any(type(a) is Block for a in leaves([step.args, step.kwargs]))


def _compute(step: SourceStep, known: Known) -> None:
    def plain(a: Any) -> Any:
        if type(a) is Var:
            return a.value if a.value is not None else known[a]
        if isinstance(a, tuple | list):
            return type(a)(plain(e) for e in a)
        return a

    xp = registry.get("numpy")
    word = WORDS.get(step.method)
    args, kwargs = plain(step.args), {k: plain(a) for k, a in step.kwargs.items()}
    with xp.scope():
        out = word(xp, *args, **kwargs) if word is not None else getattr(xp, step.method)(*args, **kwargs)
    flat = list(leaves(out))
    for v, value in zip(leaves(step.results), flat, strict=True):
        known[v] = np.asarray(value)
