"""What a trace takes for granted: the key under which it is found again, and guards that are asked before each use.

Guards compare many things at once, by identity, so that a call costs little more for a model of many parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch

from tensorgraft.arrays import framework_of
from tensorgraft.compiled.reach import Reached
from tensorgraft.compiled.surroundings import OfAnother, Surroundings
from tensorgraft.compiled.values import exact, is_plain, keys_of
from tensorgraft.frontends.torch.compiled.host import LookGuard, ValueGuard
from tensorgraft.frontends.torch.compiled.optimizers import Stepped
from tensorgraft.frontends.torch.core import placed
from tensorgraft.frontends.torch.core.attributes import Attributes
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.located import here
from tensorgraft.frontends.torch.core.tensors import cell_of, storages_of
from tensorgraft.frontends.torch.device import scripted
from tensorgraft.hub import settings
from tensorgraft.precision import policy

Tensor = torch.Tensor
Parameter = torch.nn.Parameter

# ---- keys ------------------------------------------------------------------------------------------------------------


def leaf_key(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        geometry = (leaf.dtype, leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.requires_grad, leaf.is_leaf)
        if leaf.device.type != TYPE:
            return leaf.device.type, *geometry
        cell = cell_of(leaf)
        array = cell.array.kind if cell.backend.compound else (cell.array.shape, cell.array.dtype)
        return TYPE, *geometry, leaf.is_conj(), leaf.is_neg(), array, cell.placement
    if is_plain(leaf):
        return exact(leaf)
    if framework_of(leaf) == "tensorgraft":
        raise OfAnother(f"{here()}: an argument is an Array of the Array API, in a function of PyTorch's tensors")
    try:
        hash(leaf)
    except TypeError:
        raise TypeError(
            f"{here()}: an argument is a {type(leaf).__qualname__}, which is neither a tensor nor hashable, so that"
            " calls of a compiled function cannot be told apart by it: pass tensors, numbers, strings, or containers"
            " of them"
        ) from None
    return type(leaf), leaf


_autocast, _grad, _inference = torch._C._is_any_autocast_enabled, torch.is_grad_enabled, torch.is_inference_mode_enabled


def modes() -> tuple[Any, ...]:
    """Modes of PyTorch, and settings of all frameworks: others trace again."""
    cast = _autocast() and torch.is_autocast_enabled(TYPE)
    return (
        _grad(),
        _inference(),
        cast and (torch.get_autocast_dtype(TYPE), torch.is_autocast_cache_enabled()),
        policy(),
        settings.now(),
        placed.moves,
    )


def surroundings(fn: Callable[..., Any]) -> tuple[Any, ...]:
    """Modes of PyTorch, and the Python values that the function reaches: others trace again."""
    return *modes(), keys_of(Reached(fn).now())


# ---- guards ----------------------------------------------------------------------------------------------------------


def getter_of(leaf: Tensor, place: dict[int, int]) -> Callable[[Sequence[Any]], Tensor]:
    at = place.get(id(leaf))
    return (lambda leaves: leaf) if at is None else (lambda leaves: leaves[at])


class Guards:
    """All guards of a trace."""

    def __init__(
        self,
        modules: Iterable[torch.nn.Module],
        attributes: Attributes,
        optimizers: Sequence[Stepped],
        gradients: Sequence[tuple[Callable[[Sequence[Any]], Tensor], Tensor | None]],
        host: Iterable[ValueGuard | LookGuard],
        surroundings: Surroundings,
    ) -> None:
        """`gradients`: leaves, and what gradient each has before the call. `host`: of the tensors of the host."""
        self.modules = Modules(modules)
        self.attributes = attributes
        self.optimizers = list(optimizers)
        self.without = [get for get, before in gradients if before is None]
        self.gradients = [(get, leaf_key(before)) for get, before in gradients if before is not None]
        self.host = list(host)
        self.surroundings = surroundings if surroundings else None
        self._more = bool(self.optimizers or self.without or self.gradients or self.surroundings or self.host)

    def hold(self, leaves: Sequence[Any]) -> bool:
        if not (self.modules.hold() and self.attributes.hold()):
            return False
        if not self._more:
            return True
        for stepped in self.optimizers:
            if not stepped.holds():
                return False
        for get in self.without:
            if get(leaves).grad is not None:
                return False
        for get, key in self.gradients:
            if (g := get(leaves).grad) is None or leaf_key(g) != key:
                return False
        if self.surroundings is not None and not self.surroundings.hold():
            return False
        return not self.host or all(guard.hold(leaves) for guard in self.host)

    def broken(self, leaves: Sequence[Any], names: dict[int, str]) -> str:
        """What does not hold any more, in words. `names`: the program's, of objects by their id."""
        if not self.modules.hold():
            return self.modules.broken(names)
        if (words := self.attributes.broken()) is not None:
            return words
        for stepped in self.optimizers:
            if not stepped.holds():
                return stepped.broken(names.get(id(stepped.optimizer), type(stepped.optimizer).__name__))
        if self.surroundings is not None and (words := self.surroundings.broken()) is not None:
            return words
        for guard in self.host:
            if not guard.hold(leaves):
                return guard.broken(names)
        for get in self.without:
            if get(leaves).grad is not None:
                return f"{names.get(id(get(leaves)), 'a tensor')}.grad was None, and is there now"
        for get, key in self.gradients:
            name, g = names.get(id(get(leaves)), "a tensor"), get(leaves).grad
            if g is None:
                return f"{name}.grad was there, and is None now"
            if leaf_key(g) != key:
                return f"{name}.grad has other strides, or another dtype or storage"
        return "nothing that has a name"


