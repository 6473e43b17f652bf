"""Indices that are values of a traced function: `cache[:, step]`, `y[mask] *= 2`, `x[mask].mean()`.

PyTorch reads the value of an integer tensor without axes that is an index, and counts the true elements of a mask. A
trace does not have these values. A row at such an index, which is a view in PyTorch, is gathered, and written back
after writes; a selection by a mask is a `MaskedSelection`.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.compiled.capture import Capture
from tensorgraft.frontends.torch.compiled.host import factors, numbers, scalars
from tensorgraft.frontends.torch.compiled.indexing.masks import MaskedSelection, selected
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.located_errors import refused
from tensorgraft.frontends.torch.core.nested import tensors_in
from tensorgraft.frontends.torch.core.tensors import cell_of

Tensor = torch.Tensor
_index, _index_put = torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default


@contextlib.contextmanager
def traced_calls(capture: Capture) -> Iterator[None]:
    """A context in which a function is traced."""
    forward = _BatchNorm.forward
    _BatchNorm.forward = _averaged(forward)  # type: ignore[method-assign]
    try:
        with TracedCalls(capture):
            yield
    finally:
        _BatchNorm.forward = forward  # type: ignore[method-assign]


class TracedCalls(TorchFunctionMode):
    """Calls of PyTorch that would ask for a value which they can do without."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self.capture = capture
        self._rows: list[_Row] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.jit.is_tracing():
            raise RunsUncompiled("traces a function for TorchScript")
        if self._rows:
            self._rows = [row for row in self._rows if row.tensor() is not None]
            used = {id(cell_of(t)) for t in tensors_in(args, kwargs) if _has_storage(t) and t.device.type == TYPE}
            for row in self._rows:
                row.before(used)
        finish = None
        if self.capture.scalars:
            args, kwargs, finish = scalars.substituted(func, args, kwargs, factors.CALLS)
        replacement = _CALLS.get(inspect.unwrap(func))
        out = NotImplemented if replacement is None else replacement(self, *args, **kwargs)
        if out is NotImplemented:
            out = func(*args, **kwargs)
        for row in self._rows:
            row.after()
        return out if finish is None else finish(out)

    def row(self, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
        """Return the part of `x` that indices choose, as a view."""
        row = _index(x, indices)
        self._rows.append(_Row(row, x, indices))
        return row


class _Row:
    """A tensor that is a view at a traced position in PyTorch. Here it is a copy, which is written back when it is
    written, and read again when its base was written."""

    def __init__(self, tensor: Tensor, base: Tensor, indices: Sequence[Tensor | None]) -> None:
        self.tensor = weakref.ref(tensor)
        self._base, self._indices = base, [None if i is None else i.clone() for i in indices]
        self._cell = cell_of(tensor)
        self._own_version, self._base_version = _version(tensor), _version(base)

    def before(self, used: set[int]) -> None:
        """Read the row again before a function uses these storages, if its base was written. Raises TracedValueError
        for a row with a history."""
        tensor = self.tensor()
        if tensor is None or id(self._cell) not in used or not _changed(self._base, self._base_version):
            return
        if tensor.requires_grad or self._base.requires_grad:
            raise refused(
                f"uses a part of shape {tuple(tensor.shape)} selected by an index tensor from a tensor that was"
                " written afterwards.",
                ("as it was", "x[i].clone()"),
                ("as it is", "x[i] again, after it is written"),
            )
        tensor.copy_(_index(self._base, self._indices))
        self._own_version, self._base_version = _version(tensor), _version(self._base)

    def after(self) -> None:
        """Write the row back after a function has written it."""
        tensor = self.tensor()
        if tensor is not None and _changed(tensor, self._own_version):
            _index_put(self._base, self._indices, tensor)
            self._own_version, self._base_version = _version(tensor), _version(self._base)


def _version(t: Tensor) -> tuple[int, Any]:
    return 0 if t.is_inference() else t._version, cell_of(t).array


def _changed(t: Tensor, before: tuple[int, Any]) -> bool:
    version, array = _version(t)
    return version != before[0] or array is not before[1]


def _has_storage(t: Tensor) -> bool:
    return (
        type(t) is not MaskedSelection
        and t.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(t)
    )


# ---- indices ---------------------------------------------------------------------------------------------------------


def _unknown(i: Any) -> bool:
    """Return whether `i` is an integer tensor without axes on the device."""
    return (
        isinstance(i, Tensor)
        and i.device.type == TYPE
        and i.ndim == 0
        and not (i.dtype in (torch.bool, torch.uint8) or i.is_floating_point() or i.is_complex())
    )


def _split_index(x: Any, index: Any) -> tuple[Tensor, list[Tensor | None], list[Any]] | None:
    """Return (the view of `x` by the known part of an index, the indices that are not known, the remaining index for
    the view), or None if all is known, or PyTorch raises an error."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not (isinstance(x, Tensor) and _has_storage(x) and x.device.type == TYPE) or not any(map(_unknown, items)):
        return None
    if any(isinstance(i, bool) for i in items) or sum(i is Ellipsis for i in items) > 1:
        return None
    widths = [_axes(i) for i in items]
    if (missing := x.ndim - sum(widths)) < 0:
        return None
    full = slice(None)
    at = next((k for k, i in enumerate(items) if i is Ellipsis), None)
    if at is not None:
        items[at : at + 1] = [full] * missing
    basic: list[Any] = []
    indices: list[Tensor | None] = []
    rest: list[Any] = []
    for i in items:
        if _unknown(i):
            basic.append(full)
            indices.append(i.long())
        elif i is None or isinstance(i, slice):
            basic.append(i)
            indices.append(None)
            rest.append(full)
        elif _is_number(i):
            basic.append(i)
        else:
            width = _axes(i)
            basic += [full] * width
            indices += [None] * width
            rest.append(i)
    while indices[-1] is None:
        indices.pop()
    return x[tuple(basic)], indices, rest


def _is_number(i: Any) -> bool:
    if isinstance(i, Tensor):
        return i.ndim == 0 and i.dtype not in (torch.bool, torch.uint8)
    return hasattr(i, "__index__") and not hasattr(i, "__len__")


def _axes(i: Any) -> int:
    """Return the number of axes that an index is for."""
    if i is None or i is Ellipsis:
        return 0
    if isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8):
        return i.ndim
    return 1


def _plain(rest: Sequence[Any]) -> bool:
    return all(isinstance(i, slice) for i in rest)


def _getitem(calls: TracedCalls, x: Any, index: Any) -> Any:
    parts = _split_index(x, index)
    if parts is not None:
        view, indices, rest = parts
        return calls.row(view, indices) if _plain(rest) else _index(view, indices)[tuple(rest)]
    return _selected(calls, x, index, lambda: x[index])


def _selected(calls: TracedCalls, x: Any, mask: Any, choose: Callable[[], Any]) -> Any:
    """Return the selection by a mask: a tensor if the mask's values are known, otherwise a `MaskedSelection`."""
    if isinstance(mask, tuple) and len(mask) == 1:
        (mask,) = mask
    on_device = all(isinstance(t, Tensor) and _has_storage(t) and t.device.type == TYPE for t in (x, mask))
    if not on_device or calls.capture.values is not None:
        return NotImplemented
    if mask.dtype is not torch.bool or not mask.ndim:
        return NotImplemented
    try:
        return choose()
    except TracedValueError as error:
        if mask.shape != x.shape[: mask.ndim]:
            raise
        error.__context__ = None  # its frames hold tensors
        return selected(x, mask, error.with_traceback(None))


def _masked_select(calls: TracedCalls, x: Any, mask: Any, **kwargs: Any) -> Any:
    if kwargs or not (isinstance(x, Tensor) and isinstance(mask, Tensor)):
        return NotImplemented
    try:
        x, mask = torch.broadcast_tensors(x, mask)
    except RuntimeError:
        return NotImplemented
    return _selected(calls, x, mask, lambda: torch.masked_select(x, mask))


def _setitem(calls: TracedCalls, x: Any, index: Any, value: Any) -> Any:
    if type(value) is MaskedSelection:
        value.write(x, index)
        return None
    parts = _split_index(x, index)
    if parts is None:
        return NotImplemented
    view, indices, rest = parts
    row = _index(view, indices)
    row[tuple(rest) if rest else ...] = value
    _index_put(view, indices, row)
    return None


def _select(calls: TracedCalls, x: Any, dim: Any, index: Any) -> Any:
    if not _unknown(index) or not isinstance(dim, int) or not -x.ndim <= dim < x.ndim:
        return NotImplemented
    return _getitem(calls, x, (*[slice(None)] * (dim % x.ndim), index))


def _narrow(calls: TracedCalls, x: Any, dim: Any, start: Any, length: Any) -> Any:
    if not _unknown(start) or not -x.ndim <= dim < x.ndim or not 0 <= length <= x.shape[dim]:
        return NotImplemented
    start = start.long()
    first = torch.where(start < 0, start + x.shape[dim], start)
    return calls.row(x, [*[None] * (dim % x.ndim), first + torch.arange(length, device=x.device)])


def _select_scatter(calls: TracedCalls, x: Any, src: Any, dim: Any, index: Any) -> Any:
    if not _unknown(index) or not -x.ndim <= dim < x.ndim:
        return NotImplemented
    return torch.ops.aten.index_put(x, [*[None] * (dim % x.ndim), index.long()], src)


# ---- averages --------------------------------------------------------------------------------------------------------


def _averaged(forward: Any) -> Any:
    """Batch normalisation that averages over all batches (`momentum=None`), of which only a tensor knows how many there
    were."""

    def averaged(self: Any, x: Tensor) -> Tensor:
        count = self.num_batches_tracked
        if self.momentum is not None or not (self.training and self.track_running_stats) or count is None:
            return forward(self, x)
        if x.device.type != TYPE or count.device.type != TYPE:
            return forward(self, x)
        self._check_input_dim(x)
        count.add_(1)
        running = self.running_mean, self.running_var
        batch = [torch.zeros_like(t) for t in running]
        out = F.batch_norm(x, batch[0], batch[1], self.weight, self.bias, True, 1.0, self.eps)
        with torch.no_grad():
            part = 1 / count.double()
            for t, new in zip(running, batch, strict=True):
                t.copy_(part * new.double() + (1 - part) * t.double())
        return out

    return averaged


# ---- gradients -------------------------------------------------------------------------------------------------------


def _retain_grad(calls: TracedCalls, x: Any) -> Any:
    _with_history(calls, x)
    calls.capture.retained.append(weakref.ref(x))
    return NotImplemented


def _with_history(calls: TracedCalls, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Raise RunsUncompiled for an argument with a history: a call would change that, or raise an error because of it,
    and the trace has the argument without it."""
    if id(x) in calls.capture.detached:
        raise RunsUncompiled("changes how autograd treats an argument with a grad_fn")
    return NotImplemented


def _requires_grad(calls: TracedCalls, x: Any, requires_grad: bool = True) -> Any:
    return NotImplemented if requires_grad else _with_history(calls, x)


def _is_leaf(calls: TracedCalls, x: Any) -> Any:
    """Return False for an argument with a history, which the trace has without it."""
    return False if id(x) in calls.capture.detached else NotImplemented


# ---- text ------------------------------------------------------------------------------------------------------------


def _text(calls: TracedCalls, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse to format the values of a tensor in a trace."""
    if x.device.type != TYPE or calls.capture.values is not None or calls.capture.world is None:
        return NotImplemented
    raise RunsUncompiled("converts a tensor to text (print, str, an f-string), which needs its values")


_REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    **factors.CALLS,
    **numbers.CALLS,
    **scalars.CALLS,
    Tensor.__deepcopy__: _with_history,
    Tensor.__format__: _text,
    Tensor.__getitem__: _getitem,
    Tensor.__repr__: _text,
    Tensor.__setitem__: _setitem,
    Tensor.detach_: _with_history,
    Tensor.is_leaf.__get__: _is_leaf,  # type: ignore[attr-defined]
    Tensor.masked_select: _masked_select,
    Tensor.narrow: _narrow,
    Tensor.register_post_accumulate_grad_hook: _with_history,
    Tensor.requires_grad.__set__: _with_history,  # type: ignore[attr-defined]
    Tensor.requires_grad_: _requires_grad,
    Tensor.retain_grad: _retain_grad,
    Tensor.select: _select,
    Tensor.select_scatter: _select_scatter,
    torch.detach_: _with_history,
    torch.masked_select: _masked_select,
    torch.narrow: _narrow,
    torch.select: _select,
    torch.select_scatter: _select_scatter,
}
# keyed by PyTorch's own functions: `printed` and others replace some of them, and a trace replaces more
_CALLS = {inspect.unwrap(fn): replacement for fn, replacement in _REPLACEMENTS.items()}
