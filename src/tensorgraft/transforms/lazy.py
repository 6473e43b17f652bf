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

    The recorded operations run when a value is read (`loss.item()`, printing, `if tensor:`, `.cpu()`), after a step of
    an optimizer, after a call of the outermost module without gradients, when the device is synchronised, and at the
    end. They are compiled once for each structure: the same operations on the same shapes run the same program. Python
    numbers that are passed to PyTorch's operators (a learning rate) and random numbers are inputs. Only JAX records: on
    other backends operations run immediately. A function compiled by `tg.jit` is recorded like any
    other function.

    An index out of range is reported when the program runs, as on a GPU; writes made by then
    remain.

    Arguments:
        compile: "recurring" records a piece (the operations until a value is read, or an optimizer has stepped) once it
            has recurred so often that compiling it costs little compared with running it; until then its operations run
            eagerly, if eager operators have a cold tier (`tg.eager`). "first" records from the first operation on.

    Returns:
        A context manager that yields `Figures`: the numbers of recorded operations, of runs, of different programs, and
        of operations that were computed eagerly.

    Raises ValueError for another `compile`.
    """
    from tensorgraft.frontends.torch.compiled.lazy import lazy

    if compile not in get_args(When):
        raise ValueError(f"tg.lazy(compile=...): expected 'first' or 'recurring', got {compile!r}")
    return lazy(compile)
