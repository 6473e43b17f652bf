"""The run of a function on stand-ins by which `tg.jit` traces it, and all that is found out about it on the way."""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections.abc import Callable, ItemsView, Iterator, KeysView, Sequence, ValuesView
from typing import Any

import numpy as np
import torch

from tensorgraft.compiled.captured_objects import Call, is_plain_tensor
from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.expanded import contents_in_key
from tensorgraft.compiled.instructions import global_names
from tensorgraft.compiled.objects import Template, has_objects_of_calls, tracking_new_objects
from tensorgraft.compiled.outside_calls import OutsideCalls, is_iterator
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.surroundings import Surroundings
from tensorgraft.compiled.uncompiled import RunsUncompiled, call_traced, results_flattened
from tensorgraft.compiled.values import is_plain
from tensorgraft.frontends.torch.compiled.autograd.history import (
    Finder,
    forget_history,
    has_history,
    is_leaf,
    record,
    result_finders,
    ungraded_view,
)
from tensorgraft.frontends.torch.compiled.autograd.replay import usable
from tensorgraft.frontends.torch.compiled.autograd.tape import Surrounded, Tape
from tensorgraft.frontends.torch.compiled.capture import Capture, GradientLeaf, active
from tensorgraft.frontends.torch.compiled.guards.assumptions import Rebound, Unknown, leaf_key, modes, modes_around
from tensorgraft.frontends.torch.compiled.guards.modules import global_hooks
from tensorgraft.frontends.torch.compiled.host.call_tensors import Argument, on_host, raw_gradient
from tensorgraft.frontends.torch.compiled.host.scalars import is_scalar, sum_of
from tensorgraft.frontends.torch.compiled.host.traced_tensors import HostWatch
from tensorgraft.frontends.torch.compiled.indexing.indices import traced_calls
from tensorgraft.frontends.torch.compiled.indexing.masks import MaskedSelection
from tensorgraft.frontends.torch.compiled.optimizers.grad_scaler import scalers_traced
from tensorgraft.frontends.torch.compiled.optimizers.numbers import Groups, OptimizerGuard, optimizers_traced
from tensorgraft.frontends.torch.compiled.sparse_tensors import (
    OutsideSparse,
    SparseResult,
    refuse_arguments,
    take_apart,
)
from tensorgraft.frontends.torch.compiled.trace_contexts import Schedule, trace_contexts
from tensorgraft.frontends.torch.core import settings
from tensorgraft.frontends.torch.core.attributes import Reads, recording_reads
from tensorgraft.frontends.torch.core.codes import split_quantized
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.located_errors import refused
from tensorgraft.frontends.torch.core.modes import of_program
from tensorgraft.frontends.torch.core.scalars import tensor_of
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.core.trees import Boxed, Structure, call_of, flatten_results, is_whole
from tensorgraft.frontends.torch.sparse.parts import is_sparse
from tensorgraft.hub.array import Array
from tensorgraft.storage import Storage

Tensor = torch.Tensor


def _same(t: Tensor, leaves: Any) -> Tensor:
    """Find a tensor that is no argument."""
    return t


