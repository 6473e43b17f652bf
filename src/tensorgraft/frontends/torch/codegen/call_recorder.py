"""The function mode that is on while a module is recorded: it observes each call of PyTorch that the program makes.

Operators record themselves. The mode adds information that they lack: names and locations, words of views, the device
of new tensors, and tensors of the host that the program combines with others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.codegen import views
from tensorgraft.frontends.torch.codegen.backend import SourceBackend
from tensorgraft.frontends.torch.codegen.source_expressions import Spot, spot
from tensorgraft.frontends.torch.core.devices import Slot
from tensorgraft.frontends.torch.core.tensors import cell_of, from_array, geometry_of, to_array
from tensorgraft.frontends.torch.sparse.parts import is_sparse
from tensorgraft.hub.recorded.block import Var
from tensorgraft.storage import Storage

Tensor = torch.Tensor
_ATTRIBUTES = frozenset(
    getattr(Tensor, name).__get__
    for name in [
        "shape",
        "dtype",
        "device",
        "ndim",
        "requires_grad",
        "is_cuda",
        "layout",
        "grad_fn",
        "grad",
        "is_leaf",
        "is_sparse",
        "is_quantized",
        "is_nested",
        "is_meta",
        "_base",
        "_version",
        "itemsize",
        "nbytes",
        "is_cpu",
        "is_mps",
        "is_xla",
        "is_xpu",
        "output_nr",
    ]
    if hasattr(Tensor, name)
)
_QUESTIONS = frozenset(
    getattr(Tensor, name)
    for name in [
        "size",
        "dim",
        "numel",
        "stride",
        "storage_offset",
        "is_contiguous",
        "is_floating_point",
        "is_complex",
        "data_ptr",
        "element_size",
        "untyped_storage",
        "storage",
        "__len__",
        "ndimension",
        "nelement",
        "is_inference",
        "is_conj",
        "is_neg",
        "get_device",
    ]
    if hasattr(Tensor, name)
)
# operators that take lengths on the host in addition to tensors on a device
_HOSTED = frozenset(
    ["_pack_padded_sequence", "_pad_packed_sequence", "lstm", "gru", "rnn_tanh", "rnn_relu", "tensor_split"]
)
# functions whose derivative at a point PyTorch defines, and other frameworks define otherwise: {name: the point}
_SINGULAR = {
    **dict.fromkeys(["norm", "linalg_norm", "linalg_vector_norm", "linalg_matrix_norm", "normalize", "std"], "zero"),
    **dict.fromkeys(["std_mean", "cdist", "atan2", "arctan2"], "zero"),
    **dict.fromkeys(["clamp", "clamp_min", "clamp_max", "clip", "hardtanh", "relu6"], "its bounds"),
}
_DETACHING = frozenset({Tensor.detach, torch.detach, vars(Tensor.__base__)["data"].__get__})


class WordWatch(TorchFunctionMode):
    def __init__(self, xp: SourceBackend, slot: Slot) -> None:
        super().__init__()
        self.xp, self.slot = xp, slot
        # those of Python's numbers stay on the host: their values are known
        self._constructors = _device_constructors() - {torch.tensor, torch.as_tensor, torch.asarray}
        self._detached: list[tuple[Storage, Var, str]] = []
        self._host: dict[int, tuple[Tensor, Tensor]] = {}  # {id of a tensor of the host: (the tensor, its copy here)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ATTRIBUTES or func in _QUESTIONS:
            return func(*args, **kwargs)
        if func in self._constructors and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": self.slot.device}
        if getattr(func, "__name__", "") not in _HOSTED:
            args, kwargs = self._moved(args, kwargs)
        recording = self.xp.current
        outer_place, call_spot = recording.place, spot()
        recording.place = call_spot.place
        before = len(recording.scope.calls)
        try:
            out = self._call(func, args, kwargs)
            self._note_derivative(func, out)
            if call_spot.names:
                self._name(call_spot, out, before)
            return out
        finally:
            recording.place = outer_place

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        view = views.VIEWS.get(func)
        first = args[0] if args else None
        if first is None or not self._is_recorded(first):
            return func(*args, **kwargs)
        if func in _DETACHING:
            array = to_array(first)
            stopped = self.xp.stopped(array)
            if stopped is array:
                return func(*args, **kwargs)
            out = from_array(stopped, self.slot)  # no view: its reader could not distinguish it from its base
            self._detached.append((cell_of(out), stopped, self.xp.current.place))
            return out
        if view is None:
            return func(*args, **kwargs)
        x: Any = to_array(first)
        out = func(*args, **kwargs)
        views.record(self.xp, view, args, kwargs, out, x)
        return out

    def _note_derivative(self, func: Any, out: Any) -> None:
        name = getattr(func, "__name__", "").rstrip("_")
        if name not in _SINGULAR:
            return
        first = out[0] if isinstance(out, tuple) else out
        if self._is_recorded(first) and cell_of(first).array in self.xp.current.smooth:
            sentence = f"the derivative of {name} at {_SINGULAR[name]} is the target's, which may differ from PyTorch's"
            self.xp.current.derivative_notes[sentence] = None

    def refuse_written(self) -> None:
        """Refuse writes to detached tensors, which in PyTorch write the original tensor; called at the end of the
        program.

        Raises TracedValueError for such a write.
        """
        for cell, array, location in self._detached:
            if cell.array is not array:
                raise TracedValueError(
                    f"{location}: the result of detach() or .data of a tensor that requires a gradient is written in"
                    " place, which cannot be written as source: write the tensor itself under torch.no_grad(), or"
                    " a clone"
                )

    def _is_recorded(self, t: Any) -> bool:
        return isinstance(t, Tensor) and t.device == self.slot.device and not is_sparse(t)

    def _moved(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Make tensors of the host, in a call with tensors of the recording, constants of it."""
        leaves = [x for a in (*args, *kwargs.values()) for x in (a if type(a) in (list, tuple) else (a,))]
        host = [t for t in leaves if isinstance(t, Tensor) and t.device.type == "cpu" and t.dim()]
        if not host or not any(self._is_recorded(t) for t in leaves):
            return args, kwargs

        def move(a: Any) -> Any:
            if type(a) in (list, tuple):
                return type(a)(map(move, a))
            if isinstance(a, Tensor) and a.device.type == "cpu" and a.dim():
                if id(a) not in self._host:
                    self._host[id(a)] = a, a.to(self.slot.device)
                return self._host[id(a)][1]
            return a

        return move(tuple(args)), {k: move(a) for k, a in kwargs.items()}

    def _name(self, call_spot: Spot, out: Any, before: int) -> None:
        """Name the results of a call: the steps from `before` on."""
        tensors = [out] if self._is_recorded(out) else list(out) if type(out) in (tuple, list) else []
        names = call_spot.names
        if len(names) != len(tensors):
            return
        recording = self.xp.current
        for name, t in zip(names, tensors, strict=True):
            if not self._is_recorded(t):
                continue
            array = cell_of(t).array
            if type(array) is not Var:
                continue
            known = recording.recall((array, geometry_of(t)))
            key = array if known is None else known
            step = recording.makers.get(key)
            if all(step is not recorded for recorded in recording.scope.calls[before:]):
                continue
            assert step is not None
            result_vars = list(step.results) if isinstance(step.results, tuple | list) else [step.results]
            at = next((i for i, v in enumerate(result_vars) if v is key), None)
            if at is not None:
                new_names = list(step.names) or [""] * len(result_vars)
                new_names[at] = new_names[at] or name
                step.names = tuple(new_names)
