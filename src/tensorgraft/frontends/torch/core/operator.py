"""An overload of an ATen operator, with its kernel."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.spec import Spec

INDICES = ("index", "indices", "offsets", "lengths")  # in names of arguments
# operators whose CPU kernels write out of bounds if the matrices of `out=` are not consecutive, or `out=` is the matrix
# itself: these kernels are not called
OUT_OF_BOUNDS = frozenset({"triu.out", "tril.out", "_linalg_eigh.eigenvalues", "_linalg_svd.U"})
all_plans: list[dict[Any, Any]] = []  # the plans of every operator, and other tables with their keys
MOST = 1024  # entries of each; a plan takes 7 KB


def keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Add an entry to `known`; at most the newest `MOST` entries stay."""
    if len(known) >= MOST:
        with contextlib.suppress(RuntimeError):  # another thread is at it
            known.pop(next(iter(known)), None)
    known[key] = value


_COMPUTE_IN_OUT = {"sum", "prod", "cumsum", "cumprod", "any", "all"}


@dataclass
class Operator:
    """An overload of an ATen operator and its kernel. `kind` is the relation between the two.

    kernel: the kernel computes the overload; inplace and out: it computes the functional overload, and its results are
    written to the arguments.
    """

    op: schema.Overload
    spec: Spec
    kind: str = "kernel"
    base: schema.Overload | None = None  # the functional overload of an inplace or out one
    plans: dict[Any, Any] = field(default_factory=dict)  # {(shapes, strides, dtypes, static arguments): plan}
    calls: dict[Any, Any] = field(default_factory=dict)  # the plan and the offsets of a call, by these and the offsets
    outlines: dict[Any, Any] = field(default_factory=dict)  # {(dtypes, ranks, static arguments): template of plans}
    # True if the CPU's kernel can raise its errors for zeros (`rehearsal`); None: not known yet
    rehearsed: bool | None = None
    is_explained: bool = False  # True if an explanation also calls it
    accepted: set[Any] = field(default_factory=set)  # combinations of dtypes that PyTorch accepts

    def __post_init__(self) -> None:
        all_plans.extend((self.plans, self.calls, self.outlines))
        self.name = schema.short_name(self.op)
        self.signature = schema.signature(self.op)
        self.writes = self.spec.writes or self.signature.written
        known = self.kind == "out" and self.base is not None and "dtype" in schema.signature(self.base).names
        self.takes_indices = any(word in name for name in self.signature.names for word in INDICES)
        # it has one new result, broadcast from its tensors
        self.elementwise = (
            self.spec.promotion is not None
            and self.kind == "kernel"
            and self.spec.meta is True
            and not self.writes
            and torch.Tag.pointwise in self.op.tags
            and self.signature.returns == ("Tensor",)
        )
        # the kernel's `dtype` is that of `out=`: where no other can be said, and where the CPU computes in it
        self.dtype_of_out = known and "dtype" not in self.signature.names
        self.computes_in_out = self.kind == "out" and self.name.partition(".")[0] in _COMPUTE_IN_OUT
