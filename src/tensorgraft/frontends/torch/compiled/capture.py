"""The state of a trace: the storages that a function reads and writes, its gradients, and its inputs from the host.

While a capture is active, kernels report which storages they touch. The array of a storage from outside is replaced by
a stand-in, which is an input of the traced program; an array that is written to the storage is an output. Storages
that are made inside and outlive the trace (results, gradients, a module's cache) are outputs, too. Values that the host
computes at every call (random state, a learning rate) are feeds.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch.autograd.graph import GradientEdge

from tensorgraft.compiled.program import Feed
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.errors import CompilationError
from tensorgraft.frontends.torch.compiled.autograd.recomputation import Recomputation
from tensorgraft.frontends.torch.compiled.autograd.saved_tensors import next_nodes, nodes, nodes_from
from tensorgraft.frontends.torch.compiled.control_flow.unrolled_loops import Loops
from tensorgraft.frontends.torch.compiled.host.call_tensors import HostTensors, LiveTensor, raw_gradient
from tensorgraft.frontends.torch.core import codes, state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.gradients import put_gradient
from tensorgraft.frontends.torch.core.located_errors import current_line, refused
from tensorgraft.frontends.torch.core.source_location import Place, program_place
from tensorgraft.frontends.torch.core.state import RandomState
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage, put_as_it_is

if TYPE_CHECKING:
    from tensorgraft.compiled.side_effects import Reachable
    from tensorgraft.frontends.torch.core.values import Values


@dataclass
class Touched:
    """A storage from outside that the function uses: its array, and the stand-in that the trace has in its place."""

    cell: Storage
    original: Array
    stand_in: Array


class GradientLeaf:
    """A tensor whose `.grad` a function reads, sets or clears. Leaves made inside are dropped after the function."""

    def __init__(self, tensor: torch.Tensor, reset: bool) -> None:
        self._ref: Callable[[], torch.Tensor | None] = weakref.ref(tensor)
        self.before = raw_gradient(tensor)  # the gradient when the function began
        self.reset = reset  # the function replaces this gradient before it reads it, so that its value is not used

    @property
    def tensor(self) -> torch.Tensor:
        t = self._ref()
        assert t is not None
        return t

    @property
    def alive(self) -> bool:
        return self._ref() is not None

    def same(self, tensor: torch.Tensor) -> bool:
        return self._ref() is tensor

    def forget(self) -> None:
        """Drop the reference to the tensor."""
        self._ref = lambda: None


class Mark(NamedTuple):
    """A random state that the function has read: its words, and the number of draws since."""

    source: RandomState
    words: Array | None  # None: the words when the capture began
    draws: int


_tokens = itertools.count(1 << 63)  # offsets that represent marks: no random state reaches them


@dataclass
class Capture:
    backend: Backend
    touched: list[Touched] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)
    new_storages: list[weakref.ref[Storage]] = field(default_factory=list)
    leaves: dict[int, GradientLeaf] = field(default_factory=dict)
    draws: dict[int, tuple[RandomState, Array, int]] = field(default_factory=dict)
    bases: dict[int, Array] = field(default_factory=dict)  # {id of a random state: its words when the program begins}
    marks: dict[int, Mark] = field(default_factory=dict)
    replays: bool = False  # branches or loop bodies run again in a backward pass
    walked: dict[int, weakref.ref[torch.Tensor]] = field(default_factory=dict)  # leaves of backward passes inside
    checkpoints: list[weakref.ref[Any]] = field(default_factory=list)  # calls of checkpointed functions
    recomputation: Recomputation | None = None  # the one in progress
    values: Values | None = None  # values of tensors that the function may read
    modules: dict[int, torch.nn.Module] = field(default_factory=dict)
    # {id of a tensor of the host that is no constant: (the tensor, its value at a call)}
    fed_tensors: dict[int, tuple[torch.Tensor, LiveTensor]] = field(default_factory=dict)
    origins: dict[int, Place | None] = field(default_factory=dict)  # {id of a storage: where the program made it}
    constants: list[Array] = field(default_factory=list)  # arrays of Python numbers
    casts: dict[Any, Any] = field(default_factory=dict)  # autocast's cache of cast weights, for this program only
    loops: Loops = field(default_factory=Loops)

    # tensors whose geometry or storage was changed (`t_`, `resize_`, `out=`, `.data =`), and an alias of each from
    # before
    metadata_before: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = field(default_factory=dict)
    retained: list[weakref.ref[torch.Tensor]] = field(default_factory=list)  # tensors that retain their gradients
    uncompiled: str | None = None  # something that the function does and a program cannot do at every call
    hooks: list[Any] = field(default_factory=list)  # handles of hooks that the function has put on tensors from outside
    hooks_inside: bool = False  # the function has put hooks on tensors that it has made
    first_node: int = 0  # the first sequence number of autograd's nodes that the function has made
    detached: set[int] = field(default_factory=set)  # ids of tensors that replace arguments with a history
    undos: list[Callable[[], None]] = field(default_factory=list)  # undo changes to optimizers and schedulers
    # optimizers and their attributes that the program reads; schedulers that it reads
    optimizers_read: dict[tuple[int, str], Any] = field(default_factory=dict)
    schedulers_read: dict[int, Any] = field(default_factory=dict)
    quantized: list[Storage] = field(default_factory=list)  # storages whose parts are among the touched ones
    host: HostTensors | None = None
    sparse: Any = None  # the sparse tensors from outside (`sparse_tensors.OutsideSparse`)
    world: Reachable | None = None  # Python objects that the function reaches
    scalars: bool = False  # the function has read tensors as numbers
    # (a tensor that is true if a call has to raise an error, its class, its message); None if calls cannot raise
    failures: list[tuple[torch.Tensor, type[Exception], str]] | None = field(default_factory=list)
    on_device: bool = True  # the function is known to use the device, even if it has not yet

    @property
    def idle(self) -> bool:
        """True if the function has not used the device, and is not known to use it."""
        return not (self.on_device or self.touched or self.new_storages or self.draws)

    # ---- storages -------------------------------------------------------------------------------------------------

    def touch(self, cells: Sequence[Storage]) -> None:
        """Kernels call this before they read or write storages."""
        for cell in cells:
            if cell.capture is self:
                if self.recomputation is not None:
                    self.recomputation.reads(cell)
                continue
            if cell.backend.compound and cell.backend.inner is self.backend:
                cell.capture = self
                self.quantized.append(cell)
                self.touch(codes.parts(cell))
                if self.recomputation is not None:
                    self.recomputation.reads(cell)
                continue
            if cell.backend is not self.backend:
                raise self._device_error("uses", cell, "move it before the call")
            cell.capture = self
            original = cell.array
            stand_in = self.backend.stand_in(original)
            put_as_it_is(cell, stand_in)  # it has the placement of the original
            self.touched.append(Touched(cell, original, stand_in))
            if self.recomputation is not None and not isinstance(cell, codes.QuantizedPart):
                self.recomputation.reads(cell)

    def note_rebinding(self, t: torch.Tensor) -> None:
        """Called before a tensor is given another geometry or storage: remember those of a tensor from outside."""
        cell = getattr(t.untyped_storage(), "cell", None)  # none: a quantised tensor of the CPU
        if id(t) not in self.metadata_before and id(cell) not in self.origins:
            self.metadata_before[id(t)] = weakref.ref(t), t.detach()

    def is_rebound(self, t: torch.Tensor) -> bool:
        """Return True for a tensor from outside that has another geometry or storage now."""
        known = self.metadata_before.get(id(t))
        return known is not None and known[0]() is t

    def _device_error(self, does: str, cell: Storage, remedy: str) -> CompilationError:
        return CompilationError(
            f"{current_line()} {does} a tensor on {cell.backend.name}, and tg.jit compiles for one device,"
            f" {self.backend.name}: {remedy}"
        )

    def created(self, cell: Storage, location: Place | None = None) -> None:
        """Kernels call this for each storage that they make, with the program's place where it is known."""
        if cell.backend is not self.backend and not (cell.backend.compound and cell.backend.inner is self.backend):
            if not math.prod(cell.backend.shape(cell.array)):
                return  # PyTorch makes a sparse tensor from empty ones of the current device
            raise self._device_error("makes", cell, "pass a tensor on the intended device, or create this one outside")
        cell.capture = self
        self.new_storages.append(weakref.ref(cell))
        if self.recomputation is not None:
            self.recomputation.own.add(cell)
        self.origins[id(cell)] = location or program_place()

    def made_inside(self, t: torch.Tensor) -> bool:
        if t.device.type != TYPE or t.layout is not torch.strided:
            return False
        return id(getattr(t.untyped_storage(), "cell", None)) in self.origins

    def from_outside(self, t: torch.Tensor) -> bool:
        """Return True for a tensor that existed before the function ran, or that replaces such an argument."""
        return id(t) in self.detached or (self.world is not None and not self.world.is_new(t))

    def all_from_outside(self, tensors: Sequence[torch.Tensor]) -> set[int]:
        """Return the identities of those that are `from_outside`."""
        candidates = [t for t in tensors if id(t) not in self.detached]
        if candidates and self.world is not None:
            self.world.is_new(*candidates)
        return {id(t) for t in tensors if self.from_outside(t)}

    def leaves_hooks(self) -> bool:
        """Return True if hooks that the function has put on tensors from outside are still there."""
        tables = ((handle.id, handle.hooks_dict_ref()) for handle in self.hooks)
        return any(table is not None and key in table for key, table in tables)

    def survivors(self) -> list[Storage]:
        """Return the storages made inside that are still alive."""
        return [cell for ref in self.new_storages if (cell := ref()) is not None]

    @contextlib.contextmanager
    def recomputing(self) -> Iterator[None]:
        """Inside the context, a checkpointed function runs again."""
        newest = (cell for ref in reversed(self.new_storages) if (cell := ref()) is not None)
        newest_array = next((codes.split_quantized([cell])[0].array for cell in newest), None)
        outer, self.recomputation = self.recomputation, Recomputation(self.backend, newest_array)
        inner = self.recomputation
        try:
            yield
        finally:
            self.recomputation = outer
            inner.restore()

    def note_module(self, module: torch.nn.Module) -> None:
        """Called before a module runs."""
        if id(module) not in self.modules:
            self.modules[id(module)] = module
            if self.world is not None:
                self.world.watch(type(module).__name__, module)

    def undo(self) -> None:
        """Undo the effects of the function on gradients, optimizers, schedulers and Python objects (`restore` undoes
        those on arrays)."""
        while self.undos:
            self.undos.pop()()
        self.undo_gradients()
        if self.world is not None:
            self.world.undo()
            self.world.forget()

    def close(self) -> None:
        """Drop the references to tensors: `swap_tensors` refuses a tensor that has a weak reference."""
        for leaf in self.leaves.values():
            leaf.forget()
        for table in (self.leaves, self.walked, self.metadata_before, self.undos, self.modules):
            table.clear()
        self.host = self.world = None

    def undo_gradients(self) -> None:
        for leaf in self.leaves.values():
            if leaf.alive and raw_gradient(leaf.tensor) is not leaf.before:
                put_gradient(leaf.tensor, leaf.before)

    def restore(self) -> None:
        """Restore the arrays of storages from outside, and the geometries of tensors."""
        for t in self.touched:
            put_as_it_is(t.cell, t.original)
            t.cell.capture = None
        for ref, before in self.metadata_before.values():
            if (tensor := ref()) is not None:
                tensor.data = before
        self.metadata_before.clear()
        for cell in (*self.survivors(), *self.quantized):
            cell.capture = None

    # ---- inputs from the host -------------------------------------------------------------------------------------

    def feed(
        self,
        value: Callable[[], np.ndarray],
        example: np.ndarray,
        at_trace: bool = False,
        what: str = "random state",
        is_number: bool = False,
    ) -> Array:
        """Return a new input of the program; `value` computes it at every call. `at_trace`: the call that traces takes
        the example instead, because the traced function may change the value later (a scheduler does). `is_number`: as
        in `Feed`."""
        with self.backend.eagerly():
            stand_in = self.backend.stand_in(self.backend.asarray(example))
        self.feeds.append(Feed(stand_in, value, example if at_trace else None, what, is_number))
        return stand_in

    def first_words(self, source: RandomState) -> Array:
        """Return the words of a random state when the program begins, as an input."""
        return self.feed(source.words, source.words(), is_number=True)

    def draw(self, source: RandomState) -> Array:
        """Return the words of the next draw from a random state: its words at the call, with the offset increased."""
        key = id(source)
        if key not in self.draws:
            if key not in self.bases:
                self.bases[key] = self.first_words(source)
            self.draws[key] = (source, self.bases[key], 0)
        _, words, n = self.draws[key]
        self.draws[key] = (source, words, n + 1)
        if n == 0:
            return words
        xp = self.backend
        high, low = (xp.slice(words, (i,), (i + 1,), (1,)) for i in (2, 3))
        new_low = xp.add(low, xp.full((), n, dtypes.uint32))
        high = xp.add(high, xp.astype(xp.less(new_low, low), dtypes.uint32))
        return xp.concat([xp.slice(words, (0,), (2,), (1,)), high, new_low], axis=0)

    def advances(self) -> list[tuple[RandomState, int]]:
        """Return each random state with the number of draws from it."""
        return [(source, n) for source, words, n in self.draws.values() if words is self.bases.get(id(source))]

    def mark_draws(self, source: RandomState) -> int:
        """Return a token for the offset that a random state has reached, to be given to `rewind_draws`."""
        count = self.draws.get(id(source))
        token = next(_tokens)
        self.marks[token] = Mark(source, None, 0) if count is None else Mark(*count)
        return token

    def reseeded(self, what: str) -> Exception:
        """Return the error for a function that sets a random state: its draws would not continue from call to call."""
        if self.world is not None:
            return RunsUncompiled(what)
        return refused(f"{what} inside tg.jit, whose random numbers go on.", ("do it outside", "before the call"))

    def rewind_draws(self, source: RandomState, token: int) -> None:
        """Return to a random state that the function has read (checkpointing does this). Raises an error for one from
        outside."""
        mark = self.marks.get(token)
        if mark is None or mark.source is not source:
            raise self.reseeded("sets a random state from outside")
        words = self.bases.get(id(source)) if mark.words is None else mark.words
        if words is None:
            self.draws.pop(id(source), None)
        else:
            self.draws[id(source)] = (source, words, mark.draws)

    def draw_from(self, generator: torch.Generator) -> Array:
        """Return words for a generator of the program, from which every call takes a new seed."""
        from tensorgraft.frontends.torch.core.generator import seed_from

        return self.feed(lambda: RandomState(seed=seed_from(generator)).words(), np.zeros(4, np.uint32))

    def host_array(self, t: torch.Tensor, view: Callable[[torch.Tensor], np.ndarray]) -> Any:
        """Return the array of a tensor of the host: a constant if the function computes the tensor from constants only,
        otherwise an input that is fed at every call."""
        known = self.fed_tensors.get(id(t))
        live = known[1] if known is not None else None if self.host is None else self.host.inside_kernel(t)
        if live is None:
            return view(t)
        array = self.feed(lambda: view(live()), view(t), what="CPU argument" if live.of_argument else "CPU tensor")
        self.feeds[-1].tensor, self.feeds[-1].live = live.tensor, live
        return array

    # ---- gradients ------------------------------------------------------------------------------------------------

    def note_leaves(self, roots: Sequence[Any]) -> None:
        """Called before a backward pass: remember the leaves that it reaches, and their gradients."""
        for leaf in self._walked(roots):
            self.note_gradient(leaf)
            if id(leaf) in self.detached:
                self.uncompiled = f"{_BACKWARD_OUTSIDE} an argument"

    def note_inputs(self, roots: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Called before `torch.autograd.grad`: inputs from outside may be reached only through the history of an
        argument, which the trace does not have."""
        leaves = self._walked(roots, inputs)
        outside = self.detached and any(id(t) not in self.detached and self.from_outside(t) for t in inputs)
        if outside and any(id(leaf) in self.detached for leaf in leaves):
            self.uncompiled = f"{_BACKWARD_OUTSIDE} an argument"

    def _walked(self, roots: Sequence[Any], inputs: Sequence[Any] | None = None) -> list[torch.Tensor]:
        """Return the leaves that a backward pass reaches, and remember them, because it calls their hooks. `inputs`:
        the tensors at which it ends. Raises RunsUncompiled if it uses up the history of a tensor from outside."""
        leaves = [t for t in roots if isinstance(t, torch.Tensor) and t.grad_fn is None and t.requires_grad]
        graph = list(nodes([t for t in roots if isinstance(t, torch.Tensor)]))
        leaves += (node.variable for node in graph if hasattr(node, "variable"))
        old = [node for node in graph if node._sequence_nr() < self.first_node]
        if inputs is not None:
            ends = {id(t) for t in inputs} | {id(t.grad_fn) for t in inputs if isinstance(t, torch.Tensor)}
            ends |= {id(t.node) for t in inputs if isinstance(t, GradientEdge)}
            old = [
                node
                for node in old
                if any(id(x) in ends or id(getattr(x, "variable", x)) in ends for x in nodes_from(next_nodes(node)))
            ]
        if old:
            self.uncompiled = f"{_BACKWARD_OUTSIDE} a tensor from outside"
            raise RunsUncompiled(self.uncompiled)
        unwrapped = (leaf for leaf in leaves if not _wrapped(leaf))
        self.walked.update((id(leaf), weakref.ref(leaf)) for leaf in unwrapped if not self.made_inside(leaf))
        return leaves

    def note_gradient(self, tensor: torch.Tensor, reset: bool = False) -> None:
        """Called before the `.grad` of a tensor is read, or (`reset`) replaced or cleared."""
        known = self.leaves.get(id(tensor))
        if known is None or not known.same(tensor):
            self.leaves[id(tensor)] = GradientLeaf(tensor, reset)

    def forget_leaves(self) -> None:
        """Drop the leaves that were made inside the function and have been freed."""
        self.leaves = {key: leaf for key, leaf in self.leaves.items() if leaf.alive}


_BACKWARD_OUTSIDE = "goes backward through the history (grad_fn) of"


_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # True for a tensor of a transform around the function


def current() -> Capture | None:
    """Return the capture in progress."""
    return cast("Capture | None", state.now.capture)


class active:
    """The context in which a capture is in progress. Raises RuntimeError inside another one."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture

    def __enter__(self) -> Capture:
        if state.now.capture is not None:
            raise RuntimeError(
                "tg.jit inside tg.jit: call the function without tg.jit, since the outer tg.jit compiles it, too"
            )
        state.now.capture = self.capture
        return self.capture

    def __exit__(self, *_: object) -> None:
        state.now.capture = None


class paused:
    """A context inside a capture in which operations compute at once; the capture treats new storages as storages from
    outside. While a program is only planned (`state.now.planning`), operations remain part of it."""

    def __enter__(self) -> None:
        self._eager = contextlib.nullcontext()
        if state.now.planning:
            self._capture = state.now.capture
            return
        self._capture = state.now.capture
        assert self._capture is not None
        self._eager = self._capture.backend.eagerly()  # type: ignore[assignment]
        self._eager.__enter__()
        state.now.capture = None

    def __exit__(self, *exc: Any) -> None:
        state.now.capture = self._capture
        self._eager.__exit__(*exc)
