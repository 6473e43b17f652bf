"""`torch._assert_async`: the value is checked when it is known, and never inside `tg.jit`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.dispatch.checks import check
from tensorgraft.hub.array import Array


@kernel("_assert_async", "_assert_async.msg", meta=False)
def _assert_async(
    xp: Any, x: Array, message: str = "Expected Tensor with single nonzero value, but got zero"
) -> tuple[()]:
    if xp.size(x) != 1:
        words = "more than one value" if xp.size(x) else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {words} is ambiguous")

    def verify(value: np.ndarray) -> None:
        if not value.reshape(())[()]:
            raise RuntimeError(message)

    check(xp, x, verify)
    return ()


@kernel("_functional_assert_async.msg", meta=False)
def _functional_assert_async(xp: Any, x: Array, message: str, token: Array) -> Array:
    _assert_async(xp, x, message)
    return token
