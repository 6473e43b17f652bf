"""Memory layouts of the results of CPU PyTorch where its meta functions, which follow other devices, differ.

A rule takes the meta function's result and the call's (meta) arguments, and returns the result as it is on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.core.iteration import result_strides
from tensorgraft.storage import Shape, contiguous_strides

Tensor = torch.Tensor
Rule = Callable[..., Any]


def strided(t: Tensor, strides: Sequence[int]) -> Tensor:
    """Return a tensor like `t` with other strides."""
    return torch.empty_strided(t.shape, tuple(strides), dtype=t.dtype, device=t.device)


def _for_each_result(rule: Callable[..., Tensor]) -> Rule:
    """Return a rule for every tensor of the result."""

    def of_all(result: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(result, tuple | list):
            return type(result)(of_all(o, *args, **kwargs) for o in result)
        return rule(result, *args, **kwargs) if isinstance(result, Tensor) else result

    return of_all


def contiguous(result: Tensor, *_: Any, **__: Any) -> Tensor:
    return strided(result, contiguous_strides(tuple(result.shape)))


def suggested_memory_format(t: Tensor) -> torch.memory_format:
    """Return the memory format that the strides of a tensor suggest: channels_last where channels come first in memory
    and every other axis encloses the ones inside it. An axis of size 1 leaves it open, as in PyTorch, whose own
    function in Python imports SymPy."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if t.dim() not in formats or t.layout != torch.strided:
        return torch.contiguous_format
    sizes, strides = t.shape, t.stride()
    if strides[1] == 0:
        return torch.contiguous_format
    least = 0
    for axis in (1, *range(t.dim() - 1, 1, -1), 0):
        # a batch that takes no more room than its channels is contiguous in either format
        if sizes[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return torch.contiguous_format
        least = strides[axis] * sizes[axis]
    return formats[t.dim()]


def formatted(result: Tensor, *like: Any) -> Tensor:
    """Lay the result out in the first memory format other than contiguous that the strides of `like` suggest."""
    formats = [suggested_memory_format(t) for t in like if isinstance(t, Tensor) and t.dim() == result.dim()]
    memory_format = next((f for f in formats if f is not torch.contiguous_format), torch.contiguous_format)
    return torch.empty(result.shape, dtype=result.dtype, device=result.device, memory_format=memory_format)


def column_major(result: Tensor, *_: Any, **__: Any) -> Tensor:
    """Matrices as LAPACK has them."""
    *batch, m, n = result.shape
    return strided(result, (*contiguous_strides((*batch, n, m))[:-2], 1, max(m, 1)) if batch else (1, max(m, 1)))


def _pick(*rules: Rule | None) -> Rule:
    """Return a rule for each of several results."""

    def rule(result: Any, *args: Any, **kwargs: Any) -> Any:
        parts = zip(result, rules, strict=True)
        return tuple(o if r is None or o is None else r(o, *args, **kwargs) for o, r in parts)

    return rule


def _iterated(result: Tensor, *args: Any, **_: Any) -> Tensor:
    strides = result_strides(tuple(result.shape), [a for a in args if isinstance(a, Tensor)])
    return result if strides is None else strided(result, strides)


# ---- Fourier transforms (aten/src/ATen/native/mkl/SpectralOps.cpp) ---------------------------------------------------


def _by_stride(strides: Shape, axes: Sequence[int]) -> list[int]:
    return sorted(axes, key=lambda axis: -strides[axis])


def _transformed(strides: Shape, shape: Shape, axes: Sequence[int]) -> Shape:
    """Axes that are not transformed first, then those that are, in the order of the transform."""
    batch = _by_stride(strides, [a for a in range(len(shape)) if a not in axes])
    new_strides, n = [0] * len(shape), 1
    for axis in reversed([*batch, *axes]):
        new_strides[axis] = n
        n *= shape[axis]
    return tuple(new_strides)


def _axes(x: Tensor, dim: Sequence[int]) -> list[int]:
    return [d % x.dim() for d in dim]


def _fft_real_to_complex(result: Tensor, x: Tensor, dim: Sequence[int], *_: Any) -> Tensor:
    *rest, last = _axes(x, dim)
    return strided(result, _transformed(x.stride(), tuple(result.shape), [*_by_stride(x.stride(), rest), last]))


def _fft_complex_to_real(result: Tensor, x: Tensor, dim: Sequence[int], *_: Any) -> Tensor:
    *rest, last = _axes(x, dim)
    strides = x.stride()
    if rest:
        strides = _transformed(strides, tuple(x.shape), _by_stride(strides, rest))
    return strided(result, _transformed(strides, tuple(result.shape), [last]))


# ---- results whose shapes depend on values ---------------------------------------------------------------------------


def _solution(result: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return the first rows of LAPACK's matrix, which has room for the right-hand side too."""
    if result.dim() != a.dim():
        return result
    batch, k = result.shape[:-2], result.shape[-1]
    rows = max(*a.shape[-2:], 1)
    return strided(result, (*(rows * s for s in contiguous_strides((*batch, k))[:-1]), 1, rows))


def _solved(result: Tensor, a: Tensor, b: Tensor, left: bool = True, check_errors: bool = False) -> Tensor:
    """Conjugate a complex solution from the right side (`left=False`) lazily: on the CPU it is an adjoint."""
    lazy = result.is_complex() and not left and result.numel() and not result.is_conj()
    return result.conj() if lazy else result


def _contiguous_along(result: Tensor, x: Tensor, dim: int, *_: Any, **__: Any) -> Tensor:
    """Lay the result out as if it were made contiguous with `dim` first."""
    moved = torch.empty_like(result.movedim(dim, 0), memory_format=torch.contiguous_format)
    return strided(result, moved.movedim(0, dim).stride())


def _consecutive(
    result: Tensor, x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Tensor:
    return result if dim is None or not x.dim() else _contiguous_along(result, x, dim)


def _true_positions(result: Tensor, x: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the indices as meta tensors; for each mask the positions of true elements, as columns of a matrix."""
    index_tensors: list[Tensor | None] = []
    masks = 0
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            index_tensors.append(None if index is None else index.to("meta"))
        else:
            masks += 1
            index_tensors += [index] * index.dim()
    if not masks:
        return index_tensors
    index_metas = [t for t in index_tensors if t is not None and t.is_meta]
    index_shape = tuple(torch.broadcast_shapes(*[t.shape for t in index_metas])) if index_metas else ()
    axes = [i for i, t in enumerate(index_tensors) if t is not None]
    before = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    n = result.shape[before + max(len(index_shape), 1) - 1]
    at: dict[int, int] = {}
    for i, t in enumerate(index_tensors):
        if t is not None and not t.is_meta:
            at[id(t)] = at.get(id(t), -1) + 1
            index_tensors[i] = torch.empty((n, t.dim()), dtype=torch.int64, device="meta").select(1, at[id(t)])
    return index_tensors


def _indexed(result: Tensor, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Lay the result out as TensorIterator does over the indices and `x`, which has stride 0 along the indexed axes."""
    index_tensors = _true_positions(result, x, indices)
    axes = [i for i, index in enumerate(index_tensors) if index is not None]
    if not axes:
        return result
    grid = torch.broadcast_tensors(*[t for t in index_tensors if t is not None])
    adjacent = axes[-1] - axes[0] == len(axes) - 1
    rest = [i for i in range(x.dim()) if i not in axes]
    before = [i for i in rest if adjacent and i < axes[0]]
    later_axes = [i for i in rest if i not in before]
    strides = [*(x.stride(i) for i in before), *[0] * grid[0].dim(), *(x.stride(i) for i in later_axes)]
    source = torch.empty((), device="meta").as_strided(tuple(result.shape), strides)
    shape = (*[1] * len(before), *grid[0].shape, *[1] * len(later_axes))
    laid = result_strides(tuple(result.shape), [source, *(t.reshape(shape) for t in grid)])
    return result if laid is None else strided(result, laid)


LAYOUTS: dict[str, Rule] = {
    "index.Tensor": _indexed,
    **dict.fromkeys(
        [
            *(f"{name}_loss_backward" for name in ("huber", "mse", "smooth_l1")),
            *("_softmax_backward_data", "_log_softmax_backward_data", "_ctc_loss_backward", "glu_backward"),
            *(
                "nonzero_static",
                "nll_loss2d_forward",
                "nll_loss2d_backward",
                "fractional_max_pool3d_backward",
                "pow.Scalar",
            ),
            *("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor"),
        ],
        _for_each_result(contiguous),
    ),
    **dict.fromkeys(
        [
            *("native_channel_shuffle", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle", "max_unpool2d"),
            *(f"{kind}_pad{d}d" for kind in ("reflection", "replication") for d in (2, 3)),
            *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit.no_stats"),
            "_batch_norm_with_update",
        ],
        _for_each_result(lambda outcome, x, *_, **__: formatted(outcome, x)),
    ),
    **dict.fromkeys(
        [
            *(f"{kind}_pad{d}d_backward" for kind in ("reflection", "replication") for d in (2, 3)),
            *("native_batch_norm_backward", "batch_norm_backward"),
        ],
        _for_each_result(lambda outcome, grad, x, *_, **__: formatted(outcome, x)),
    ),
    "linalg_eig": _pick(None, column_major),
    "_linalg_solve_ex": _pick(_solved, None, None, None),
    "linalg_lstsq": _pick(_solution, None, None, None),
    "nonzero": lambda outcome, *_: strided(outcome, (1, len(outcome))),
    "unique_dim": _pick(_contiguous_along, None, None),
    "unique_dim_consecutive": _pick(_contiguous_along, None, None),
    "unique_consecutive": _pick(_consecutive, None, None),
    "_linalg_svd": _pick(None, None, lambda vh, *_, **__: column_major(vh) if vh.dim() > 1 else vh),
    "native_dropout_backward": _iterated,
    "_fft_r2c": _fft_real_to_complex,
    "_fft_c2r": _fft_complex_to_real,
}
