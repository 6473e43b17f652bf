"""Branches and loops in PyTorch."""

from __future__ import annotations

from tensorgraft.codegen.targets import Rule, shared_words
from tensorgraft.codegen.targets.torch.common import zeros_or_ones

RULES: dict[str, Rule] = {
    "cond": shared_words.cond,
    "while_loop": shared_words.while_loop,
    "scan": shared_words.scan(zeros_or_ones("zeros")),
    "optimization_barrier": lambda w, x, after: w(x),
    "constrain": lambda w, x, placement: w(x),
}  # fmt: skip
