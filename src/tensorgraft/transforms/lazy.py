"""`tg.lazy`: an eager program, recorded and run in compiled pieces."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, get_args

from tensorgraft.hub.tiers import When

if TYPE_CHECKING:
    from tensorgraft.hub.recorded import Figures


def lazy(compile: When = "recurring") -> contextlib.AbstractContextManager[Figures]:
    """A context in which operations on the current device are recorded, and compiled and run together.

        with tg.lazy():
            for x, y in batches:
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    What was recorded runs when a value is asked for (`loss.item()`, printing, `if tensor:`, `.cpu()`), when an
    optimizer has stepped, when the outermost module has been called without gradients, when the device is
    synchronised, and at the end. It is compiled once for each structure: the same operations on the same shapes run
    the program that is there. Python numbers that PyTorch's operators take (a learning rate) and random numbers are
    inputs. This is for JAX: on other backends operations run at once. A function compiled by `tg.jit` is
    recorded like any other.

    An index out of range is reported when the program runs, as on a GPU; what was written then has been written.

    Arguments:
        compile: "recurring" records a piece (what runs until a value is asked for, or an optimizer has stepped) once it
            has come back so often that compiling it is a small part of what it has cost; until then it is computed
            at once, as eager operators are, where these have a cold tier (`tg.eager`). "first" records from the first
            operation on.

    Returns:
        A context manager that gives `Figures`: how many operations were recorded, in how many runs of how many
        different programs, and how many were computed at once.

    Raises ValueError for another `compile`.
    """
    from tensorgraft.frontends.torch.compiled.lazy import lazy

    if compile not in get_args(When):
        raise ValueError(f"tg.lazy(compile=...): expected 'first' or 'recurring', got {compile!r}")
    return lazy(compile)
