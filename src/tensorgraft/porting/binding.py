"""Bindings: elements of target parameters, and what they are in the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tensorgraft.porting.labels import take
from tensorgraft.porting.nodes import ValueNode


@dataclass
class Binding:
    """ElementLabels of target elements, and of the source elements that they are, or are the sum of."""

    target: np.ndarray
    source: np.ndarray  # -1 for a number
    offset: np.ndarray | float = 0.0  # added to the source's element
    more: tuple[np.ndarray, ...] = ()  # labels of other source elements that are added
    sign: int = 1  # of the source's elements: -1 where a gate is one minus the other program's

    def values(self, weights: Sequence[np.ndarray]) -> np.ndarray:
        """The values of the target's elements, where `weights` are the source's parameters, flat."""
        total = sum((take(weights, labels) for labels in self.more), take(weights, self.source))
        return np.asarray(self.sign * total + self.offset)


class Alternative(Protocol):
    """One way in which the parameters of a node may correspond."""

    @property
    def sites(self) -> Sequence[ValueNode]:
        """The nodes of the source that it takes parameters of."""

    def bindings(self) -> Sequence[Binding]:
        """The elements that correspond."""


@dataclass(eq=False)
class Bound:
    """Bindings that are known already."""

    sites: Sequence[ValueNode]
    known: Sequence[Binding]

    def bindings(self) -> Sequence[Binding]:
        return self.known
