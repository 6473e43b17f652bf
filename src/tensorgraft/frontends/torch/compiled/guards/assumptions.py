"""The assumptions of a trace: the key under which it is found again, and guards that are checked before each use.

Guards compare many things at once, by identity, so that a call costs little more for a model of many parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils import parametrize
from torch.utils._device import DeviceContext

from tensorgraft.arrays import framework_of
from tensorgraft.compiled.captured_objects import Call, DirectCaptures, object_key
from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.function import ids_of_objects
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.straight_calls import StraightCall
from tensorgraft.compiled.surroundings import OfAnother, Surroundings, bits_of
from tensorgraft.compiled.tables import Table, entry_of
from tensorgraft.compiled.values import Replaceable, SameObject, exact, is_plain, keys_of
from tensorgraft.frontends.torch.compiled.guards.modules import Modules, global_hooks, requires_grad_of
from tensorgraft.frontends.torch.compiled.host.call_tensors import HostGuard
from tensorgraft.frontends.torch.compiled.optimizers.numbers import OptimizerGuard
from tensorgraft.frontends.torch.core import sharded_tensors, state
from tensorgraft.frontends.torch.core.attributes import Attributes
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.located_errors import current_line
from tensorgraft.frontends.torch.core.modes import function_modes
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.core.trees import Boxed, Leaves, call_of, numbers_in
from tensorgraft.frontends.torch.sparse.parts import form_of, is_sparse, parts_of
from tensorgraft.hub import settings
from tensorgraft.precision import policy
from tensorgraft.storage import Storage

Tensor = torch.Tensor


Parameter = torch.nn.Parameter

# ---- keys ------------------------------------------------------------------------------------------------------------


def attributes_key(attributes: dict[str, Any]) -> Any:
    """Return a key of the attributes that a program has given to a tensor; Dynamo's marks are no program's."""
    named = ((name, value) for name, value in attributes.items() if not name.startswith("_dynamo_"))
    return tuple((name, exact(v) if is_plain(v) else SameObject(v)) for name, v in named)


_NATIVE_COMPILERS = {  # {framework: description of its arrays, for messages}
    "jax": "JAX is compiled by jax.jit(fn)",
    "tensorflow": "TensorFlow is compiled by tf.function(fn, jit_compile=True)",
}


def leaf_key(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and is_sparse(leaf):
        return leaf.device.type, form_of(leaf), leaf.requires_grad, leaf.is_leaf, *map(leaf_key, parts_of(leaf))
    if isinstance(leaf, Tensor):
        geometry = (leaf.dtype, leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.requires_grad, leaf.is_leaf)
        if leaf.device.type != TYPE:
            return leaf.device.type, *geometry
        cell = cell_of(leaf)
        array = cell.array.kind if cell.backend.compound else (cell.array.shape, cell.array.dtype)
        return TYPE, *geometry, leaf.is_conj(), leaf.is_neg(), leaf.is_inference(), array, cell.placement
    if is_plain(leaf):
        return exact(leaf)
    if leaf.__class__ is Boxed:
        return Boxed
    if leaf.__class__ is slice and is_plain(bounds := (leaf.start, leaf.stop, leaf.step)):
        return slice, exact(bounds)
    if isinstance(leaf, np.ndarray):
        return bits_of(leaf)
    if framework_of(leaf) == "tensorgraft":
        raise OfAnother(
            f"{current_line()}: an argument is an Array of tensorgraft.array_api, but the function computes with"
            " PyTorch tensors"
        )
    if (framework := framework_of(leaf)) in _NATIVE_COMPILERS:
        raise TypeError(
            f"{current_line()}: an argument is a {type(leaf).__qualname__}, but tg.jit compiles functions of PyTorch"
            " tensors and of arrays of tensorgraft.array_api. A function of arrays of"
            f" {_NATIVE_COMPILERS[framework]}, also where tg.graft has made it"
        )
    try:
        hash(leaf)
    except TypeError:
        return Unknown(type(leaf))
    return object_key(leaf)


class Unknown(NamedTuple):
    """The key of an argument that is not hashable, so that no call can compare it with that of an earlier one."""

    kind: type


_function_modes, _dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_saved_hooks = torch._C._autograd._top_saved_tensors_default_hooks


def modes_around() -> tuple[Any, ...]:
    """Return the classes of the program's active modes that observe or change each operator or autograd's saved
    tensors, or cache the values of parametrizations; a default device is a setting."""
    dispatched = [torch._C._get_dispatch_stack_at(i) for i in range(_dispatch_modes())]
    kinds = map(type, (*function_modes(), *dispatched))
    mode_kinds = [
        kind for kind in kinds if kind is not DeviceContext and not kind.__module__.startswith("tensorgraft.")
    ]
    mode_kinds += [torch.autograd.graph.saved_tensors_hooks] if _saved_hooks(True) else []
    return (*mode_kinds, parametrize.cached) if parametrize._cache_enabled else tuple(mode_kinds)


_autocast, _grad, _inference = torch._C._is_any_autocast_enabled, torch.is_grad_enabled, torch.is_inference_mode_enabled
_autocast_dtype = torch.get_autocast_dtype


def modes() -> tuple[Any, ...]:
    """Return the modes of PyTorch and the settings of all frameworks; a function is traced again for others."""
    cast = _autocast() and torch.is_autocast_enabled(TYPE)
    return (
        _grad(),
        _inference(),
        cast and (torch.get_autocast_dtype(TYPE), torch.is_autocast_cache_enabled()),
        _autocast_dtype(TYPE),  # also of a region that the function enters
        policy(),
        settings.current(),
        sharded_tensors.moves,
        (_function_modes() or _dispatch_modes() or _saved_hooks(True) or parametrize._cache_enabled) and modes_around(),
    )


def surroundings(fn: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the modes of PyTorch, the hooks of all modules and the Python values that the function reaches; it is
    traced again for others."""
    return *modes(), *global_hooks(), keys_of(DirectCaptures(fn).current())


