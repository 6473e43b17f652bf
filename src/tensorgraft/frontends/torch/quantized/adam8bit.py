"""Adam whose moments are kept in bytes, in blocks that share a scale.

Built on `quantization.moments`, as operators of its own that it registers; nothing of the core imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.library import Library

from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.core.spec import Spec
from tensorgraft.frontends.torch.core.tensors import on_device
from tensorgraft.frontends.torch.dispatch.entry import entry
from tensorgraft.hub import registry
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.quantization import moments

SMALLEST = moments.SMALLEST
_PIECE = 512 * moments.BLOCK  # numbers

Tensor = torch.Tensor
Arrays = list[Array]

# the state of a parameter: in bytes, or for a small one like Adam's
_IN_BYTES = ("exp_avg", "exp_avg_scale", "root_exp_avg_sq", "root_exp_avg_sq_scale")
_DENSE = ("exp_avg", "exp_avg_sq")

_ARGUMENTS = (
    "(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] moments, Tensor(c!)[] steps, int[] phases, *, {} lr,"
    " float beta1, float beta2, float weight_decay, float eps, bool decoupled, bool maximize) -> ()"
)
SCHEMAS = ("adam8bit_" + _ARGUMENTS.format("float"), "adam8bit_.tensor_lr" + _ARGUMENTS.format("Tensor"))


def _step_all(
    xp: Any,
    params: Arrays,
    grads: Arrays,
    states: Arrays,
    steps: Arrays,
    phases: Sequence[int],
    *,
    lr: Any,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    decoupled: bool,
    maximize: bool,
) -> tuple[Arrays, Arrays, Arrays]:
    """A step of all parameters, whose moments are joined in `states`. Returns new parameters, moments and counters."""
    settings = moments.Settings(beta1, beta2, eps, weight_decay, decoupled)
    per_param = len(states) // len(params)
    outputs: tuple[Arrays, Arrays, Arrays] = ([], [], [])
    for i, (param, grad, count) in enumerate(zip(params, grads, steps, strict=True)):
        dtype = xp.dtype_of(param)
        weights = xp.astype(param, moments.wide(dtype))
        grad = xp.astype(grad, moments.wide(dtype))
        grad = xp.negative(grad) if maximize else grad
        count = xp.add(count, 1.0)
        own_moments, starts = states[per_param * i : per_param * (i + 1)], (phases[2 * i], phases[2 * i + 1])
        change, new = moments.step(xp, grad, weights, own_moments, count, lr, settings, starts)
        outputs[0].append(xp.astype(xp.add(weights, change), dtype))
        outputs[1].extend(new)
        outputs[2].append(count)
    return outputs


KERNEL = Spec(_step_all, dynamic=frozenset({"lr"}), meta=False)  # the kernel of the operators in `SCHEMAS`


class Adam8bit(torch.optim.Optimizer):
    """Adam, and AdamW, with both moments in 8 bits: about a quarter of the memory of `torch.optim.Adam`'s state.

    After Dettmers et al., arXiv 2110.02861: moments are floats of 8 bits in blocks of 256 with a scale, of the second
    one the root. What rounding would always lose is kept in the mean, see `tensorgraft.quantization.moments`. Works on
    every device, and in `tg.jit` on ours.

    Arguments:
        params, lr, betas, eps, weight_decay, maximize: as `torch.optim.Adam` takes them.
        decoupled_weight_decay: as AdamW.
        smallest: tensors of fewer elements keep their moments as they are (float32; of float64 ones, float64).
        seed: of the roundings; the same one gives the same numbers.

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
        seed: int = 0,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0.0:
                raise ValueError(f"Adam8bit: expected {name} to be at least 0, got {value}")
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"Adam8bit: expected two betas of at least 0 and less than 1, got {betas}")
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "smallest": smallest,
            "seed": seed,
        }
        super().__init__(params, defaults)

    def _init_group(self, group: dict[str, Any]) -> None:
        """Create the state of every parameter that has a gradient and no state yet."""
        for p in group["params"]:
            if p.grad is None or self.state[p]:
                continue
            is_sparse = p.grad.layout is not torch.strided
            if not p.is_floating_point() or is_sparse:
                kind = f"a sparse gradient of {p.dtype}" if is_sparse else f"parameters of {p.dtype}"
                raise TypeError(
                    f"Adam8bit: expected dense floating-point parameters, got {kind} of shape {tuple(p.shape)}"
                )
            state = self.state[p]
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            if p.numel() < group["smallest"]:
                for name in _DENSE:
                    state[name] = torch.zeros_like(p, dtype=_wide(p), memory_format=torch.contiguous_format)
                continue
            blocks = -(-p.numel() // moments.BLOCK)
            for codes, scale in (_IN_BYTES[:2], _IN_BYTES[2:]):
                state[codes] = torch.zeros((blocks, moments.BLOCK), dtype=torch.uint8, device=p.device)
                state[scale] = torch.zeros((blocks, 1), dtype=torch.float32, device=p.device)

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
        first = 0  # number of the group's first parameter
        for group in self.param_groups:
            self._init_group(group)
            numbered = [(first + i, p) for i, p in enumerate(group["params"]) if p.grad is not None]
            first += len(group["params"])
            for names in (_IN_BYTES, _DENSE):
                started = [(i, p) for i, p in numbered if self.state[p].keys() == {"step", *names}]
                for device in dict.fromkeys(p.device for _, p in started):
                    self._update(group, [(i, p) for i, p in started if p.device == device], names)
        return loss

    def _update(self, group: dict[str, Any], numbered: list[tuple[int, Tensor]], names: Sequence[str]) -> None:
        """A step of parameters that are on one device, and have the same kind of state."""
        params = [p for _, p in numbered]
        arguments = (
            params,
            [self.state[p][name] for p in params for name in names],
            [self.state[p]["step"] for p in params],
        )
        phases = [moments.phase(group["seed"], i, moment) for i, _ in numbered for moment in (0, 1)]
        beta1, beta2 = group["betas"]
        options = {
            "lr": group["lr"],
            "beta1": beta1,
            "beta2": beta2,
            "weight_decay": group["weight_decay"],
            "eps": group["eps"],
            "decoupled": group["decoupled_weight_decay"],
            "maximize": group["maximize"],
        }
        run = _natively
        if on_device(params[0]):
            packet = torch.ops.graft.adam8bit_
            run = packet.tensor_lr if isinstance(group["lr"], Tensor) else packet.default
        run(params, [p.grad for p in params if p.grad is not None], *arguments[1:], phases, **options)


def _natively(
    params: list[Tensor],
    grads: list[Tensor],
    states: list[Tensor],
    steps: list[Tensor],
    phases: list[int],
    **numbers: Any,
) -> None:
    """Update tensors of PyTorch's own devices; on the CPU in pieces that fit in the cache."""
    device = params[0].device
    xp = registry.get("torch" if device.type == "cpu" else f"torch:{device.type}:{device.index or 0}")
    per_param = len(states) // len(params)
    for i, (param, grad, count) in enumerate(zip(params, grads, steps, strict=True)):
        own_moments, starts = states[per_param * i : per_param * (i + 1)], phases[2 * i : 2 * i + 2]
        pieces = [(param, grad, own_moments, starts)]
        if device.type == "cpu" and param.is_contiguous():
            pieces = list(_pieces(param.view(-1), grad.reshape(-1), own_moments, starts))
        for weights, slope, state, dithers in pieces:
            with xp.scope():
                results = _step_all(xp, [weights], [slope], state, [count], dithers, **numbers)
            for x, value in zip((weights, *state), (*results[0], *results[1]), strict=True):
                x.copy_(value)
        count += 1.0


def _pieces(weights: Tensor, grad: Tensor, states: list[Tensor], phases: list[int]) -> Iterator[tuple[Any, ...]]:
    """Yield a parameter and its moments, whole blocks at a time."""
    for start in range(0, max(weights.numel(), 1), _PIECE):
        part, first = slice(start, start + _PIECE), start // moments.BLOCK
        rows = part if len(states) == 2 else slice(first, first + _PIECE // moments.BLOCK)
        state = [x.view(-1)[rows] if len(states) == 2 else x[rows] for x in states]
        yield weights[part], grad[part], state, [moments.phase_from(phase, start) for phase in phases]


def _wide(p: Tensor) -> torch.dtype:
    return torch.promote_types(p.dtype, torch.float32)


_library = Library("graft", "FRAGMENT")  # the operators live as long
for _schema in SCHEMAS:
    _library.define(_schema)
    _name = _schema.partition("(")[0]
    _packet, _, _overload = _name.partition(".")
    _op = getattr(getattr(torch.ops.graft, _packet), _overload or "default")
    _library.impl(_name, entry(Operator(_op, KERNEL)), "PrivateUse1")
