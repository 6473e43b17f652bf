"""Functions of generated PyTorch files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

# ---- elementwise -----------------------------------------------------------------------------------------------------


def sign(x: torch.Tensor) -> torch.Tensor:
    """The sign, NaN of NaN (of which torch.sign has 0)."""
    return torch.where(torch.isnan(x), x, torch.sign(x))


# ---- updates, sorting ------------------------------------------------------------------------------------------------


def updated(x: torch.Tensor, index: Any, value: torch.Tensor) -> torch.Tensor:
    """A copy of `x` with `value` at `index`."""
    out = x.clone()
    out[index] = value
    return out


def added(x: torch.Tensor, index: Sequence[torch.Tensor | None], value: torch.Tensor) -> torch.Tensor:
    """A copy of `x` into which `value` is added at `index`, each time that a place occurs."""
    return torch.ops.aten.index_put(x, index, value, True)


def scatter_reduce(
    x: torch.Tensor, indices: Sequence[torch.Tensor], updates: torch.Tensor, reduce: str
) -> torch.Tensor:
    """`x` into whose `indices` updates are added, multiplied, ...: each time that a place occurs."""
    if x.dtype == torch.bool:
        of_bool = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
        return scatter_reduce(x.byte(), indices, updates.byte(), of_bool).bool()
    if x.dtype in (torch.float16, torch.bfloat16):
        return scatter_reduce(x.float(), indices, updates.float(), reduce).to(x.dtype)
    if not indices:
        combine = {"sum": torch.add, "prod": torch.mul, "amin": torch.minimum, "amax": torch.maximum}
        return combine[reduce](x, updates) if reduce in combine else updates.expand(x.shape)
    indices = torch.broadcast_tensors(*indices)
    k = len(indices)
    rows = indices[0]
    for i, n in zip(indices[1:], x.shape[1:], strict=False):
        rows = rows * n + i
    updates = updates.expand((*rows.shape, *x.shape[k:])).reshape(rows.numel(), -1)
    flat = x.reshape(-1, *x.shape[k:]).flatten(1) if x.ndim > k else x.reshape(-1, 1)
    updates = updates.reshape(rows.numel(), flat.shape[1])
    at = rows.reshape(-1, 1).expand(updates.shape)
    return flat.scatter_reduce(0, at, updates, reduce).reshape(x.shape)


def places(start: torch.Tensor | int, size: int, n: int) -> torch.Tensor:
    """The positions of a window on an axis of n, moved so that it fits."""
    start = torch.as_tensor(start).long().clamp(0, n - size)
    return start + torch.arange(size, device=start.device)


def dynamic_slice(x: torch.Tensor, start: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    for axis, (at, size) in enumerate(zip(start, sizes, strict=True)):
        x = x.index_select(axis, places(at, size, x.shape[axis]))
    return x


def dynamic_update_slice(x: torch.Tensor, update: torch.Tensor, start: Sequence[torch.Tensor]) -> torch.Tensor:
    if not x.ndim:
        return update
    index = [places(at, m, n) for at, m, n in zip(start, update.shape, x.shape, strict=True)]
    return x.index_put(torch.meshgrid(*index, indexing="ij"), update)


def pad(x: torch.Tensor, value: Any, config: Sequence[tuple[int, int, int]]) -> torch.Tensor:
    """Each axis by (low, high, between two elements); negative numbers cut off."""
    apart = [n + max(n - 1, 0) * gap for n, (_, _, gap) in zip(x.shape, config, strict=True)]
    wide = [max(low, 0) + n + max(high, 0) for n, (low, high, _) in zip(apart, config, strict=True)]
    out = torch.as_tensor(value, dtype=x.dtype, device=x.device).expand(wide).clone()
    inner = zip(apart, config, strict=True)
    out[tuple(slice(max(low, 0), max(low, 0) + n, gap + 1) for n, (low, _, gap) in inner)] = x
    return out[tuple(slice(max(-low, 0), n + min(high, 0)) for n, (low, high, _) in zip(wide, config, strict=True))]


def sort(operands: Sequence[torch.Tensor], dim: int, num_keys: int) -> tuple[torch.Tensor, ...]:
    """Tensors ordered together, by the first of them."""
    order = torch.argsort(operands[num_keys - 1], dim=dim, stable=True)
    for key in reversed(operands[: num_keys - 1]):
        order = order.gather(dim, torch.argsort(key.gather(dim, order), dim=dim, stable=True))
    return tuple(x.gather(dim, order) for x in operands)


# ---- matrices --------------------------------------------------------------------------------------------------------


def lu(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(L and U in one matrix, which row was swapped in each step, the order of the rows)."""
    factors, pivots = torch.linalg.lu_factor(x)
    rows, _, _ = torch.lu_unpack(factors.detach(), pivots, unpack_data=False)
    return factors, pivots - 1, (rows != 0).byte().argmax(-2).int()