# ---- guards ----------------------------------------------------------------------------------------------------------


class Getter:
    """A function that finds a tensor at a call: one from outside, or an argument."""

    __slots__ = ("_at", "_tensor")

    def __init__(self, tensor: Tensor, argument_index: dict[int, int]) -> None:
        self._at = argument_index.get(id(tensor))
        self._tensor: Any = tensor if self._at is None else None

    def __call__(self, leaves: Sequence[Any]) -> Tensor:
        tensor: Tensor = self._tensor if self._at is None else leaves[self._at]
        return tensor

    def write(self, code: StraightCall) -> str:
        """Return the expression of this tensor."""
        return code.name(self._tensor) if self._at is None else code.leaves[self._at]


class Guards:
    """All guards of a trace."""

    def __init__(
        self,
        modules: Modules,
        attributes: Attributes,
        optimizers: Sequence[OptimizerGuard],
        gradients: Sequence[tuple[Getter, Tensor | None]],
        host: Iterable[HostGuard],
        surroundings: Surroundings,
        captured: Captured,
        shared: SharedObjects | None,
        hooked: Sequence[Getter],
        leaves: Sequence[Any],
    ) -> None:
        """`gradients`: leaves, and the gradient that each has before the call. `host`: guards of tensors of the host.
        `hooked`: leaves whose hooks a backward pass inside calls."""
        self.modules = modules
        self.captured = captured if captured else None
        self.attributes = attributes
        self.optimizers = list(optimizers)
        for optimizer_guard in self.optimizers:
            optimizer_guard.note_hooks()
        self.without = [get for get, before in gradients if before is None]
        self.gradients = [(get, leaf_key(before)) for get, before in gradients if before is not None]
        self.host = list(host)
        self.surroundings = surroundings if surroundings else None
        self.shared = shared
        self._keys = ExactKeys(leaves)
        self._hooked = list(hooked)
        self._hooks = [None if table is None else dict(table) for table in self._current_hooks(leaves)]
        self._has_rare_guards = bool(
            self.captured
            or self.optimizers
            or self.without
            or self.gradients
            or self.surroundings
            or self.host
            or shared
            or hooked
            or self._keys
        )

    def hold(self, leaves: Sequence[Any]) -> bool:
        if not (self.modules.hold() and self.attributes.hold()):
            return False
        if not self._has_rare_guards:
            return True
        if self.captured is not None and not self.captured.hold(leaves):
            return False
        for optimizer_guard in self.optimizers:
            if not optimizer_guard.holds():
                return False
        if self.surroundings is not None and not self.surroundings.hold():
            return False
        return self._rest_holds(leaves)

    def write(self, code: StraightCall) -> None:
        """Write the conditions of `hold`."""
        self.modules.write(code)
        self.attributes.write(code)
        if self.captured is not None:
            self.captured.write(code)
        for optimizer_guard in self.optimizers:
            optimizer_guard.write(code)
        if self.surroundings is not None:
            self.surroundings.write(code)
        if self.gradients or any(self._hooks) or self.shared or self._keys or self.host:
            code.require(f"{code.name(self._rest_holds)}({code.flattened()})")
            return
        for get in self.without:
            code.require(f"{get.write(code)}.grad is None")
        if self._hooked:
            tensors = f"({', '.join(get.write(code) for get in self._hooked)},)"
            for hooks in (_hooks_before, _hooks_after):
                code.require(f"not any(map({code.name(hooks)}, {tensors}))")

    def _rest_holds(self, leaves: Sequence[Any]) -> bool:
        for get in self.without:
            if get(leaves).grad is not None:
                return False
        for get, key in self.gradients:
            if (g := get(leaves).grad) is None or leaf_key(g) != key:
                return False
        if self._hooked and self._current_hooks(leaves) != self._hooks:
            return False
        if self.shared is not None and not self.shared.hold(leaves):
            return False
        if self._keys and not self._keys.hold(leaves):
            return False
        return not self.host or all(guard.hold(leaves) for guard in self.host)

    def _current_hooks(self, leaves: Sequence[Any]) -> list[Any]:
        tensors = [get(leaves) for get in self._hooked]
        return [table or None for table in (*map(_hooks_before, tensors), *map(_hooks_after, tensors))]

    def failure(self, leaves: Sequence[Any], names: dict[int, str]) -> str:
        """Describe the first guard that no longer holds. `names`: the program's names of objects, by id."""
        if not self.modules.hold():
            return self.modules.failure(names)
        if (words := self.attributes.failure()) is not None:
            return words
        if self.captured is not None and (words := self.captured.failure(leaves, names)) is not None:
            return words
        for optimizer_guard in self.optimizers:
            if not optimizer_guard.holds():
                return optimizer_guard.failure(
                    names.get(id(optimizer_guard.optimizer), type(optimizer_guard.optimizer).__name__)
                )
        if self.surroundings is not None and (words := self.surroundings.failure()) is not None:
            return words
        for guard in self.host:
            if not guard.hold(leaves):
                return guard.failure(names)
        for get in self.without:
            if get(leaves).grad is not None:
                return f"{names.get(id(get(leaves)), 'a tensor')}.grad was None, and is there now"
        for get, key in self.gradients:
            name, g = names.get(id(get(leaves)), "a tensor"), get(leaves).grad
            if g is None:
                return f"{name}.grad was there, and is None now"
            if leaf_key(g) != key:
                return f"{name}.grad has other strides, or another dtype or storage"
        if self._hooked and self._current_hooks(leaves) != self._hooks:
            return "a hook of a tensor was added or removed"
        if self.shared is not None and not self.shared.hold(leaves):
            return "an argument is in two places, or is so no more"
        if self._keys and not self._keys.hold(leaves):
            return "a key is a number of another type"
        return "nothing that has a name"


