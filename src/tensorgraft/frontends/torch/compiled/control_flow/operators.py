"""`torch.cond`, `torch.while_loop`, `scan` and `associative_scan` on the device.

Eagerly they are Python's `if` and loops. Inside a compiled function they are the backend's own control flow: a branch
or a body is traced once, whatever its length. The backward pass recomputes each step, so that a loop saves only its
carries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.errors import CompilationError
from tensorgraft.frontends.torch.compiled.control_flow.bodies import Body, differentiable, pulled_back, with_history
from tensorgraft.frontends.torch.core import pytrees, state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of_backend
from tensorgraft.frontends.torch.core.tensors import cell_of, from_array, on_device, to_array
from tensorgraft.hub.array import Array

Tensor = torch.Tensor


def cond(original: Callable[..., Any], pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """Implement `torch.cond`. Raises CompilationError if the branches differ in structure, shapes or dtypes."""
    leaves, spec = pytrees.flatten(tuple(operands))
    if not _on_device([pred, *leaves]):
        return original(pred, true_fn, false_fn, operands)
    if not (isinstance(pred, Tensor) and on_device(pred) and state.now.capture is not None):
        return (true_fn if pred else false_fn)(*operands)
    tensors = [t for t in leaves if isinstance(t, Tensor)]
    results, structure = _branch(pred, [Body(fn, leaves, spec) for fn in (true_fn, false_fn)], tensors)
    return pytrees.unflatten(results, structure)


def _branch(pred: Tensor, branches: Sequence[Body], tensors: Sequence[Tensor]) -> tuple[list[Tensor], Any]:
    """Return (results, their structure) of one of two branches, by the value of `pred`."""
    xp = cell_of(pred).backend
    predicate = xp.reshape(_read(pred), ())
    try:
        outputs = xp.cond(predicate, *[lambda *arrays, b=b: b.values(arrays) for b in branches], *map(_read, tensors))
    except TypeError:
        returned = [b.described for b in branches]
        raise CompilationError(
            f"torch.cond: the branches return {returned[0]} and {returned[1]}, which must have the same structure"
        ) from None
    structure = branches[0].structure
    if structure is None or structure != branches[1].structure:
        raise CompilationError(
            f"torch.cond: the branches return {branches[0].structure} and {branches[1].structure}, which must have"
            " the same structure"
        )
    slot, n = slot_of_backend(xp), len(tensors)
    results = [from_array(a, slot, dtype) for a, dtype in zip(outputs, branches[0].result_dtypes, strict=True)]
    smooth = [t for t in tensors if differentiable(t)]
    outer = list({id(t): t for b in branches for t in b.captured.values()}.values())
    inexact = [i for i, t in enumerate(results) if differentiable(t)]
    like = [_zeros_of(results[i]) for i in inexact]
    if not torch.is_grad_enabled():
        return results, structure

    def backward(saved: Sequence[Tensor], cotangents: Sequence[Tensor | None]) -> list[Tensor]:
        pred, *operands = saved
        dy = [zeros() if (c := cotangents[i]) is None else c for i, zeros in zip(inexact, like, strict=True)]
        sides = [lambda *inputs, b=b: pulled_back(b.flat, inputs[:n], inputs[n:], outer) for b in branches]
        inputs = [*operands, *dy]
        return _branch(pred, [Body(side, inputs, None) for side in sides], inputs)[0]

    return with_history(results, [pred, *tensors], [*smooth, *outer], backward), structure


def while_loop(original: Callable[..., Any], cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    """Implement `torch.while_loop`. Inside a compiled function a carried Python int is returned as a tensor."""
    leaves, spec = pytrees.flatten(tuple(carried_inputs))
    if not _on_device(leaves):
        return original(cond_fn, body_fn, carried_inputs)
    if state.now.capture is None:
        carry = tuple(carried_inputs)
        while cond_fn(*carry):
            carry = tuple(body_fn(*carry))
        return carry
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in leaves):
        raise CompilationError(
            "torch.while_loop inside a compiled function has no gradient, since the number of iterations is"
            " unknown: use scan, or detach() the carried tensors"
        )
    device = next(t.device for t in leaves if isinstance(t, Tensor) and on_device(t))
    leaves = [t if isinstance(t, Tensor) else torch.tensor(t, device=device) for t in leaves]
    condition, body = Body(cond_fn, leaves, spec), Body(body_fn, leaves, spec)
    xp = cell_of(next(t for t in leaves if on_device(t))).backend
    with torch.no_grad():
        outputs = xp.while_loop(
            lambda arrays: xp.reshape(condition.values(arrays)[0], ()), body.values, [_read(t) for t in leaves]
        )
    slot = slot_of_backend(xp)
    results = [from_array(a, slot, t.dtype) for a, t in zip(outputs, leaves, strict=True)]
    return tuple(pytrees.unflatten(results, spec))


def scan(
    original: Callable[..., Any], combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False
) -> Any:
    """Implement `torch._higher_order_ops.scan`."""
    x_leaves, x_spec = pytrees.flatten(xs)
    carry, carry_spec = pytrees.flatten(init)
    if not x_leaves or not _on_device([*x_leaves, *carry]):
        return original(combine_fn, init, xs, dim=dim, reverse=reverse)
    dim = range(x_leaves[0].ndim)[dim]
    slices = [x.movedim(dim, 0) for x in x_leaves]
    n = len(carry)
    run = compiled_scan if state.now.capture is not None else _loop

    y_spec: Any = None

    def step(carry: Sequence[Tensor], x: Sequence[Tensor]) -> list[Tensor]:
        nonlocal y_spec
        new_carry, y = combine_fn(pytrees.unflatten(carry, carry_spec), pytrees.unflatten(x, x_spec))
        flat, y_spec = pytrees.flatten(y)
        return [*pytrees.leaves_of(new_carry), *flat]

    outputs = run(step, carry, slices, reverse)
    ys = pytrees.unflatten(outputs[n:], y_spec)
    return pytrees.unflatten(outputs[:n], carry_spec), pytrees.mapped(
        lambda y: y.movedim(0, dim) if dim < y.ndim else y, ys
    )


def _loop(step: Callable[..., list[Tensor]], carry: list[Tensor], xs: Sequence[Tensor], reverse: bool) -> list[Tensor]:
    n, length = len(carry), xs[0].shape[0]
    rows = []
    for i in reversed(range(length)) if reverse else range(length):
        outputs = step(carry, [x[i] for x in xs])
        carry = outputs[:n]
        rows.append(outputs[n:])
    rows = rows[::-1] if reverse else rows
    return [*carry, *(torch.stack(column) for column in zip(*rows, strict=True))]


def compiled_scan(
    step: Callable[..., list[Tensor]],
    carry: Sequence[Tensor],
    xs: Sequence[Tensor],
    reverse: bool,
    constants: Sequence[Tensor] = (),
) -> list[Tensor]:
    """Return the last carry and the stacked results of `step(carry, rows of xs, *constants) -> [*carry, *results]`.

    Only for use while a capture is active. Constants are the same in each step, and may have an autograd history.
    """
    n, m, length = len(carry), len(xs), xs[0].shape[0]
    operands = [*carry, *xs, *constants]

    def flat_step(*tensors: Tensor) -> list[Tensor]:
        return step(tensors[:n], tensors[n : n + m], *tensors[n + m :])

    body = Body(flat_step, operands, None)
    xp = cell_of(xs[0]).backend
    slot = slot_of_backend(xp)
    arrays = list(map(_read, operands))
    keeps = torch.is_grad_enabled()  # the carries, for the backward pass

    def forward(old_carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
        outputs = body.values([*old_carry, *x, *arrays[n + m :]])
        for before, new_carry in zip(old_carry, outputs, strict=False):
            if (xp.shape(before), xp.dtype_of(before)) != (xp.shape(new_carry), xp.dtype_of(new_carry)):
                raise CompilationError(
                    f"scan: combine_fn takes a carry of shape {xp.shape(before)} and dtype {xp.dtype_of(before)}, and"
                    f" returns one of shape {xp.shape(new_carry)} and dtype {xp.dtype_of(new_carry)}"
                )
        return outputs[:n], [*outputs[n:], *(old_carry if keeps else ())]

    last, stacked = xp.scan(forward, arrays[:n], arrays[n : n + m], length=length, reverse=reverse)
    carried = [t.dtype for t in carry]
    result_dtypes = [*carried, *body.result_dtypes[n:], *(carried if keeps else ())]
    results = [from_array(a, slot, dtype) for a, dtype in zip((*last, *stacked), result_dtypes, strict=True)]
    if not keeps:
        return results
    first_kept = len(results) - n
    outer = list(body.captured.values())
    smooth = [i for i, t in enumerate(operands) if differentiable(t)]
    backward = _ScanBackward(flat_step, n, m, reverse, operands, results, outer)
    ends = [*(operands[i] for i in smooth), *outer]
    return with_history(results, [*results[first_kept:], *xs, *constants], ends, backward)[:first_kept]


class _ScanBackward:
    """The derivative of a scan: a scan in the opposite direction. It carries the cotangents of the carry, and the sums
    of the cotangents of the constants and of `outer`.

    It is called with (carries before each step, rows, constants), and the cotangents of (last carry, results, kept
    carries).
    """

    def __init__(
        self,
        step: Callable[..., list[Tensor]],
        n: int,
        m: int,
        reverse: bool,
        operands: Sequence[Tensor],
        results: Sequence[Tensor],
        outer: Sequence[Tensor],
    ) -> None:
        """`n`, `m`: the numbers of carries and rows; `outer`: the tensors from outside that the step reads."""
        self._step, self._n, self._m, self._reverse, self._outer = step, n, m, reverse, outer
        self._smooth = [i for i, t in enumerate(operands) if differentiable(t)]
        self._like = {i: _zeros_of(t) for i, t in enumerate(results) if differentiable(t)}
        self._first_kept = len(results) - n

    def __call__(self, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None]) -> list[Tensor]:
        n, m, smooth, first_kept = self._n, self._m, self._smooth, self._first_kept
        constant, fixed = saved[n + m :], [*(saved[i] for i in smooth if i >= n + m), *self._outer]
        # The last carry and the results always get cotangents (zeros if they have none); the saved carries have some
        # only in a second derivative.
        dy = {i: zeros() if (c := cotangents[i]) is None else c for i, zeros in self._like.items() if i < first_kept}
        dy |= {i: c for i in self._like if i >= first_kept and (c := cotangents[i]) is not None}
        at_carry, at_row = sum(i < n for i in smooth), sum(i < n + m for i in smooth)
        rows = [i for i in dy if i >= n]
        extra = {i - first_kept: k for k, i in enumerate(rows) if i >= first_kept}
        n_rows = len(rows) - len(extra)

        def backward_step(state: Sequence[Tensor], row: Sequence[Tensor], *constant: Tensor) -> list[Tensor]:
            d_carry, sums, d_row = state[:at_carry], state[at_carry:], row[n + m :]
            inputs = [*d_carry, *d_row[:n_rows]]
            gradients = pulled_back(self._step, [*row[: n + m], *constant], inputs, self._outer)
            for slot_index, i in enumerate(i for i in smooth if i < n):
                if i in extra:
                    gradients[slot_index] = gradients[slot_index] + d_row[extra[i]]
            sums_after = [a + b for a, b in zip(sums, gradients[at_row:], strict=True)]
            return [*gradients[:at_carry], *sums_after, *gradients[at_carry:at_row]]

        first = [*(dy[i] for i in self._like if i < n), *map(torch.zeros_like, fixed)]
        scanned = [*saved[: n + m], *(dy[i] for i in rows)]
        gradients = compiled_scan(backward_step, first, scanned, not self._reverse, constant)
        sums, d_xs = gradients[at_carry : len(first)], gradients[len(first) : len(first) + at_row - at_carry]
        return [*gradients[:at_carry], *d_xs, *sums]


def associative_scan(
    original: Callable[..., Any],
    combine_fn: Any,
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """Implement `torch._higher_order_ops.associative_scan` in about log2(n) steps on whole tensors."""
    on_device = _on_device(pytrees.leaves_of(xs))
    return original(combine_fn, xs, dim, reverse, "generic" if on_device else combine_mode)


def _wrapper(replacement: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda original: functools.wraps(original)(functools.partial(replacement, original))


WRAPPERS = {ours.__name__: _wrapper(ours) for ours in (cond, while_loop, scan, associative_scan)}


def _on_device(leaves: Sequence[Any]) -> bool:
    return any(isinstance(t, Tensor) and t.device.type == TYPE for t in leaves)


def _zeros_of(t: Tensor) -> Callable[[], Tensor]:
    return functools.partial(torch.zeros, t.shape, dtype=t.dtype, device=t.device)


def _read(t: Tensor) -> Array:
    state.touch(cell_of(t))
    return to_array(t.detach())
