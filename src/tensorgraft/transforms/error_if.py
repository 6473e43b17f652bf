"""`error_if`: errors that depend on values, in compiled and transformed functions too."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from tensorgraft.arrays import describe, framework_of
from tensorgraft.errors import CheckError


def error_if(x: Any, pred: Any, message: str) -> Any:
    """Return `x`, or raise an error if `pred` is true, with `message` and the line of the call.

    Eagerly it is raised immediately. In a function compiled by `tg.jit`, the condition is an additional result of the
    program: it is checked after the program has run, before its writes are applied, and the call raises the error.
    Under `tg.grad`, `tg.vmap` (if it is true for any slice), in loops, and where these are nested, the error is raised
    when the outermost of them has computed. If several conditions are true, the first one counts. A compiled function
    with checks waits for its results, and donates no memory of arguments.

    Arguments:
        x: anything; it is returned.
        pred: a bool, or an array of any shape and framework: an error is raised if any element is true. A tensor of
            PyTorch is read immediately, which is not possible in a compiled step: check it outside.
        message: the text of the error.

    Raises:
        CheckError: a RuntimeError.

        n = tg.transforms.error_if(n, n < 0, "n must not be negative")
    """
    caller = sys._getframe(1)
    text = f"{message}\n  error_if at {os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
    framework = framework_of(pred)
    if framework is None:
        if not isinstance(pred, bool):
            raise TypeError(f"error_if: pred must be a bool or an array of bools, got a {type(pred).__qualname__}")
        if pred:
            raise CheckError(text)
        return x
    if str(pred.dtype).removeprefix("torch.").removeprefix("<dtype: '").removesuffix("'>") != "bool":
        raise TypeError(f"error_if: pred must be a bool or an array of bools, got {describe(pred)}")
    if framework == "tensorgraft":
        from tensorgraft.frontends.array_api.core.checks import check

        xp = pred._cell.backend
        with xp.scope():
            check(xp, pred._value(), text)
    elif (
        bool(pred.any()) if framework == "torch" else np.any(np.asarray(pred))
    ):  # in a trace of the framework's, the framework raises the error for a missing value
        raise CheckError(text)
    return x