# ---- windows ---------------------------------------------------------------------------------------------------------


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    groups: int = 1,
    batch_groups: int = 1,
) -> torch.Tensor:
    """x (N, C, spatial...) with weight (O, C / groups, spatial...), by one product of all windows."""
    n, dtype = len(strides), x.dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    gaps = [d - 1 for d in lhs_dilation or [1] * n]
    x = pad(x.to(wide), 0, [(0, 0, 0), (0, 0, 0), *((*p, g) for p, g in zip(padding, gaps, strict=True))])
    if batch_groups > 1:  # groups of the batch are groups of channels
        x = x.unflatten(0, (batch_groups, -1)).movedim(0, 1).flatten(1, 2)
        groups = batch_groups
    x = windows(x, 2, weight.shape[2:], strides, rhs_dilation or [1] * n)
    out = x.shape[2 : n + 2]
    x = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    weight = weight.to(wide).reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    x = x.movedim(2, 2 + n).flatten(2 + n).flatten(2, 1 + n) if n else x.unsqueeze(2)
    y = torch.einsum("ngpk,gok->ngop", x, weight.flatten(2))
    return y.reshape(y.shape[0], y.shape[1] * y.shape[2], *out).to(dtype)


def windows(
    x: torch.Tensor, first: int, sizes: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> torch.Tensor:
    """Return the elements of windows over the axes from `first` on: (..., places..., window...)."""
    for axis, (k, stride, d) in enumerate(zip(sizes, strides, dilation, strict=True), first):
        if d * (k - 1) + 1 > x.shape[axis]:  # none fits
            x = x.narrow(axis, 0, 0).unsqueeze(-1).expand(*[-1] * x.ndim, k)
        else:
            x = x.unfold(axis, d * (k - 1) + 1, stride)[..., ::d]
    return x


def reduce_window(
    reduce: Callable[..., torch.Tensor],
    x: torch.Tensor,
    initial: Any,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
) -> torch.Tensor:
    """Sums, maxima or minima over windows, one size an axis."""
    if not x.ndim:
        return x
    seen = windows(pad(x, initial, [(*p, 0) for p in padding]), 0, window, strides, dilation or [1] * x.ndim)
    if not seen.numel():
        return x.new_zeros(seen.shape[: x.ndim])
    return reduce(seen, dim=tuple(range(-x.ndim, 0))).to(x.dtype)


# ---- control flow ----------------------------------------------------------------------------------------------------


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    while condition(state):
        state = body(state)
    return state


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: tuple[Any, ...], length: int, reverse: bool = False
) -> tuple[Any, Any]:
    """`step(carry, x) -> (carry, y)` along the first axis; (the last carry, the stacked ys)."""
    rows = []
    for i in reversed(range(length)) if reverse else range(length):
        carry, y = step(carry, tuple(x[i] for x in xs))
        rows.append(y)
    if reverse:
        rows.reverse()
    return carry, tuple(torch.stack(ys) for ys in zip(*rows, strict=True))


# ---- words -----------------------------------------------------------------------------------------------------------


def batch_norm_training(
    x: torch.Tensor,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (N, C, ...) by its own statistics, and the running mean and variance after it."""
    momentum = momentum if mean is not None else 1.0
    mean = x.new_zeros(x.shape[1]) if mean is None else mean.detach().clone()
    variance = x.new_ones(x.shape[1]) if variance is None else variance.detach().clone()
    y = F.batch_norm(x, mean, variance, weight, bias, training=True, momentum=momentum, eps=eps)
    return y, mean, variance


def dropout(x: torch.Tensor, key: torch.Generator, rate: float) -> torch.Tensor:
    """Zeros at random, the rest divided by 1 - rate."""
    kept = torch.rand(x.shape, generator=key, device=x.device) >= rate
    return torch.where(kept, x / (1 - rate), 0)


# ---- the random numbers of JAX ---------------------------------------------------------------------------------------


def threefry(key: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Threefry-2x32 of 20 rounds (Salmon et al. 2011): words of 32 bits in int64, encrypted with `key` (2,)."""
    mask = 0xFFFFFFFF
    first, second = key.to(torch.int64)
    keys = (first, second, first ^ second ^ 0x1BD11BDA)
    high, low = (high + first) & mask, (low + second) & mask
    for group in range(5):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            high = (high + low) & mask
            low = ((low << r) | (low >> (32 - r))) & mask ^ high
        high = (high + keys[(group + 1) % 3]) & mask
        low = (low + keys[(group + 2) % 3] + group + 1) & mask
    return high, low


def jax_words(key: torch.Tensor, shape: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The words of 0, 1, 2, ... in `shape`."""
    at = torch.arange(math.prod(shape), device=key.device).reshape(shape)
    return threefry(key, torch.zeros_like(at), at)


def jax_bits(key: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """jax.random.bits."""
    high, low = jax_words(key, shape)
    return (high ^ low).to(torch.uint32)


def jax_uniform(key: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """jax.random.uniform."""
    high, low = jax_words(key, shape)
    return ((high ^ low) >> 9).to(torch.float32) * 2.0**-23


def jax_normal(key: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """jax.random.normal."""
    low = -0.99999994
    return torch.erfinv((jax_uniform(key, shape) * 2 + low).clamp(min=low)) * 1.4142135


def jax_split(key: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """jax.random.split: keys (*shape, 2)."""
    return torch.stack(jax_words(key, shape), -1).to(torch.uint32)


def jax_fold_in(key: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """jax.random.fold_in."""
    data = data.to(torch.int64)
    return torch.stack(threefry(key, torch.zeros_like(data), data)).to(torch.uint32)
