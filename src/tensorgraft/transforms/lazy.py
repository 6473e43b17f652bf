"""`tg.lazy`: an eager program, recorded and run in compiled pieces."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorgraft.hub.recorded import Figures


def lazy() -> contextlib.AbstractContextManager[Figures]:
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

    Returns:
        A context manager that gives `Figures`: how many operations were recorded, in how many runs of how many
        different programs.
    """
    from tensorgraft.frontends.torch.lazy import lazy

    return lazy()
