"""CPU tensors in a function that `tg.jit` traces: tensors from outside, and results that the host computes from them.

None of their values is a constant of the program. What goes into it is fed at every call, computed again by the host
from the arguments and the tensors of outside as they are then; what Python asks for is guarded by its value, or
refused. What is written is computed as a new tensor, which a call copies to its place when it is over. Constants are
those alone which the function makes of nothing else (`torch.zeros(3)`, `torch.tensor([1, 2])`).
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.frontends.torch.compiled.capture import Capture
from tensorgraft.frontends.torch.compiled.host.call_tensors import (
    Argument,
    Computed,
    GeometryGuard,
    GradientOfOutside,
    HostGuard,
    HostStep,
    HostWrite,
    LiveTensor,
    MemoryGuard,
    Outside,
    ValueGuard,
    copied,
    on_host,
    raw_gradient,
    seen_as,
    write_copies,
    written_by,
)
from tensorgraft.frontends.torch.core import pytrees
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.located_errors import refused
from tensorgraft.frontends.torch.core.modes import OwnMode
from tensorgraft.frontends.torch.sparse.parts import is_sparse

Tensor = torch.Tensor
LARGEST = 1 << 14  # elements that a guard compares
_ASKING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class OnlyTheHost(BaseException):
    """Raised for an operation that a trace does not support, if the function has not used the device so far. `Compiled`
    catches it and lets PyTorch compile the function (`cpu_functions`)."""


# ---- while a function is traced --------------------------------------------------------------------------------------


class HostWatch(OwnMode):
    """Follows tensors of the host through a traced function, and refuses effects that only its first call would have:
    drawing random numbers on the CPU, and, unless `may_write`, writing tensors from outside."""

    def __init__(self, capture: Capture, may_write: bool = False) -> None:
        super().__init__()
        self.capture, self.may_write = capture, may_write
        self.constants: dict[int, weakref.ref[Tensor]] = {}
        self.guards: list[HostGuard] = []
        self.written: dict[int, Any] = {}  # copies of storages from outside that are written, by their identity
        self.roots: dict[int, tuple[Tensor, LiveTensor]] = {}  # the tensors from outside that look at these
        self.computing: dict[int, LiveTensor] = {}  # {id of an operand of the current operator: its value at a call}

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload):  # an operator of functions, which would run unseen
            raise RunsUncompiled(f"calls {func.name()}, which has no compiled form")
        kwargs = kwargs or {}
        host = [t for t in pytrees.leaves_of((args, kwargs)) if self._follows(t)]
        if func is torch.ops.aten.lift_fresh.default and host and host[0].untyped_storage().resizable():
            self._constant(host[0])  # a Python number that `torch.tensor` has just wrapped
        live = {id(t): live_value for t in host if (live_value := self.live(t)) is not None}
        # `detach_` is an operator only in inference mode
        writes = bool(live) and func is not torch.ops.aten.detach_.default
        targets = written_by(func, args, kwargs) if writes else []
        before = self._begin_write(func, args, kwargs, targets, live) if targets else None
        if torch.Tag.inplace_view in func.tags and args[0].device.type == TYPE:  # t_, squeeze_, set_, ...
            self.capture.note_rebinding(args[0])
        random = torch.Tag.nondeterministic_seeded in func.tags
        is_read = bool(live) and not random and _reads_values(func, args)
        for t in host if is_read else ():
            self.ask(t)
        self.computing = live
        try:
            out = func(*args, **kwargs)
        finally:
            self.computing = {}
        results = [t for t in pytrees.leaves_of(out) if self._follows(t)]
        if random and (results or host):
            raise self.refused(
                "draws random numbers on the CPU inside tg.jit: every call would get the numbers of the first.",
                ("on the device", "draw them with device=..., which gives new ones at every call"),
                ("outside", "draw them before the call, and pass them as an argument"),
            )
        if before is not None:
            self._write(before, targets, [t for t in results if all(t is not w for w in targets)])
        elif live and results and not is_read:
            self._feed_all(results, self._step(func, args, kwargs, live))
        else:
            for t in results:
                self._constant(t)
        return out

    def _follows(self, t: Any) -> bool:
        """Return True for a tensor of the program on the host, False for one with which the PyTorch backend traces."""
        backend = self.capture.backend
        return on_host(t) and not (type(t) is not Tensor and backend.is_array(t) and backend.is_traced(t))

    def live(self, t: Tensor) -> LiveTensor | None:
        """Return a function that computes a tensor at each call; None for a constant."""
        known = self.capture.fed_tensors.get(id(t))
        if known is not None:
            return known[1]
        if self._is_constant(t):
            return None
        with _disable_current_modes():
            return self._live_view(t)

    def inside_kernel(self, t: Tensor) -> LiveTensor | None:
        """Return the stand-in of a CPU tensor that a kernel of the device takes into the program."""
        if self._is_constant(t):
            return None
        if self.computing and self._alias(t) is None:
            raise refused(
                "computes on the device with a value that its kernel computes from a CPU tensor: every call would"
                " get the value of the first.",
                ("on the device", "move the CPU tensor there before"),
            )
        if (
            not self.computing and t.untyped_storage().resizable()
        ):  # `torch.tensor([1, 2], device=...)` has just made it
            return None
        return self.live(t)

    def _live_view(self, t: Tensor) -> LiveTensor | None:
        """Return the same for a tensor that no operator has made: one from outside, or another view of a known one."""
        if (alias := self._alias(t)) is not None:
            return alias[0]
        if is_sparse(t):
            raise RunsUncompiled(
                f"uses a sparse tensor of shape {tuple(t.shape)} that is on the CPU (register it as a buffer of the"
                " module, or move it to the device)"
            )
        self.guards.append(GeometryGuard(t))
        return self._feed(t, Outside(t))

    def _alias(self, t: Tensor) -> tuple[LiveTensor | None] | None:
        """Return a tuple with the stand-in of a tensor that is another view of the memory of a known one; None for
        other memory."""
        memory = _memory(t)
        for ref in self.constants.values():
            if memory is not None and (known := ref()) is not None and _memory(known) == memory:
                self._constant(t)
                return (None,)
        for known, live in list(self.capture.fed_tensors.values()):
            if memory is not None and _memory(known) == memory:
                return (self._feed(t, _view(t, live)),)
        return None

    def _feed(self, t: Tensor, live: LiveTensor) -> LiveTensor:
        self.capture.fed_tensors[id(t)] = (t, live)
        return live

    def note_gradient(self, leaf: Tensor, gradient: Tensor) -> None:
        """Called when the gradient of a tensor from outside is read, which may differ at each call."""
        if id(gradient) not in self.capture.fed_tensors and not self._is_constant(leaf):
            self._feed(gradient, GradientOfOutside(leaf))
            self.guards.append(GeometryGuard(leaf, gradient=True))

    def _constant(self, t: Tensor) -> None:
        if id(t) not in self.capture.fed_tensors:
            self.constants[id(t)] = weakref.ref(t)

    def _is_constant(self, t: Tensor) -> bool:
        ref = self.constants.get(id(t))
        return ref is not None and ref() is t

    def _step(self, func: Any, args: Any, kwargs: Any, live: dict[int, LiveTensor]) -> HostStep:
        copies: dict[int, Any] = {}

        def stand_in(x: Any) -> Any:
            if not on_host(x):
                return x
            return live[id(x)] if id(x) in live else copied(x, copies)  # a constant, with its current value

        with _disable_current_modes():
            args, kwargs = pytrees.mapped(stand_in, (args, kwargs))
        return HostStep(func, args, kwargs, any(live_value.of_argument for live_value in live.values()))

    def _feed_all(self, results: Sequence[Tensor], step: HostStep, first: int = 0) -> None:
        """Note results of a step, of which they begin at `first`."""
        for k, t in enumerate(results):
            if id(t) not in self.capture.fed_tensors:
                self._feed(t, Computed(step, first + k))

    # ---- writes ------------------------------------------------------------------------------------------------------

    def _begin_write(
        self, func: Any, args: Any, kwargs: Any, targets: Sequence[Tensor], live: dict[int, LiveTensor]
    ) -> HostStep:
        """Save the memory that an operator is about to overwrite, and return the step that writes copies. Raises
        TracedValueError if later calls could not repeat the write."""
        all_tensors = [t for t in pytrees.leaves_of((args, kwargs)) if isinstance(t, Tensor)]
        random, moves = (tag in func.tags for tag in (torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view))
        outs = {a.name for a in func._schema.arguments if a.kwarg_only and a.alias_info is not None}
        repeats = self.may_write and not (random or moves or outs & kwargs.keys())
        repeats = repeats and all(map(on_host, all_tensors))
        remembered = torch.is_grad_enabled() and func is not torch.ops.aten.native_batch_norm.default
        repeats = repeats and not (remembered and any(t.requires_grad for t in all_tensors))
        overlapping = [t for w in targets for t in self._looking_at(w)]
        if not repeats or not all(map(_is_plain_memory, (*targets, *overlapping))):
            raise self._refused_write(targets, live)
        for t in overlapping:
            if (known := self.capture.fed_tensors.get(id(t))) is None or isinstance(known[1], Computed):
                continue
            if isinstance(known[1], GradientOfOutside):
                raise self._refused_write(targets, live)
            self.roots.setdefault(id(t), known)
            storage = t.untyped_storage()
            if storage._cdata not in self.written:
                self.written[storage._cdata] = before = storage.clone()
                self.capture.undos.append(functools.partial(storage.copy_, before))
        return self._step(functools.partial(write_copies, func), args, kwargs, live)

    def _refused_write(self, targets: Sequence[Tensor], live: dict[int, LiveTensor]) -> BaseException:
        outside = (t for t in targets if isinstance(live.get(id(t)), Argument | Outside))
        if (t := next(outside, None)) is not None:
            return self.refused(
                f"writes a CPU tensor of shape {tuple(t.shape)} inside tg.jit: only the first call would.",
                ("on the device", "move the tensor there, and write it as before"),
                ("outside", "write it before the call or after it"),
            )
        of = "a CPU argument" if any(live_value.of_argument for live_value in live.values()) else "a CPU tensor"
        return self.refused(
            f"writes a CPU tensor of shape {tuple(targets[0].shape)} with a value computed from {of} of the"
            " compiled function.",
            ("out of place", "compute it as a new tensor: that is done at every call"),
            ("on the device", "move the argument there"),
        )

    def _looking_at(self, t: Tensor) -> list[Tensor]:
        """Return the tensors that are known and have the memory of `t`."""
        constants = (known for ref in self.constants.values() if (known := ref()) is not None)
        fed_tensors = (known for known, _ in self.capture.fed_tensors.values())
        return [tensor for tensor in (*fed_tensors, *constants) if _memory(tensor) == _memory(t)]

    def _write(self, step: HostStep, targets: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Called after an operator has written: all tensors with this memory are computed from the step's results from
        now on."""
        self._feed_all(results, step, first=len(targets))
        for k, w in enumerate(targets):
            for t in self._looking_at(w):
                self.constants.pop(id(t), None)
                self._feed(t, _view(t, Computed(step, k)))

    def writes(self) -> list[HostWrite]:
        """Return the writes to tensors from outside that a call applies at its end."""
        first = {t.untyped_storage()._cdata: (t, live) for t, live in reversed(self.roots.values())}
        return [HostWrite(live, self.capture.fed_tensors[id(t)][1]) for t, live in first.values()]

    def undo_writes(self) -> None:
        for t, _ in self.roots.values():
            storage = t.untyped_storage()
            storage.copy_(self.written[storage._cdata])

    def ask(self, t: Tensor) -> None:
        """Called when Python reads a tensor's values. Raises TracedValueError if they cannot be guarded."""
        live = self.live(t) if on_host(t) else None
        if live is None:
            return
        if live.of_argument and self.capture.values is None:
            raise self.refused(
                "needs the value of a CPU argument of the compiled function: every call would get the value of"
                " the first.",
                ("stay a tensor", "use the tensor itself instead of its value"),
                ("know it before", "pass it as a Python number: each value is compiled"),
            )
        if t.numel() > LARGEST:
            raise self.refused(
                f"needs the values of a CPU tensor of shape {tuple(t.shape)} from outside, which is too large to"
                " be compared at every call.",
                ("stay a tensor", "use the tensor itself instead of its values, or move it to the device"),
                ("know them before", "outside of the compiled function"),
            )
        with _disable_current_modes():
            self.guards.append(ValueGuard(live, t))

    def refused(self, problem: str, *remedies: tuple[str, str]) -> BaseException:
        """Return the error for an operation that a trace does not support; if the function does not use the device, the
        exception that leaves it to PyTorch."""
        return OnlyTheHost() if self.capture.idle else refused(problem, *remedies)

    def at_the_end(self, results: Sequence[Any]) -> None:
        """Check the state in which the function leaves the host.

        Raises OnlyTheHost if it has computed only on the host, TracedValueError if later calls could not leave the same
        state.
        """
        if self.capture.idle and self.capture.fed_tensors:
            raise OnlyTheHost
        if self.roots:
            self.guards.append(MemoryGuard([*self.capture.fed_tensors.values(), *self.roots.values()]))
        for t in results:
            if on_host(t) and id(t) not in self.roots and _memory(t) in self.written:
                raise refused(
                    f"returns a view of a CPU tensor of shape {tuple(t.shape)} that it writes.",
                    ("a copy", "return its clone()"),
                    ("on the device", "move the tensor there"),
                )
            if on_host(t) and t.grad_fn is not None and isinstance(self.live(t), Computed):
                raise refused(
                    f"returns a CPU tensor of shape {tuple(t.shape)} with a grad_fn from a function that computes"
                    " on the device.",
                    ("without it", "return its detach()"),
                    ("on the device", "move its inputs there"),
                )
        for key, leaf in list(self.capture.leaves.items()):
            if not leaf.alive or not on_host(leaf.tensor) or raw_gradient(leaf.tensor) is leaf.before:
                continue
            if self.capture.from_outside(leaf.tensor):
                raise refused(
                    f"computes a gradient of a CPU tensor of shape {tuple(leaf.tensor.shape)}, in a function that"
                    " computes on the device.",
                    ("on the device", "move the tensor there"),
                    ("outside", "call backward() after the compiled function"),
                )
            if any(leaf.tensor is t for t in results):
                raise RunsUncompiled("returns a CPU tensor together with its gradient")
            del self.capture.leaves[key]  # made inside: its gradient is an ordinary tensor

    def refuse_left(self, results: Sequence[Any]) -> None:
        """Refuse tensors of the host that outlive the function; called when its frames are gone.

        Raises TracedValueError for a tensor that the host computes and that something but a result still holds: every
        later call would leave it as it is.
        """
        fed_tensors = self.capture.fed_tensors
        # among these are views of written tensors
        outside = self.capture.all_from_outside([t for t, _ in fed_tensors.values()])
        allowed = {id(t) for t in results if on_host(t)} | outside
        refs = {key: (weakref.ref(t), live) for key, (t, live) in fed_tensors.items() if isinstance(live, Computed)}
        for key in refs.keys() - allowed:
            del fed_tensors[key]
        t = None
        for key, (ref, _) in refs.items():
            if key not in allowed and ref() is not None:
                gc.collect()
            if key not in allowed and (t := ref()) is not None:
                raise refused(
                    f"keeps a CPU tensor of shape {tuple(t.shape)} that it computes: only the first call would do so.",
                    ("return it", "and keep it outside"),
                    ("on the device", "compute it there"),
                )

    def result(self, t: Tensor) -> Callable[[], Tensor]:
        """Return a function that gives a result on the host at each call."""
        if id(t) in self.roots:
            return self.roots[id(t)][1]
        return self.live(t) or t.detach().clone().clone


def _reads_values(func: Any, args: Any) -> bool:
    """Return whether the result of an operator, or its shape, depends on values."""
    if func is torch.ops.aten.index.Tensor:
        return any(t.dtype in (torch.bool, torch.uint8) for t in args[1] if t is not None)
    return any(tag in func.tags for tag in _ASKING)


def _memory(t: Tensor) -> int | None:
    """Return the identity of a tensor's memory; None for a tensor that has no plain storage."""
    try:
        return t.untyped_storage()._cdata if t.layout is torch.strided else None
    except (NotImplementedError, RuntimeError):  # a wrapper subclass
        return None


def _view(t: Tensor, of: LiveTensor) -> Computed:
    """Return a view like `t` of the memory of another tensor."""
    view = functools.partial(seen_as, t.dtype, t.size(), t.stride(), int(t.storage_offset()))
    return Computed(HostStep(view, (of,), {}, of.of_argument), 0)


def _is_plain_memory(t: Tensor) -> bool:
    bits = t.is_conj() or t.is_neg() or t.is_inference() or t.is_quantized
    wraps: bool = getattr(t, "is_graft_quantized", False)  # codes and scales, with a storage of no bytes
    return _memory(t) is not None and not (bits or wraps)
