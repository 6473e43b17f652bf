"""A JAX function among PyTorch's tensors: PyTorch computes it, but on the device of JAX JAX itself does. PyTorch's own
tracers (Dynamo, `torch.jit.trace`, `torch.fx`) see one call of a function, whichever way is theirs to say so."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax
import torch
from torch.utils import _pytree

from tensorgraft.compiled.python_state import traced_by_another
from tensorgraft.frontends.jax.grafted import Grafted
from tensorgraft.frontends.jax.objects import Objects
from tensorgraft.frontends.jax.sized import NeedsNumbers
from tensorgraft.frontends.jax.sparse import with_jax_sparse, with_native_sparse
from tensorgraft.hub.backend import Backend


class AmongTensors(Grafted):
    def __init__(self, fn: Any, xp: Backend, compiled: bool = False, onto: str | None = None) -> None:
        super().__init__(fn, xp, compiled, onto)
        self._bridged: Any = None
        self._for_symbols = not compiled  # sizes that PyTorch leaves open while it traces

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            if torch.compiler.is_exporting():
                raise NotImplementedError(
                    "torch.export.export can trace a JAX function only with strict=False, the default"
                )
            from tensorgraft.frontends.jax.interop.dynamo import call  # Dynamo imports while it traces

            return call(self, args, kwargs)
        if "torch._dynamo" in sys.modules:  # Dynamo may be about to compile code that is called from here
            from tensorgraft.frontends.jax.interop.dynamo import opaque_call

            return opaque_call(self, args, kwargs)
        return self.now(args, kwargs)

    def now(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function without being traced by Dynamo."""
        leaves = jax.tree.leaves((args, kwargs))
        if torch._C._get_tracing_state() is not None:
            from tensorgraft.frontends.jax.interop.torchscript import traced

            return traced(self, args, kwargs)
        if any(isinstance(x, torch.fx.Proxy) for x in leaves):
            from tensorgraft.frontends.jax.interop.fx import node

            return node(self, args, kwargs)
        return self._run(args, kwargs)[0]

    def run(
        self, args: Any, kwargs: Any, objects: Objects | None = None, values: Sequence[Any] = ()
    ) -> tuple[Any, Mapping[int, Any]]:
        if "torch._dynamo" in sys.modules:
            from tensorgraft.frontends.jax.interop.dynamo import opaque_run

            return opaque_run(self._run, args, kwargs, objects, values)
        return self._run(args, kwargs, objects, values)

    def _run(
        self, args: Any, kwargs: Any, objects: Objects | None = None, values: Sequence[Any] = ()
    ) -> tuple[Any, Mapping[int, Any]]:
        leaves = [*jax.tree.leaves((args, kwargs)), *(x for x, _ in values)]
        if any(isinstance(x, torch.Tensor) and x.device.type == "graft" for x in leaves):
            if torch.compiler.is_compiling():
                raise NotImplementedError(
                    f"{self.name} of tensors of tg.device('jax') is computed by JAX, which torch.compile cannot trace"
                    " into: use tg.jit"
                )
            args, kwargs = with_jax_sparse((args, kwargs))
            out, written = self.bridged.run(args, kwargs, objects, values)
            return with_native_sparse(out, self.xp.name), written
        with traced_by_another() if torch.compiler.is_compiling() else contextlib.nullcontext():
            try:
                return super().run(args, kwargs, objects, values)
            except NeedsNumbers:
                self._for_symbols = False
                return super().run(args, kwargs, objects, values)

    def operand(self, x: Any) -> tuple[Any, tuple[Any, ...]] | None:
        if isinstance(x, torch.Tensor) and x.device.type == "graft":
            from tensorgraft.frontends.torch.core.tensors import foreign_dtype

            return x, (tuple(x.shape), jax.dtypes.canonicalize_dtype(foreign_dtype(x.dtype)))
        if isinstance(x, torch.Tensor) and not self._for_symbols and not _is_plain(x):
            x = x.expand([int(n) for n in x.shape])  # a guard of PyTorch's on these sizes
        return super().operand(x)

    def _shape(self, array: Any) -> tuple[int | str | None, ...]:
        if _is_plain(array):
            return super()._shape(array)
        return tuple([str(n) if isinstance(n, torch.SymInt) else n for n in array.shape])

    # Dynamo calls these for constants
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def bridged(self) -> Any:
        """The same function for tensors on the device of JAX."""
        if self._bridged is None:
            from tensorgraft.frontends.jax.interop.bridged import Bridged

            self._bridged = Bridged(self.fn)
        return self._bridged

    def __prepare_scriptable__(self) -> NoReturn:
        """Raise NotImplementedError for `torch.jit.script`, which asks for this method."""
        raise NotImplementedError(
            f"torch.jit.script compiles Python source, and {self.name} is a JAX function: use torch.compile,"
            " torch.export.export or torch.jit.trace"
        )


def _is_plain(x: torch.Tensor) -> bool:
    return all(type(n) is int for n in x.shape)


_pytree.register_constant(AmongTensors)  # before Dynamo sees an instance
