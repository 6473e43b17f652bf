"""`tg.graft`: a program of one framework as a native callable of another."""

from __future__ import annotations

from typing import Any

from tensorgraft.hub import registry


def graft(program: Any, *, onto: str) -> Any:
    """A program of one framework as a native callable of another.

    A `torch.nn.Module` onto `"jax"` is `(apply, params, buffers)`, a pure function and its state, with names as in
    `state_dict()`:

        apply, params, buffers = tg.graft(module, onto="jax")
        out, buffers = apply(params, buffers, x, key=jax.random.key(0))

    So is what `torch.export.export` gives. `jax.jit`, `jax.grad`, `jax.vmap`, `jax.export` and Optax work on it.
    Results are as in the user's configuration: without `jax_enable_x64`, 64-bit results are narrowed, and int32
    arguments count as PyTorch's int64. `key` is for modules that draw random numbers. The derivative is that of
    PyTorch's backward pass.

    A JAX function onto `"torch"` is a function of tensors, in the same pytrees, on the CPU (DLPack, without copies
    where memory is aligned) or on the device of JAX:

        f = tg.graft(jax_function, onto="torch")
        f(params, x).sum().backward()

    JAX computes it, compiled once for each structure and set of shapes, and all its derivatives, higher ones included.
    Python values are static. Without `jax_enable_x64`, 64-bit tensors are narrowed on their way in.

    Raises:
        TypeError: for programs and frameworks that are not known here.
        BackendNotAvailableError: for a backend unknown or not installed.
    """
    import torch

    if isinstance(program, torch.nn.Module | torch.export.ExportedProgram):
        from tensorgraft.frontends.torch import exported
        from tensorgraft.frontends.torch.devices import slot_named
        from tensorgraft.frontends.torch.grafted import graft_module

        if exported.is_exported(program):
            program = exported.on_device(program, slot_named(onto).device)
        return graft_module(program, onto)
    if callable(program) and onto == "torch":
        registry.lookup("jax")
        from tensorgraft.frontends.jax.bridged import Bridged

        return Bridged(program)
    raise TypeError(
        "tg.graft takes a torch.nn.Module or an ExportedProgram onto 'jax' or a JAX function onto 'torch', not a"
        f" {type(program).__qualname__} onto {onto!r}"
    )