_hooks_before: Callable[[Tensor], Any] = Tensor._backward_hooks.__get__  # type: ignore[union-attr]
_hooks_after: Callable[[Tensor], Any] = Tensor._post_accumulate_grad_hooks.__get__  # type: ignore[attr-defined,misc]


class Rebound:
    """Variables and attributes outside that hold a tensor which the function reads and replaces by another: each call
    reads the current one."""

    def __init__(self, world: Reachable, changes: Sequence[Change], argument_storages: Collection[int]) -> None:
        """`argument_storages`: storages of arguments."""
        tables = [table for table in world.tables.values() if not isinstance(table.before, set)]
        occurrences: Counter[int] = Counter()  # places, and other tensors on the same storage
        for table in tables:
            values = table.before.values() if isinstance(table.before, dict) else table.before
            occurrences.update(id(v) for v in values if isinstance(v, Tensor))
        views = Counter(id(cell_of(t)) for t in _device_tensors(world.visited.values()))
        self.rebound = {(id(c.table.of), key) for c in changes for key in (*c.keys, *c.dropped)}
        self.entries: list[tuple[Table, Any, Any]] = []  # a table, the key in it, and what has to be there
        self.finders: dict[int, Callable[[Sequence[Any]], Storage]] = {}
        self.tensors: dict[int, Callable[[Sequence[Any]], Tensor]] = {}  # these tensors at a call, by identity
        self.memory: dict[int, Callable[[Sequence[Any]], Tensor]] = {}  # the same by their storages
        self._tensors: dict[int, Tensor] = {}
        for change in changes:
            table = change.table
            if isinstance(table.before, set) or world.only_written(change):
                continue
            entries = table.before.items() if isinstance(table.before, dict) else enumerate(table.before)
            is_sequence = not isinstance(table.before, dict)
            for key, value in entries:
                if not (is_sequence or key in change.keys or key in change.dropped) or not _is_ours(value):
                    continue
                cell = cell_of(value)
                if occurrences[id(value)] == 1 and views[id(cell)] == 1 and id(cell) not in argument_storages:
                    self._tensors[id(value)] = value
                    self.entries.append((table, key, leaf_key(value)))
                    self.finders[id(cell)] = _finding(table, key)
                    self.tensors[id(value)] = self.memory[id(cell)] = _finding_tensor(table, key)

    def slot(self, value: Any) -> Replaceable | None:
        """Return the `Replaceable` for a value that may be another one of its kind; None if it must be the same."""
        return Replaceable(leaf_key(value), _key_or_none) if id(value) in self._tensors else None

    def hold(self, call: Call) -> bool:
        for table, key, expected in self.entries:
            try:
                value = _entry(table, key, call)
            except (KeyError, IndexError, AttributeError, TypeError):
                return False
            if _key_or_none(value) != expected:
                return False
        return True