_requires_grad_of = attrgetter("requires_grad")
_END = object()  # after the last of what modules hold: one more, or one less, stands in its place
_ENDS = (_END, _END)


class Modules:
    """Modules keep their submodules, parameters and buffers, these their storages, and no hooks are added."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        modules = scripted.with_parts({id(m): m for m in modules}.values())
        tables: list[dict[Any, Any]] = []
        self._empty: list[dict[Any, Any]] = []
        for m in modules:
            tables += (m._parameters, m._buffers, m._modules)
            for hooks in (m._forward_pre_hooks, m._forward_hooks, m._backward_pre_hooks, m._backward_hooks):
                (tables if hooks else self._empty).append(hooks)
        self._full = [scripted.values_of(table) for table in tables if table]
        self._empty += [table for table in tables if not table]
        self._held = list(chain.from_iterable(self._full))
        self._until_end = [*self._held, _END]
        self._modules = modules
        self._training = [scripted.attributes_of(m) for m in modules]
        self._modes = [d["training"] for d in self._training]
        self._scripted = [d for d in self._training if isinstance(d, scripted.ScriptAttributes)]
        tensors = {id(t): t for t in self._held if isinstance(t, Tensor)}
        self._tensors = list(tensors.values())
        self._requires_grad = [t.requires_grad for t in self._tensors]
        self._ours = [t for t in self._tensors if t.device.type == TYPE]
        for t in self._ours:
            cell_of(t)  # says what is wrong with those that have none
        self._storages = storages_of(self._ours)

    def hold(self) -> bool:
        if any(self._empty) or not all(map(is_, chain(chain.from_iterable(self._full), _ENDS), self._until_end)):
            return False
        if [d["training"] for d in self._training] != self._modes:
            return False
        for d in self._scripted:
            if not d.hold():
                return False
        return (
            list(map(_requires_grad_of, self._tensors)) == self._requires_grad
            and storages_of(self._ours) == self._storages
        )

    def broken(self, names: dict[int, str]) -> str:
        """What does not hold any more, in words."""
        for m, d, mode in zip(self._modules, self._training, self._modes, strict=True):
            if d["training"] is not mode:
                return f"{names.get(id(m)) or type(m).__name__}.training is {d['training']}, was {mode}"
        for d in self._scripted:
            if not d.hold():
                return d.broken()
        for t, before in zip(self._tensors, self._requires_grad, strict=True):
            if t.requires_grad is not before:
                return f"{names.get(id(t), 'a tensor')}.requires_grad is {t.requires_grad}, was {before}"
        now = list(chain.from_iterable(self._full))
        if any(self._empty) or len(now) != len(self._held) or not all(map(is_, now, self._held)):
            held = set(map(id, self._held))
            what = next((names.get(id(v)) for v in now if id(v) not in held), None)
            return f"{what or 'a parameter, a buffer, a module or a hook'} was added, or took the place of another"
        for t, storage in zip(self._ours, self._storages, strict=True):
            if t.untyped_storage() is not storage:
                return f"{names.get(id(t), 'a parameter or buffer')} has another storage (its .data was set)"
        return "a module has changed"
