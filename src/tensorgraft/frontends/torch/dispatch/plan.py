"""A plan: reads, kernel and writes of one operator call as one function that the backend compiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tensorgraft.frontends.torch.core.devices import Slot
from tensorgraft.frontends.torch.core.tensors import maker
from tensorgraft.frontends.torch.dispatch import checks
from tensorgraft.frontends.torch.dispatch.results import Result, Structure
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Maker = Callable[[Array], torch.Tensor]


@dataclass(slots=True)
class Plan:
    run: Callable[..., tuple[Array, ...]] | None  # None: the backend cannot; the CPU does it
    slot: Slot
    written: tuple[int, ...] = ()  # positions of the tensors of the call that take the first arrays that `run` returns
    results: list[Result] | None = None  # the tensors made of the arrays that follow
    structure: Structure | None = None  # puts several results together
    prepare: Callable[..., None] | None = None  # before the run: resizes `out=` tensors
    program: Callable[..., tuple[Array, ...]] | None = None  # `run` before it was compiled
    concrete: bool = False  # results' shapes depend on values: there is no program
    verifiers: tuple[checks.Verifier, ...] = ()  # check the last values that `run` returns
    xp: Backend | None = None  # if operands are quantised, the backend that supports them
    familiar: bool = False  # its like has run before, at other sizes: nothing is imported for it
    writing: bool = False  # True while memory may have been written in place without counting versions
    # makers of its results, once it has run and has no other effects
    makers: list[tuple[int, Maker | None]] | None = None
    make: Maker | None = None  # the maker of its only result, if it has no other effects

    def settle(self) -> None:
        """It has run, and every later call does no more than compute, write, and make its results."""
        self.makers, at = [], 0
        for result in self.results or ():
            self.makers.append((at, None if result is None else maker(self.slot, *result)))
            at += result is not None
        if len(self.makers) == 1 and self.structure is None and not self.written:
            self.make = self.makers[0][1]