def _entry(table: Table, key: Any, call: Call) -> Any:
    return entry_of(table.located(call), key)


def _finding(table: Table, key: Any) -> Callable[[Sequence[Any]], Storage]:
    return lambda leaves: cell_of(_entry(table, key, call_of(leaves)))


def _finding_tensor(table: Table, key: Any) -> Callable[[Sequence[Any]], Tensor]:
    return lambda leaves: _entry(table, key, call_of(leaves))


def _key_or_none(value: Any) -> Any:
    return leaf_key(value) if isinstance(value, Tensor) else None


def _is_ours(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device.type == TYPE and x.layout is torch.strided


def _device_tensors(values: Iterable[Any]) -> list[Tensor]:
    return [t for t in values if _is_ours(t)]


class ExactKeys:
    """Guards for numbers among dictionary keys of a call, and in the static data of the program's pytree classes: 1,
    True and 1.0 are equal, and so are the structures of calls with them."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._keys = numbers_in(call_of(leaves)) if isinstance(leaves, Leaves) else []

    def __bool__(self) -> bool:
        return bool(self._keys)

    def hold(self, leaves: Sequence[Any]) -> bool:
        return numbers_in(call_of(leaves)) == self._keys


class SharedObjects:
    """The objects among the arguments of a function that changes some, or asks which are the same one: containers, and
    tensors where it asks, that are in two places, or are reached otherwise, too."""

    def __init__(self, world: Reachable, leaves: Sequence[Any], compares: bool) -> None:
        self._outside = world.visited.keys() - world.finders.keys()
        self._compares_identities = compares
        self._shared = self._current(leaves)

    def _current(self, leaves: Sequence[Any]) -> list[Any]:
        ids = [id(x) for x in leaves if isinstance(x, Tensor)] if self._compares_identities else []
        ids += ids_of_objects(leaves)
        return [i if i in self._outside else ids.index(i) for i in ids]

    def hold(self, leaves: Sequence[Any]) -> bool:
        return self._current(leaves) == self._shared


class Captured:
    """Guards for tensors that the function reaches other than by its arguments: their metadata, and which of them share
    memory with each other and with the arguments."""

    def __init__(
        self,
        world: Reachable,
        leaves: Sequence[Any],
        touched: Collection[int],
        slots: Rebound,
        writes: bool,
        watched: Collection[int],
    ) -> None:
        """`touched`: storages that the trace has used. `watched`: tensors of modules, whose guard polls them."""
        by_arguments = world.finders.keys() | slots.tensors.keys()
        tensors = [t for t in _device_tensors(world.visited.values()) if id(t) not in by_arguments]
        self._tensors = [t for t in tensors if id(cell_of(t)) in touched]
        # tensors whose use is only known by comparing their state
        self._polled = [t for t in tensors if id(t) not in watched]
        self._requires_grad = [t.requires_grad for t in self._polled]
        self._kinds = [*map(type, self._polled)]
        self._geometry_keys = [_geometry_key(t) for t in self._tensors]
        self.geometry_count = state.rebindings
        self._slots = slots
        self._arguments = [i for i, t in enumerate(leaves) if _is_ours(t)]
        self._cells = {id(cell_of(t)) for t in self._tensors}
        self._shared = [id(c) if id(c := cell_of(leaves[i])) in self._cells else None for i in self._arguments]
        # without a write it makes no difference, but where the trace has taken one for the other
        self._compares = bool(self._cells) and (writes or any(self._shared))

    def __bool__(self) -> bool:
        return bool(self._polled or self._slots.entries or self._compares or self._tensors)

    def hold(self, leaves: Sequence[Any]) -> bool:
        if self._polled and list(map(requires_grad_of, self._polled)) != self._requires_grad:
            return False
        if [*map(type, self._polled)] != self._kinds:
            return False
        if state.rebindings != self.geometry_count:
            if [_geometry_key(t) for t in self._tensors] != self._geometry_keys:
                return False
            self.geometry_count = state.rebindings
        if self._compares:
            cells, cells_now = self._cells, [id(cell_of(leaves[i])) for i in self._arguments]
            if [c if c in cells else None for c in cells_now] != self._shared:
                return False
        return not self._slots.entries or self._slots_hold(leaves)

    def write(self, code: StraightCall) -> None:
        """Write the conditions of `hold`."""
        if self._slots.entries or (self._compares and any(self._shared)):
            code.require(f"{code.name(self.hold)}({code.flattened()})")
            return
        code.require_equal(requires_grad_of, self._polled, self._requires_grad)
        code.require_equal(type, self._polled, self._kinds)
        if self._tensors:
            me, state_name = code.name(self), code.name(state)
            code.require(f"{state_name}.rebindings == {me}.geometry_count or {me}.hold({code.flattened()})")
        if self._compares:
            for i in self._arguments:
                code.require(f"id({code.cell(i)}) not in {code.name(self._cells)}")

    def _slots_hold(self, leaves: Sequence[Any]) -> bool:
        call = call_of(leaves)
        if not self._slots.hold(call):
            return False
        cells = [id(cell_of(_entry(table, key, call))) for table, key, _ in self._slots.entries]
        other_cells = self._cells.union(id(cell_of(leaves[i])) for i in self._arguments)
        return len(set(cells)) == len(cells) and other_cells.isdisjoint(cells)

    def failure(self, leaves: Sequence[Any], names: dict[int, str]) -> str | None:
        """Describe the first guard that no longer holds; None if all do."""
        for t, required in zip(self._polled, self._requires_grad, strict=True):
            if t.requires_grad is not required:
                return f"{names.get(id(t), 'a tensor')}.requires_grad is {t.requires_grad}, was {required}"
        for t, kind in zip(self._polled, self._kinds, strict=True):
            if type(t) is not kind:
                return f"{names.get(id(t), 'a tensor')} is a {type(t).__name__} now, was a {kind.__name__}"
        for t, expected in zip(self._tensors, self._geometry_keys, strict=True):
            if _geometry_key(t) != expected:
                return f"{names.get(id(t), 'a tensor')} has another storage, shape, dtype or strides"
        if self._slots.entries and not self._slots_hold(leaves):
            return "a tensor that the function replaces is another kind of tensor now"
        if self._compares and not self.hold(leaves):
            return "an argument shares memory with a tensor that the function reaches, or does so no more"
        return None


def _geometry_key(t: Tensor) -> Any:
    """Return a key that differs if a tensor has another storage or geometry."""
    return id(cell_of(t)), leaf_key(t)
