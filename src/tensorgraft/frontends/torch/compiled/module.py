"""A module that `tg.jit` has compiled, which is a module as the one of `torch.compile` is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule


class CompiledModule(OptimizedModule):
    """The compiled form of a module.

    Its parameters, attributes and mode are those of the original, `_orig_mod`; hooks of the compiled module itself run
    outside of the compiled function. `compiler` makes the compiled function of a module, also after copying and
    unpickling.
    """

    def __init__(self, module: torch.nn.Module, compiler: Callable[[torch.nn.Module], Callable[..., Any]]) -> None:
        super().__init__(module, compiler)  # type: ignore[arg-type]

    def _initialize(self) -> None:
        self.forward = self._forward = self.dynamo_ctx(self._orig_mod)
        if hasattr(self._orig_mod, "_initialize_hook"):
            self.forward = self._call_lazy_check

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        attributes = self.__dict__
        if any(map(attributes.get, _AROUND)):
            return torch.nn.Module.__call__(self, *args, **kwargs)
        return attributes["forward"](*args, **kwargs)  # global hooks run around the original, and not twice

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name != "report":
                raise
            return self._forward.report  # type: ignore[attr-defined]


_AROUND = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_compiled_call_impl")


def compiled_module(module: torch.nn.Module, compiler: Callable[[torch.nn.Module], Callable[..., Any]]) -> Any:
    """Return `module` compiled; a compiled module is compiled again, as a whole.

    >>> import tensorgraft as tg, torch
    >>> run = tg.jit(torch.nn.Linear(2, 3).to(tg.device("jax")))
    >>> list(run.state_dict()), run.training, run(torch.ones(1, 2, device=run.weight.device)).shape
    (['_orig_mod.weight', '_orig_mod.bias'], True, torch.Size([1, 3]))
    """
    return CompiledModule(module._orig_mod if isinstance(module, CompiledModule) else module, compiler)


def function_of(module: Any) -> Any:
    """Return the compiled function of a `CompiledModule`; anything else as it is."""
    return module._forward if isinstance(module, CompiledModule) else module
