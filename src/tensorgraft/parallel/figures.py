"""The figures of a forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorgraft.hub.placement import Mesh

if TYPE_CHECKING:
    from tensorgraft.compiled.explanation import Explanation


@dataclass(frozen=True)
class Exchange:
    """Collectives of one kind that one line of the program asks for."""

    kind: str  # "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"
    axes: tuple[str, ...]  # axes of the mesh along which devices exchange; () if not known
    times: int
    bytes: int  # bytes of the results on one device
    operator: str  # "" where it is not known
    backward: bool
    place: str  # file:line
    source: str  # the line
    advice: str  # how to lower it


@dataclass(frozen=True)
class ForecastFigures:
    """Sizes in bytes on one device, and the communication between devices."""

    mesh: Mesh
    parameters: int
    gradients: int  # gradients that are kept between steps
    optimizer: int
    buffers: int
    inputs: int
    temporary: int
    total: int
    flops: float  # flops of one device, as XLA counts them, with loops once
    exchanges: list[Exchange]  # the largest first
    explanation: Explanation  # the program's `tg.explain`
