"""Adam whose moments are kept in bytes, in blocks of 256 that share a scale."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

BLOCK = 256
SMALLEST = 4096  # smaller tensors keep float32, as in the paper


@functools.cache
def codebook(signed: bool) -> torch.Tensor:
    """(256,) float32 on the CPU, ascending: the dynamic tree of Dettmers et al., "8-bit Optimizers via Block-wise
    Quantization" (arXiv 2110.02861), section 2.1. Seven decades; the higher, the finer.

    Of magnitudes without a sign there is no code for zero: what is divided by them would explode.
    """
    found = [1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1.0, 2 ** (decade + (not signed)) + 1, dtype=torch.float64)
        found += ((edges[1:] + edges[:-1]) / 2 * 10.0 ** (decade - 6)).tolist()
    found += [-x for x in found if x != 1.0] + [0.0] if signed else [1e-7]
    return torch.tensor(sorted(found), dtype=torch.float32)


@functools.cache
def _tables(signed: bool, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(the numbers of the codes, those half way between neighbours)."""
    codes = codebook(signed)
    return codes.to(device), ((codes[1:] + codes[:-1]) / 2).to(device)


class Adam8bit(torch.optim.Optimizer):
    """Adam, and AdamW, with both moments in 8 bits: about a quarter of the memory of `torch.optim.Adam`'s state.

    Dettmers et al., arXiv 2110.02861. Of the second moment the square root is kept, whose range is half as many
    decades. Works on every device, and in `tg.jit` on ours.

    Arguments:
        params, lr, betas, eps, weight_decay, maximize: as `torch.optim.Adam` takes them.
        decoupled_weight_decay: as AdamW.
        smallest: tensors of fewer elements keep their moments as they are (float32; of float64 ones, float64).

    Raises ValueError for numbers out of range; TypeError, at the first step, for parameters that are not real
    floating-point tensors, and for sparse gradients.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        smallest: int = SMALLEST,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0.0:
                raise ValueError(f"Adam8bit: {name} is {value}: it is to be 0 or more")
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"Adam8bit: betas are {betas}: they are to be two numbers of at least 0 and less than 1")
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "smallest": smallest,
        }
        super().__init__(params, defaults)

    def _init_group(self, group: dict[str, Any]) -> None:
        """The state of every parameter that has a gradient."""
        for p in group["params"]:
            if p.numel() >= group["smallest"]:
                _tables(True, p.device), _tables(False, p.device)  # before a trace begins
            if p.grad is None or self.state[p]:
                continue
            if not p.is_floating_point() or p.grad.is_sparse:
                kind = f"a sparse gradient of {p.dtype}" if p.grad.is_sparse else f"parameters of {p.dtype}"
                raise TypeError(f"Adam8bit: {kind}, shape {tuple(p.shape)}: dense floating-point ones are expected")
            state = self.state[p]
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            for name, signed in _MOMENTS:
                if p.numel() < group["smallest"]:
                    state[name] = torch.zeros_like(p, dtype=_wide(p), memory_format=torch.contiguous_format)
                    continue
                blocks = -(-p.numel() // BLOCK)
                zero = int(torch.argmin(codebook(signed).abs()))
                state[name] = torch.full((blocks, BLOCK), zero, dtype=torch.uint8, device=p.device)
                state[f"{name}_scale"] = torch.zeros((blocks, 1), dtype=torch.float32, device=p.device)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer.load_state_dict`. The state keeps its dtypes, whatever the parameters' are."""
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        super().load_state_dict(state_dict)
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(ids, params, strict=True):
            for name, value in state_dict["state"].get(i, {}).items():
                self.state[p][name] = value.detach().to(p.device, copy=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. `closure`, if there is one, computes the loss and the gradients again, and its loss is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._init_group(group)
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)
        return loss

    def _update(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state, lr = self.state[p], group["lr"]
        grad = (-p.grad if group["maximize"] else p.grad).to(_wide(p))  # type: ignore[operator, union-attr]
        weights = p.to(_wide(p))
        if group["weight_decay"] and group["decoupled_weight_decay"]:
            weights = weights * (1 - lr * group["weight_decay"])
        elif group["weight_decay"]:
            grad = grad + group["weight_decay"] * weights
        first, second = (_read(state, name, signed, p) for name, signed in _MOMENTS)
        beta1, beta2 = group["betas"]
        first = beta1 * first + (1 - beta1) * grad
        root = (beta2 * second.square() + (1 - beta2) * grad.square()).sqrt()
        step = state["step"].add_(1)
        size = lr / (1 - beta1**step)
        p.copy_(weights - size * first / (root / (1 - beta2**step).sqrt() + group["eps"]))
        for (name, signed), value in zip(_MOMENTS, (first, root), strict=True):
            _write(state, name, signed, value)


def _wide(p: torch.Tensor) -> torch.dtype:
    return torch.promote_types(p.dtype, torch.float32)


_MOMENTS = (("exp_avg", True), ("root_exp_avg_sq", False))


def _read(state: dict[str, Any], name: str, signed: bool, p: torch.Tensor) -> torch.Tensor:
    kept = state[name]
    if kept.dtype != torch.uint8:
        return kept
    values = _tables(signed, kept.device)[0][kept.int()] * state[f"{name}_scale"]
    return values.reshape(-1)[: p.numel()].reshape(p.shape)


def _write(state: dict[str, Any], name: str, signed: bool, value: torch.Tensor) -> None:
    kept = state[name]
    if kept.dtype != torch.uint8:
        kept.copy_(value)
        return
    flat = torch.nn.functional.pad(value.reshape(-1), (0, kept.numel() - value.numel()))
    blocks = flat.reshape(kept.shape)
    scale = blocks.abs().amax(1, keepdim=True)
    near = torch.bucketize(blocks / torch.where(scale == 0, 1.0, scale), _tables(signed, kept.device)[1])
    kept.copy_(near)
    state[f"{name}_scale"].copy_(scale)
