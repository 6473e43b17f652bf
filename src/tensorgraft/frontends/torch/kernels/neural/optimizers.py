"""Fused optimizer steps over all parameters in one program, and operators of `GradScaler`.

The step size is an input of the program: a schedule does not compile again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import Value, with_operators

Arrays = list[Array]


def _wide(xp: Any, x: Array) -> Array:
    return xp.astype(x, dtypes.accumulator(xp.dtype_of(x)))


def _like(xp: Any, number: Any, x: Array) -> Any:
    """Return a step size (Python number, traced number or 0-d array) as an operand next to `x`."""
    return number if isinstance(number, float | int) else xp.astype(number, xp.dtype_of(x))


def _steps(
    xp: Any,
    update: Callable[..., tuple[Any, ...]],
    params: Arrays,
    grads: Arrays,
    states: list[Arrays],
    steps: Arrays | None,
    maximize: bool,
    grad_scale: Any | None,
    found_inf: Any | None,
) -> tuple[Arrays, list[Any | None], list[Arrays]]:
    """Apply `update(param, grad, step, *states) -> (param, *states)` to each parameter, in at least float32.

    With `found_inf` nothing changes where it is 1; with `grad_scale` the gradients are divided by it, and written.
    """
    new_params: Arrays = []
    new_grads: list[Any | None] = []
    new_states: list[Arrays] = [[] for _ in states]
    skip = None if found_inf is None else xp.equal(xp.reshape(found_inf, ()), 1)

    def select(new: Any, old: Any) -> Any:
        new = xp.astype(new, xp.dtype_of(old))
        return new if skip is None else xp.where(skip, old, new)

    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        olds = [param, *(state[i] for state in states)]
        g, step = _wide(xp, grad), None if steps is None else _wide(xp, steps[i])
        if grad_scale is not None:
            g = xp.divide(g, xp.astype(xp.reshape(grad_scale, ()), xp.dtype_of(g)))
        new_grads.append(None if grad_scale is None else select(g, grad))
        if maximize:
            g = xp.negative(g)
        new_values = update(
            _wide(xp, param), xp.astype(g, xp.dtype_of(_wide(xp, param))), step, *(_wide(xp, s) for s in olds[1:])
        )
        chosen_values = [select(new, old) for new, old in zip(new_values, olds, strict=True)]
        new_params.append(chosen_values[0])
        for state, new in zip(new_states, chosen_values[1:], strict=True):
            state.append(new)
    return new_params, new_grads, new_states


def _adam(decoupled: bool) -> Callable[..., Any]:
    @with_operators
    def fused(
        xp: Any,
        params: Arrays,
        grads: Arrays,
        exp_avgs: Arrays,
        exp_avg_sqs: Arrays,
        max_exp_avg_sqs: Arrays,
        state_steps: Arrays,
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Value | None = None,
        found_inf: Value | None = None,
    ) -> tuple[Any, ...]:
        def update(p: Value, g: Value, step: Value, m: Value, v: Value, *top: Value) -> tuple[Value, ...]:
            rate = _like(xp, lr, p)
            if weight_decay and decoupled:
                p = p - p * weight_decay * rate
            elif weight_decay:
                g = g + p * weight_decay
            m = m + (g - m) * (1 - beta1)
            v = v * beta2 + g * g * (1 - beta2)
            top = tuple(xp.maximum(t, v) for t in top)
            step = xp.astype(step, dtypes.float64)
            first = xp.astype(1 - xp.full((), beta1, dtypes.float64) ** step, p.dtype)
            second = 1 - xp.full((), beta2, dtypes.float64) ** step
            root = xp.astype(xp.sqrt(second), p.dtype)
            denominator = xp.sqrt(top[0] if top else v) / root + eps
            ratio = m * rate / first
            return p - ratio / denominator, m, v, *top

        states = [exp_avgs, exp_avg_sqs, *([max_exp_avg_sqs] if amsgrad else [])]
        new, scaled, states_ = _steps(xp, update, params, grads, states, state_steps, maximize, grad_scale, found_inf)
        return new, scaled, *states_, *([] if amsgrad else [[None] * len(max_exp_avg_sqs)])

    return fused


kernel("_fused_adam_", "_fused_adam_.tensor_lr", dynamic=("lr",))(_adam(False))
kernel("_fused_adamw_", "_fused_adamw_.tensor_lr", dynamic=("lr",))(_adam(True))


@kernel("_fused_sgd_", "_fused_sgd_.tensor_lr", dynamic=("lr",), meta=False)
@with_operators
def _sgd(
    xp: Any,
    params: Arrays,
    grads: Arrays,
    momentum_buffers: Arrays,
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Value | None = None,
    found_inf: Value | None = None,
) -> tuple[Any, ...]:
    def update(p: Value, g: Value, step: Any, *buffers: Value) -> tuple[Value, ...]:
        if weight_decay:
            g = g + p * weight_decay
        if buffers:
            (buffer,) = buffers
            buffer = g if is_first_step else buffer * momentum + g * (1 - dampening)
            buffers = (buffer,)
            g = g + buffer * momentum if nesterov else buffer
        return p - g * _like(xp, lr, p), *buffers

    states = [momentum_buffers] if momentum_buffers else []
    new, scaled, new_states = _steps(xp, update, params, grads, states, None, maximize, grad_scale, found_inf)
    return new, scaled, *new_states


def _adagrad(writes_steps: bool) -> Callable[..., Any]:
    @with_operators
    def fused(
        xp: Any,
        params: Arrays,
        grads: Arrays,
        state_sums: Arrays,
        state_steps: Arrays,
        *,
        lr: Any,
        lr_decay: float,
        weight_decay: float,
        eps: float,
        maximize: bool,
        grad_scale: Value | None = None,
        found_inf: Value | None = None,
    ) -> tuple[Any, ...]:
        def update(p: Value, g: Value, step: Value, total: Value) -> tuple[Value, ...]:
            if weight_decay:
                g = g + p * weight_decay
            decay = (step - 1) * lr_decay + 1
            rate = (_like(xp, lr, decay) if not isinstance(lr, float | int) else lr) / decay
            total = total + g * g
            step_of = g / (xp.sqrt(total) + eps)
            return p - step_of * xp.astype(rate, p.dtype), total

        new, scaled, (sums,) = _steps(
            xp, update, params, grads, [state_sums], state_steps, maximize, grad_scale, found_inf
        )
        return new, scaled, sums, *([[None] * len(state_steps)] if writes_steps else [])

    return fused


kernel("_fused_adagrad_", dynamic=("lr",), meta=False)(_adagrad(True))
kernel("_fused_adagrad_.tensor_lr", dynamic=("lr",), meta=False)(_adagrad(False))


@kernel("_amp_foreach_non_finite_check_and_unscale_")
def _unscale(xp: Any, grads: Arrays, found_inf: Array, inv_scale: Array) -> tuple[Any, ...]:
    """Return the gradients times `inv_scale`, and 1.0 in `found_inf` where any of them is not finite."""
    new: Arrays = []
    for grad in grads:
        wide = _wide(xp, grad)
        found_inf = xp.where(xp.all(xp.isfinite(wide)), found_inf, xp.ones_like(found_inf))
        new.append(
            xp.astype(xp.multiply(wide, xp.astype(xp.reshape(inv_scale, ()), xp.dtype_of(wide))), xp.dtype_of(grad))
        )
    return new, found_inf


@kernel("_amp_update_scale_", dynamic=("scale_growth_factor", "scale_backoff_factor", "growth_interval"))
def _update_scale(
    xp: Any, scale: Array, tracker: Array, found_inf: Array, growth: Any, backoff: Any, interval: Any
) -> tuple[Array, Array]:
    found_invalid = xp.not_equal(found_inf, 0)
    steps = xp.add(tracker, 1)
    due = xp.equal(steps, _like(xp, interval, steps))
    grown_scale = xp.multiply(scale, _like(xp, growth, scale))
    grown_scale = xp.where(xp.logical_and(due, xp.isfinite(grown_scale)), grown_scale, scale)
    new = xp.where(found_invalid, xp.multiply(scale, _like(xp, backoff, scale)), grown_scale)
    return new, xp.where(xp.logical_or(found_invalid, due), xp.zeros_like(tracker), steps)
