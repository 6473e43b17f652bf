"""Settings of the whole process that change what an operator of PyTorch gives: a part of every key under which something
made of an operator, or of a function, is kept.

They are asked for at each call and not watched where they are set: programs, context managers and C++ set them, in
many ways, and to ask costs 30 ns each. `docs/settings.md` has them all, and those that are no part of a key.
"""

from __future__ import annotations

from typing import Any

import torch

FLOAT32 = torch.float32
default_dtype = torch.get_default_dtype
deterministic = torch._C._get_deterministic_algorithms
_only_warns = torch._C._get_deterministic_algorithms_warn_only


def settings() -> Any:
    """Return what the result of an operator depends on beside its arguments."""
    return default_dtype(), deterministic() and (_only_warns(), fills())


def fills() -> bool:
    """Return whether memory that nobody has written yet is to be filled (`torch.utils.deterministic`)."""
    return deterministic() and torch.utils.deterministic.fill_uninitialized_memory
