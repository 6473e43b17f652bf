"""Views as words: PyTorch's own view is made, which shares the storage, and its meaning is recorded in addition
(`split`, `x[:, -1]`). While the storage is unchanged, reading that tensor gives the result of the word."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.codegen.backend import SourceBackend
from tensorgraft.frontends.torch.core.tensors import cell_of, geometry_of, numpy_dtype
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.recorded.block import Var

Tensor = torch.Tensor
# (backend, the array of the first argument, the results, the call's arguments) -> arrays of the results, or None
View = Callable[[SourceBackend, Var, Sequence[Tensor], tuple[Any, ...], dict[str, Any]], list[Array] | None]

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)


def _reshaped(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array]:
    return [xp.reshape(x, tuple(outs[0].shape))]


def _unsqueezed(
    xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Array]:
    axis = args[1] if len(args) > 1 else kwargs["dim"]
    return [xp.expand_dims(x, axis % (x.ndim + 1))]


def _squeezed(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array]:
    dims = (*args[1:], *kwargs.values())
    given_dims = range(x.ndim) if not dims else dims[0] if isinstance(dims[0], tuple | list) else dims
    axes = tuple(sorted(a % x.ndim for a in given_dims if x.shape[a] == 1)) if x.ndim else ()
    return [xp.squeeze(x, axes) if axes else x]


def _flattened(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array]:
    if outs[0].ndim == x.ndim or not x.ndim:
        return _reshaped(xp, x, outs, args, kwargs)
    named = dict(zip(("start_dim", "end_dim"), args[1:], strict=False)) | kwargs
    start, end = (named.get(k, d) % x.ndim for k, d in (("start_dim", 0), ("end_dim", -1)))
    options = ({"start": start} if start else {}) | ({"end": end} if end != x.ndim - 1 else {})
    return [xp.word("flatten", x, **options)]


def _permuted(fn: Callable[..., Tensor]) -> View:
    def view(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array] | None:
        if x.ndim > len(_PRIMES):
            return None
        with torch.DisableTorchFunction():
            probe = fn(torch.empty(_PRIMES[: x.ndim], device="meta"), *args[1:], **kwargs)
        return [xp.permute_dims(x, tuple(_PRIMES.index(n) for n in probe.shape))]

    return view


def _split(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array] | None:
    shapes = [tuple(t.shape) for t in outs]
    axes = [a for a in range(x.ndim) if len({s[a] for s in shapes}) > 1 or shapes[0][a] != x.shape[a]]
    if not axes or len(axes) > 1:
        return None if axes or len(outs) > 1 else [x]
    return list(xp.split(x, tuple(s[axes[0]] for s in shapes), axes[0]))


def _unbound(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array]:
    axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return list(xp.unstack(x, axis % x.ndim))


def _selected(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array] | None:
    dim, index = (*args[1:], *kwargs.values())[:2]
    if not isinstance(dim, int) or not isinstance(index, int):
        return None
    return [xp.word("getitem", x, (*[slice(None)] * (dim % x.ndim), index))]


def _narrowed(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array] | None:
    dim, start = (*args[1:], *kwargs.values())[:2]
    if not isinstance(start, int):
        return None
    dim = dim % x.ndim
    start = start % x.shape[dim] if start < 0 else start
    stop = start + outs[0].shape[dim]
    part = slice(start or None, None if stop == x.shape[dim] else stop)
    return [xp.word("getitem", x, (*[slice(None)] * dim, part))]


def _item(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array] | None:
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not all(_is_basic(i) for i in index):
        return None
    plain = _plain(index, x.shape)
    return [xp.word("getitem", x, plain) if plain else x]


def _is_basic(i: Any) -> bool:
    if isinstance(i, slice):
        return all(v is None or type(v) is int for v in (i.start, i.stop, i.step)) and (i.step is None or i.step > 0)
    return i is None or i is Ellipsis or type(i) is int


def _plain(index: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Remove redundant parts of an index: bounds at the ends, trailing `:` and `...`."""
    head = index[: index.index(Ellipsis)] if Ellipsis in index else index
    tail = len([i for i in index if i is not None and i is not Ellipsis]) - len([i for i in head if i is not None])
    axis, out = 0, []
    for i in index:
        if i is Ellipsis:
            axis = len(shape) - tail
        elif isinstance(i, slice):
            n = shape[axis]
            selected = range(n)[i]
            start = None if not i.start or i.start <= -n else i.start
            stop = None if i.stop is None or i.stop >= n else i.stop
            out.append(slice(start, stop, None if i.step == 1 else i.step) if len(selected) != n else slice(None))
            axis += 1
            continue
        elif i is not None:
            axis += 1
        out.append(i)
    if out and out[-1] is Ellipsis:
        out.pop()
    while out and Ellipsis not in out and isinstance(out[-1], slice) and out[-1] == slice(None):
        out.pop()
    return tuple(out)


def _complex(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array]:
    return [xp.complex(*(xp.word("getitem", x, (Ellipsis, i)) for i in (0, 1)))]


def _parts(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array]:
    return [xp.stack([xp.real(x), xp.imag(x)], axis=x.ndim)]


def _real(xp: SourceBackend, x: Var, outs: Sequence[Tensor], args: Any, kwargs: Any) -> list[Array]:
    return [xp.real(x) if dtypes.is_complex(x.dtype) else x]


T = Tensor
VIEWS: dict[Any, View] = {}
for _names, _view in (
    ("view reshape unflatten view_as reshape_as ravel", _reshaped),
    ("flatten", _flattened),
    ("unsqueeze", _unsqueezed),
    ("squeeze", _squeezed),
    ("expand expand_as broadcast_to", lambda xp, x, outs, args, kwargs: [xp.broadcast_to(x, tuple(outs[0].shape))]),
    ("split chunk tensor_split split_with_sizes hsplit vsplit dsplit", _split),
    ("unbind", _unbound),
    ("select", _selected),
    ("narrow", _narrowed),
    ("contiguous clone", lambda xp, x, outs, args, kwargs: [x]),
):
    for _name in _names.split():
        for _owner in (T, torch):
            if (_fn := getattr(_owner, _name, None)) is not None:
                VIEWS[_fn] = _view
for _name in ["transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "adjoint"]:
    for _owner in (T, torch):
        if (_fn := getattr(_owner, _name, None)) is not None:
            VIEWS[_fn] = _permuted(_fn)
for _name in ["T", "mT"]:
    _get = getattr(T, _name).__get__
    VIEWS[_get] = _permuted(_get)
VIEWS[T.__getitem__] = _item
VIEWS |= {torch.view_as_complex: _complex, torch.view_as_real: _parts}
for _name, _view in (("real", _real), ("imag", lambda xp, x, outs, args, kwargs: [xp.imag(x)])):
    VIEWS[getattr(torch, _name)] = VIEWS[getattr(T, _name).__get__] = _view


def record(xp: SourceBackend, view: View, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, x: Var) -> None:
    outs = [out] if isinstance(out, Tensor) else list(out)
    if any(t.device != args[0].device for t in outs):
        return
    if any(t.is_conj() or t.is_neg() or not math.prod(t.shape) for t in (args[0], *outs)):
        return
    arrays = view(xp, x, outs, args, kwargs)
    if arrays is None:
        return
    for t, array in zip(outs, arrays, strict=True):
        assert (array.shape, array.dtype) == (tuple(t.shape), numpy_dtype(t.dtype)), (array, t.shape, t.dtype)
        base = cell_of(t).array
        if base is not array:
            xp.remember(base, geometry_of(t), array)
