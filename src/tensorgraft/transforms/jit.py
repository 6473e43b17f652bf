"""`tg.jit`: a function, a whole training step included, as one program of its backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def jit(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compile what `fn` does on the device, with `loss.backward()` and `optimizer.step()` if it has them.

    Tensors that `fn` reads, arguments or not, are inputs of the program; what it writes in place is written, in memory
    that is used again. Shapes, dtypes and Python values are constants: others trace and compile again. A learning rate
    and random numbers are inputs. A backend that does not compile (NumPy) calls `fn` itself.

    Arguments:
        fn: a function or a module of a PyTorch program on the device `graft`.

    Returns:
        A function with the arguments and results of `fn`. Its results can be differentiated once, by a compiled
        backward pass that keeps the activations which PyTorch would.

    Raises:
        TracedValueError: from a call, where `fn` asks for the value of a tensor (`.item()`, `if tensor:`) or does what
            only its first call would do (draw random numbers on the CPU, write a CPU tensor). Every tensor is then as
            it was before the call.
        RuntimeError: where the history of a tensor from outside goes on inside (pass it as an argument), or a backward
            pass is to be differentiated again.
    """
    from tensorgraft.frontends.torch.jit import Compiled

    return Compiled(fn)


def report() -> list[Any]:
    """What every compiled function of this process did: name, traces, calls, seconds, operations."""
    from tensorgraft.frontends.torch import jit as torch_jit

    return list(torch_jit.reports)