class Tracing:
    """A function and the call for which it is traced; after `run`, also the tensors that it made, wrote and changed."""

    host: HostWatch
    outside_calls: OutsideCalls
    grad_mode: bool  # the gradient mode at the end of the function
    changes: list[Change]  # changes of objects from outside
    # makes (results, new entries of changes), if results are objects or something is changed
    template: Template | None = None
    structure: Structure | None  # the structure of the results; None for a single one
    flat: list[Any]  # the results, what makes a call raise, what arguments look at from now on; without history
    numbers: list[int]  # the results that are numbers of Python
    identical: list[int | None]  # for each result the argument that it is
    same_as: list[int]  # for each result the first one that is the same object
    returned: dict[int, int]  # leaves, by identity, whose new gradient is a result, and the place of that
    result_finders: list[Any]  # for each result how it is made of a tensor from outside that it looks at
    classes: list[tuple[int, type[Tensor], bool]]  # (position, class, requires gradients) of results
    attributes: list[tuple[int, dict[str, Any]]]  # (position, attributes) of new tensors among the results
    roots: list[int]  # the results that a backward pass outside may begin at
    tape: Tape | None
    slots: Rebound
    moved: list[int]  # arguments with another geometry or storage after the call
    required: list[tuple[Finder, bool]]  # (finder of a tensor, the `requires_grad` that a call gives it)
    written: list[Any]  # storages that the call writes
    survivors: list[Storage]  # new storages that something holds on to
    outputs: list[Array]  # arrays of written and surviving storages
    usable: set[int]  # ids of arrays that a backward pass outside may use without a copy
    notes: Any  # products that a precision policy has counted
    final_gradients: list[tuple[GradientLeaf, Tensor | None]]  # leaves, with their gradients when the function ends

    def __init__(self, fn: Callable[..., Any], fixed: Sequence[Any], capture: Capture, leaves: list[Any]) -> None:
        """`fixed`: objects that the function captures. Raises RunsUncompiled for a call that no trace supports."""
        self._fn, self.capture, self.leaves = fn, capture, leaves
        self._modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        self.schedule = Schedule()
        self.stepped: list[OptimizerGuard] = []
        call = call_of(leaves)
        if modes := modes_around():
            raise RunsUncompiled(f"is called inside of {modes[0].__name__}, which sees what it computes")
        hooks = [("a hook of all modules", hook) for hook in global_hooks()]
        capture.world = self.world = Reachable([("", fn), *hooks], call)
        if self.world.once is not None:
            raise RunsUncompiled(f"reads {self.world.once}, which may differ at each call")
        if (composite := next(filter(_is_composite, leaves), None)) is not None:
            raise RunsUncompiled(f"takes a {type(composite).__name__}, a tensor subclass that wraps other tensors")
        if (unknown := next((key for key in map(leaf_key, leaves) if key.__class__ is Unknown), None)) is not None:
            raise RunsUncompiled(
                f"takes an argument of class {unknown.kind.__qualname__}, which is neither a tensor nor hashable"
            )
        refuse_arguments(leaves)
        capture.sparse = OutsideSparse(capture)
        self.sparse: list[SparseResult] = []
        self.sparse_gradients: dict[int, int] = {}  # {id of a leaf: the result that is its gradient}
        self.device_arguments = [
            (i, t) for i, t in enumerate(leaves) if isinstance(t, Tensor) and t.device.type == TYPE
        ]
        self.cells = {id(cell_of(t)): i for i, t in reversed(self.device_arguments)}  # storages of arguments
        for i, t in enumerate(leaves):
            if on_host(t):
                capture.fed_tensors[id(t)] = (t, Argument(i))
        self._cut_histories(call)
        outside = {
            id(t): t for t in (*(t for _, t in self.device_arguments), *self.world.visited.values()) if _has_version(t)
        }
        self.versions = [(t, t._version) for t in outside.values()]
        self._without_history = [t for t in outside.values() if not has_history(t)]
        self._look_around(fixed)

    def _cut_histories(self, call: Call) -> None:
        """Pass the arguments to the function without their history, which is not part of it: autograd continues there
        after the call."""
        new_leaves = list(self.leaves)
        self.detached: dict[int, int] = {}
        for k, (i, t) in enumerate(self.device_arguments):
            if t.requires_grad and not is_leaf(t):
                new_leaves[i] = t.detach().requires_grad_()
                new_leaves[i].__dict__ = t.__dict__
                self.device_arguments[k] = (i, new_leaves[i])
                self.detached[id(new_leaves[i])] = i
        self.capture.detached.update(self.detached)
        # leaves, whose `requires_grad` a call may set, and what finds them
        given = [(i, t) for i, t in enumerate(self.leaves) if isinstance(t, Tensor) and t is new_leaves[i]]
        self._settable: list[tuple[Callable[[Any], Any], Tensor, bool]] = [
            (operator.itemgetter(i), t, t.requires_grad) for i, t in given
        ]
        others = {id(t): t for t in self.world.visited.values() if _has_version(t) and is_leaf(t)}
        for key in others.keys() - {id(t) for t in self.leaves}:
            t = others[key]
            self._settable.append((functools.partial(_same, t), t, t.requires_grad))
        replaced = {id(self.leaves[i]): new_leaves[i] for i in self.detached.values()}
        self._args, self._kwargs = self.world.substituted(call, replaced)

    def _look_around(self, fixed: Sequence[Any]) -> None:
        self.surroundings = Surroundings("torch")
        self.surroundings.around(self._fn)
        for leaf in self.leaves:
            if not isinstance(leaf, Boxed | np.ndarray):
                self.surroundings.add("an argument", leaf)
            for name, value in leaf.__dict__.items() if is_plain_tensor(leaf) else ():
                self.surroundings.add(f"an argument.{name}", value)
        self.surroundings.watch(self.world)
        keyed = {key for leaf in self.leaves if leaf.__class__ is Boxed for key in contents_in_key(leaf.of, is_whole)}
        self.reads = Reads(self.surroundings, self.world, keyed)
        known = *self.world.owners, *self.world.standard.values()
        reachable_values = *fixed, *self.leaves, *self.surroundings.new_objects(), *known
        self._owners = [v for v in reachable_values if not isinstance(v, Tensor)]

    # ---- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> list[Array]:
        """Run the function on stand-ins. Returns the arrays of storages that it wrote, and of new ones that survive."""
        capture = self.capture
        with active(capture), settings.restored_on_error(), contextlib.ExitStack() as stack:
            if self._modes[0]:  # a backend may trace without it; to enter it sets the other mode
                stack.enter_context(torch.inference_mode())
                stack.enter_context(torch.set_grad_enabled(self._modes[1]))
            stack.enter_context(optimizers_traced(capture, self.schedule, self.stepped))
            self.host = capture.host = stack.enter_context(trace_contexts(capture, self.schedule))
            stack.enter_context(scalers_traced())
            stack.enter_context(traced_calls(capture))
            capture.first_node = first_node = torch.autograd._get_sequence_nr()
            self.world.is_new = stack.enter_context(tracking_new_objects())
            out = self._call()
            flat = self._take(out, first_node)
            del out
            return self._end(flat)

    def _call(self) -> Any:
        """Call the function and record its changes. Raises RunsUncompiled for changes that no program can repeat."""
        before, flags, groups = modes(), settings.flags(), Groups(self.world.visited.values())
        self.capture.undos.append(groups.restore)
        with recording_reads(self.reads, *self._owners), torch.set_grad_enabled(torch.is_grad_enabled()):
            self.outside_calls = OutsideCalls()
            try:
                asks = any("id" in global_names(code) for code in self.world.codes)
                is_argument = self._is_argument if asks else None
                with self.outside_calls.watched(self.world.outside, is_argument, self.world.asked):
                    out = of_program(call_traced, self._fn, self._args, self._kwargs)
            finally:
                self.world.leave_to_others(self.reads.uses)
            self.outside_calls.settled()
            self.grad_mode = torch.is_grad_enabled()
        if self.capture.uncompiled is not None:
            raise RunsUncompiled(self.capture.uncompiled)
        if self.capture.leaves_hooks():
            raise RunsUncompiled("registers a hook on a tensor from outside")
        if any(map(has_history, self._without_history)):
            raise RunsUncompiled("writes a tensor from outside in place, which requires gradients from then on")
        if modes() != before or settings.flags() != flags:
            raise RunsUncompiled("changes a setting of PyTorch beyond its end")
        if groups.changed() and not (self.schedule.before or self.schedule.after):
            raise RunsUncompiled("changes the hyper-parameters of an optimizer")
        self.changes = self.world.changes(self.reads.counted, sum_of)
        if (name := self.reads.uncounted(self.changes)) is not None:
            raise RunsUncompiled(f"adds to {name}, which is not an int: it is another number at each call")
        if self.world.drew():
            raise RunsUncompiled("draws random numbers of Python or NumPy")
        if (name := self.world.remembered()) is not None:
            raise RunsUncompiled(f"calls {name}, under functools.lru_cache, with tensors")
        return out

    def _is_argument(self, key: int) -> bool:
        return key in self.world.finders or key in self.detached

    def _take(self, out: Any, first_node: int) -> list[Any]:
        """Return the results as leaves without history. `first_node`: of autograd's nodes, the first that the function
        may have made."""
        capture, world = self.capture, self.world
        flat, structure = results_flattened(flatten_results, out)
        if (later := next(filter(_is_lazy, flat), None)) is not None:
            raise RunsUncompiled(f"returns a {type(later).__name__}, which computes lazily or looks at another object")

        def is_old(x: Any) -> bool:
            return id(x) in world.visited or not world.is_new(x)

        reached = world.visited, world.finders
        if self.changes or has_objects_of_calls(out, flat, _is_array, is_old, *reached):
            self.template = Template((out, [change.new for change in self.changes]), _is_array, is_old)
            flat, structure = list(self.template.arrays), None
        if (composite := next(filter(_is_composite, flat), None)) is not None:
            raise RunsUncompiled(
                f"returns or keeps a {type(composite).__name__}, a tensor subclass that wraps other tensors"
            )
        for x in flat:
            if type(x) is MaskedSelection:
                of_program(x.size)  # raises: its shape is not known
        self.host.at_the_end(flat)
        self.count = len(flat)
        self.structure = None if len(flat) == 1 and flat[0] is out else structure
        self.numbers = [i for i, x in enumerate(flat) if is_scalar(x)]
        flat = [tensor_of(x) if is_scalar(x) else x for x in flat]
        self._take_apart(flat, [i for i, x in enumerate(flat) if is_sparse(x)])
        arguments = [*self.device_arguments, *((i, t) for i, t in enumerate(self.leaves) if on_host(t))]
        self.identical = [next((i for i, t in arguments if t is o), None) for o in flat]
        self.slots = Rebound(world, self.changes, self.cells)
        outside = {id(t): (lambda leaves, t=t: t) for t in world.visited.values() if isinstance(t, Tensor)}
        self.result_finders = result_finders(
            flat, self.device_arguments, {**outside, **self.slots.tensors}, self.slots.memory, capture
        )
        self.roots, self.tape = record(flat, self.identical, self.result_finders, first_node, capture)
        if self.tape is not None and self.tape.python:
            self.tape.surroundings = Surrounded(self._fn)
        first = {id(o): j for j, o in reversed(list(enumerate(flat)))}
        self.same_as = [first[id(o)] for o in flat]
        self.classes = [*self._classes(flat)]
        self.attributes = [*self._new_attributes(flat)]
        left = {key: raw_gradient(leaf.tensor) for key, leaf in capture.leaves.items() if leaf.alive}
        self.returned = {key: first[id(g)] for key, g in left.items() if g is not None and id(g) in first}
        return [o.detach() if isinstance(o, Tensor) and o.device.type == TYPE else o for o in flat]

    def _take_apart(self, flat: list[Any], positions: Sequence[int]) -> None:
        arguments = {id(leaf.of) for leaf in self.leaves if leaf.__class__ is Boxed}
        if any(id(flat[i]) in arguments for i in positions):
            raise RunsUncompiled("returns a sparse argument itself")
        first = {id(flat[i]): i for i in reversed(positions)}
        if len(first) != len(positions):
            raise RunsUncompiled("returns a sparse tensor twice")
        for i in positions:
            if not self.world.is_new(flat[i]):
                raise RunsUncompiled("returns a sparse tensor from outside")
            self.sparse.append(take_apart(flat, i))

    def _take_gradients(self, flat: list[Any]) -> None:
        """Take apart the sparse gradients that the function leaves, as further results."""
        for key, leaf in self.capture.leaves.items():
            gradient = raw_gradient(leaf.tensor) if leaf.alive else None
            if gradient is not None and gradient is not leaf.before and is_sparse(gradient):
                self.sparse_gradients[key] = len(flat)
                flat.append(gradient)
                self.sparse.append(take_apart(flat, len(flat) - 1))
        for _ in range(len(flat) - len(self.same_as)):
            self.same_as.append(len(self.same_as))
            self.identical.append(None)

    def _end(self, flat: list[Any]) -> list[Array]:
        """Record the final state of the storages; at this point only the results refer to tensors that the function
        made."""
        capture = self.capture
        if self.tape is None:
            self.host.refuse_left(flat)
        capture.forget_leaves()
        capture.sparse.settle()
        self._take_gradients(flat)
        moved = [(i, t) for i, t in self.device_arguments if capture.is_rebound(t)]
        self._refuse_moved()
        # results, too: what makes a call raise, and what arguments look at after it
        for t in (*(flag for flag, _, _ in capture.failures or ()), *(t.detach() for _, t in moved)):
            self.same_as.append(len(flat))
            self.identical.append(None)
            flat.append(t)
        self.moved = [i for i, _ in moved]
        self.required = [(find, not before) for find, t, before in self._settable if _is_set(t, before)]
        self.flat = flat
        for t in flat:
            if isinstance(t, Tensor) and t.device.type == TYPE:
                capture.touch([cell_of(t)])
        capture.casts.clear()  # autocast's, which nothing after this call may use
        self.written = [t for t in capture.touched if t.cell.array is not t.stand_in]
        self.survivors = capture.survivors()
        arrays = [t.cell.array for t in self.written] + [c.array for c in split_quantized(self.survivors)]
        if self.tape is None:
            return arrays
        self.tape.keep(capture, [*self.survivors, *(cell_of(t) for _, t in self.device_arguments)])
        self.outputs, self.usable = arrays, usable(capture, self.written)
        return arrays + self.tape.outputs(self.usable, arrays)

    def _classes(self, flat: Sequence[Any]) -> Iterator[tuple[int, type, bool]]:
        """Yield the new results that are leaves of autograd, or of another class, each once. Raises RunsUncompiled for
        those that have a gradient, or are in the history of another result."""
        ends = set() if self.tape is None else set(map(id, self.tape.leaves))
        for i, (t, known, finder) in enumerate(zip(flat, self.identical, self.result_finders, strict=True)):
            if self.same_as[i] == i and known is None and is_plain_tensor(t) and id(t) not in self.world.visited:
                required = finder is None and is_leaf(t) and t.requires_grad
                if required and ungraded_view(t):
                    raise RunsUncompiled("returns or keeps a view from no_grad of a tensor that requires gradients")
                if finder is None and not is_leaf(t) and t.retains_grad and t.grad is not None:
                    raise RunsUncompiled("returns or keeps a tensor that retains the gradient of a backward pass in it")
                if required and (t.grad is not None or id(t) in ends):
                    raise RunsUncompiled(
                        "returns or keeps a new leaf of autograd together with a result computed from it"
                    )
                if required or type(t) is not Tensor:
                    yield i, type(t), required

    def _new_attributes(self, flat: Sequence[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the attributes that the function has given to new tensors among its results, by their places."""
        for i, (x, known) in enumerate(zip(flat, self.identical, strict=True)):
            if known is None and is_plain_tensor(x) and x.__dict__ and id(x) not in self.world.visited:
                if not all(map(is_plain, x.__dict__.values())):
                    raise RunsUncompiled("returns a tensor with an attribute that is a tensor or another object")
                yield i, dict(x.__dict__)

    def _refuse_moved(self) -> None:
        """Raises TracedValueError where a tensor that is no argument has been given another geometry or storage, which
        every later call would not do. An argument is given it at each call, unless it has come with a history."""
        if not self.capture.metadata_before:
            return
        arguments = [t for _, t in self.device_arguments]
        argument_ids = {id(t) for t in arguments if id(t) not in self.detached}
        for t in (*self.world.visited.values(), *arguments):
            if isinstance(t, Tensor) and id(t) not in argument_ids and self.capture.is_rebound(t):
                raise refused(
                    "changes the shape, strides or storage of a tensor from outside, which now has shape"
                    f" {tuple(t.shape)} (t_(), resize_(), out= of another size, .data = ...).",
                    ("its values", "write them: t.copy_(new) in torch.no_grad()"),
                    ("its shape", "return the new tensor, or pass the old one as an argument without a grad_fn"),
                )

    # ---- after it ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Record the gradients that the function leaves, and undo its changes."""
        self.final_gradients = [(leaf, raw_gradient(leaf.tensor)) for leaf in self.capture.leaves.values()]
        self.capture.undo_gradients()
        self.host.undo_writes()
        self._put_back_required()
        self.world.undo()
        self.world.is_new = lambda *values: False

    def abandon(self) -> None:
        """Undo everything, as if the function had not been called."""
        self.capture.undo()
        self.surroundings.undo()
        self.restore()
        self.capture.close()

    def restore(self) -> None:
        """Give the storages their arrays, and arguments their `requires_grad`, as they were."""
        self.capture.restore()
        self._put_back_required()
        for t in filter(has_history, self._without_history):
            forget_history(t)

    def _put_back_required(self) -> None:
        for _, t, before in self._settable:
            if _is_set(t, before):
                t.requires_grad_(before)


_LATER = (types.CoroutineType, types.AsyncGeneratorType, KeysView, ValuesView, ItemsView)


def _is_lazy(x: Any) -> bool:
    return isinstance(x, _LATER) or is_iterator(x)


def _is_set(t: Tensor, before: bool) -> bool:
    return is_leaf(t) and t.requires_grad is not before


def _has_version(t: Any) -> bool:
    return isinstance(t, Tensor) and t.device.type == TYPE and t.layout is torch.strided and not t.is_inference()


def _is_composite(x: Any) -> bool:
    """Return whether it is a tensor of a program's class that is made of other tensors."""
    on_device = isinstance(x, Tensor) and x.device.type == TYPE and not type(x).__module__.startswith("tensorgraft.")
    return on_device and not is_plain_tensor(x)


def _is_array(x: Any) -> bool:
    return isinstance(x, Tensor) or is_scalar(x)
