"""Rules for branches and loops, sequences and optionals.

Where the backend computes at once, Python chooses and repeats, and results may have shapes that depend on values. In a
trace a branch is the backend's `cond`, and a loop its `scan` or `while_loop`, unless it is short and of known length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.errors import ShapeError
from tensorgraft.frontends.onnx.element_types import dtype_of
from tensorgraft.frontends.onnx.rule import rule, rules_of
from tensorgraft.frontends.onnx.rules.shape import ints
from tensorgraft.frontends.onnx.values import is_known, lifted, to_host

UNROLLED = 32  # turns: shorter loops of known length are written out in a trace


def _value(xp: Any, x: Any) -> Any:
    """Return the value of an array of one element, or None if it is being traced."""
    if x is None or is_known(x):
        return None if x is None else np.reshape(x, ()).item()
    return None if xp.is_traced(x) else np.reshape(xp.to_numpy(x), ()).item()


@rule("If")
def if_(xp: Any, condition: Any, *, then_branch: Any, else_branch: Any) -> Any:
    chosen = _value(xp, condition)
    if chosen is not None:
        return (then_branch if chosen else else_branch)(xp)
    taken, other = (lambda b=b: [lifted(xp, x) for x in b(xp)] for b in (then_branch, else_branch))
    return list(xp.cond(xp.reshape(condition, ()), taken, other))


@rule("Loop", known=("trips",))
def loop(xp: Any, trips: Any, condition: Any = None, *carried: Any, body: Any) -> Any:
    most = None if trips is None else int(np.reshape(trips, ()))
    if condition is not None and _value(xp, condition) is False:
        most = 0
    count, states = len(carried), list(carried)
    collected: list[list[Any]] = [[] for _ in range(body.outputs - 1 - count)]
    turn, running = 0, condition
    while most is None or turn < most:
        is_running = True if running is None else _value(xp, running)
        if is_running is None or (
            most is not None and most - turn > UNROLLED and any(map(xp.is_traced, _arrays(xp, states)))
        ):
            return _traced_turns(xp, most, turn, running, states, collected, body, count)
        if not is_running:
            break
        before = np.asarray(True) if running is None else running
        running, *results = body(xp, np.asarray(turn, np.int64), before, *states, turn=np.asarray(turn, np.int64))
        states = results[:count]
        for row, x in zip(collected, results[count:], strict=True):
            row.append(x)
        turn += 1
    return [*states, *(_stacked(xp, rows) for rows in collected)]


def _arrays(xp: Any, values: Sequence[Any]) -> list[Any]:
    return [x for v in values for x in (v if isinstance(v, tuple) else (v,)) if xp.is_array(x)]


def _stacked(xp: Any, rows: list[Any]) -> Any:
    if not rows:
        return np.zeros((0,), np.float32)
    return xp.stack([lifted(xp, x) for x in rows], axis=0)


def _traced_turns(
    xp: Any, most: int | None, first: int, running: Any, states: list[Any], collected: list[list[Any]], body: Any,
    count: int,
) -> list[Any]:  # fmt: skip
    """Run the turns that are left as one loop of the backend."""
    if any(isinstance(x, tuple) or x is None for x in states):
        raise ShapeError("a Loop that carries sequences runs as often as values say that are being traced")
    init = tuple(lifted(xp, x) for x in states)
    start = lifted(xp, np.asarray(first, np.int64))
    if collected or most is not None:
        return _scanned(xp, most, first, running, init, start, collected, body, count)

    def again(state: Any) -> Any:
        return xp.reshape(state[1], ())

    def step(state: Any) -> Any:
        turn, go, *values = state
        goes_on, *results = body(xp, turn, go, *values, turn=turn)
        return (xp.add(turn, 1), xp.reshape(lifted(xp, goes_on), ()), *(lifted(xp, x) for x in results))

    go = xp.reshape(lifted(xp, np.asarray(True) if running is None else running), ())
    return list(xp.while_loop(again, step, (start, go, *init)))[2:]


def _scanned(
    xp: Any, most: int | None, first: int, running: Any, init: tuple[Any, ...], start: Any,
    collected: list[list[Any]], body: Any, count: int,
) -> list[Any]:  # fmt: skip
    if most is None:
        raise ShapeError("a Loop with results of each turn runs as often as values say that are being traced")
    left = most - first
    stops: list[bool] = []

    def step(state: Any, _: Any) -> Any:
        turn, go, *values = state
        goes_on, *results = body(xp, turn, go, *values, turn=turn)
        always = is_known(goes_on) and bool(np.reshape(goes_on, ()))
        stops.append(not always)
        after = xp.reshape(lifted(xp, goes_on), ())
        new = [lifted(xp, x) for x in results[:count]]
        if not always:
            new = [xp.where(go, a, b) for a, b in zip(new, values, strict=True)]
            after = xp.logical_and(go, after)
        return (xp.add(turn, 1), after, *new), tuple(lifted(xp, x) for x in results[count:])

    go = xp.reshape(lifted(xp, np.asarray(True) if running is None else running), ())
    (_, _, *states), rows = xp.scan(step, (start, go, *init), None, length=left)
    if collected and (any(stops) or not (running is None or is_known(running))):
        raise ShapeError("a Loop with results of each turn ends where values say that are being traced")
    whole = []
    for before, later in zip(collected, rows, strict=True):
        head = [xp.stack([lifted(xp, x) for x in before], axis=0)] if before else []
        whole.append(xp.concat([*head, later], axis=0) if head else later)
    return [*states, *whole]


@rule("Scan")
def scan(
    xp: Any, *values: Any, body: Any, num_scan_inputs: int, directions: tuple[int, ...] = (),
    scan_input_axes: tuple[int, ...] = (), scan_input_directions: tuple[int, ...] = (),
    scan_output_axes: tuple[int, ...] = (), scan_output_directions: tuple[int, ...] = (), opset: int,
) -> Any:  # fmt: skip
    if opset < 9:
        return _batched_scan(xp, values, body, num_scan_inputs, directions)
    count = len(values) - num_scan_inputs
    states, rows = values[:count], list(values[count:])
    axes = scan_input_axes or (0,) * len(rows)
    backwards = scan_input_directions or (0,) * len(rows)
    rows = [xp.moveaxis(x, a % len(x.shape), 0) for x, a in zip(rows, axes, strict=True)]
    rows = [xp.flip(x, (0,)) if back else x for x, back in zip(rows, backwards, strict=True)]
    final, outputs = _scan(xp, states, rows, body)
    if scan_output_directions:
        outputs = [xp.flip(y, (0,)) if back else y for y, back in zip(outputs, scan_output_directions, strict=True)]
    if scan_output_axes:
        outputs = [xp.moveaxis(y, 0, a % len(y.shape)) for y, a in zip(outputs, scan_output_axes, strict=True)]
    return [*final, *outputs]


def _scan(xp: Any, states: Sequence[Any], rows: Sequence[Any], body: Any) -> tuple[list[Any], list[Any]]:
    def step(carry: Any, xs: Any) -> Any:
        turn, *values = carry
        results = [lifted(xp, x) for x in body(xp, *values, *xs, turn=turn)]
        return (xp.add(turn, 1), *results[: len(states)]), tuple(results[len(states) :])

    start = lifted(xp, np.asarray(0, np.int64))
    length = rows[0].shape[0]
    (_, *final), outputs = xp.scan(step, (start, *(lifted(xp, x) for x in states)), tuple(rows), length=length)
    return final, list(outputs)


def _batched_scan(xp: Any, values: Sequence[Any], body: Any, inputs: int, directions: tuple[int, ...]) -> list[Any]:
    """Opset 8: the first input has the lengths, and all others have a batch."""
    lengths, *rest = values
    count = len(rest) - inputs
    batch = rest[0].shape[0]
    results: list[list[Any]] = []
    for i in range(batch):
        row = [xp.squeeze(xp.take_slice(x, 0, i, i + 1), 0) for x in rest]
        xs = row[count:]
        if lengths is not None:
            n = int(np.reshape(to_host(xp, lengths), -1)[i])
            xs = [xp.take_slice(x, 0, 0, n) for x in xs]
        xs = [xp.flip(x, (0,)) if d else x for x, d in zip(xs, directions or (0,) * inputs, strict=True)]
        states, outputs = _scan(xp, row[:count], xs, body)
        results.append([*states, *outputs])
    return [xp.stack(list(column), axis=0) for column in zip(*results, strict=True)]


# ---- sequences -------------------------------------------------------------------------------------------------------


def _place(sequence: Sequence[Any], position: Any, last: int) -> int:
    at = last if position is None else int(np.reshape(position, ()))
    if not -len(sequence) <= at <= last:
        raise IndexError(f"position {at} of a sequence of {len(sequence)}")
    return at + len(sequence) if at < 0 else at


rules_of({
    "SequenceConstruct": lambda xp, *inputs: inputs,
    "SequenceLength": lambda xp, sequence: np.asarray(len(sequence), np.int64),
    "Optional": lambda xp, x=None: x,
    "OptionalHasElement": lambda xp, x=None: np.asarray(x is not None),
})  # fmt: skip


@rule("SequenceEmpty")
def sequence_empty(xp: Any, *, dtype: int = 1) -> Any:
    dtype_of(dtype)  # raises for a type that there is not
    return ()


@rule("SequenceAt", known=("position",))
def sequence_at(xp: Any, sequence: Any, position: Any) -> Any:
    return sequence[_place(sequence, position, len(sequence) - 1)]


@rule("SplitToSequence", known=("split",))
def split_to_sequence(xp: Any, x: Any, split: Any = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    n = x.shape[axis]
    size = 1 if split is None else int(np.ravel(split)[0])
    sizes = ints(split) if np.ndim(split) else [min(size, n - i) for i in range(0, n, size)]
    parts = tuple(xp.split(x, sizes, axis % len(x.shape)))
    return parts if keepdims or split is not None else tuple(xp.squeeze(p, axis) for p in parts)


@rule("SequenceInsert", known=("position",))
def sequence_insert(xp: Any, sequence: Any, tensor: Any, position: Any = None) -> Any:
    at = _place(sequence, position, len(sequence))
    return (*sequence[:at], tensor, *sequence[at:])


@rule("SequenceErase", known=("position",))
def sequence_erase(xp: Any, sequence: Any, position: Any = None) -> Any:
    at = _place(sequence, position, len(sequence) - 1)
    return (*sequence[:at], *sequence[at + 1 :])


@rule("ConcatFromSequence")
def concat_from_sequence(xp: Any, sequence: Any, *, axis: int, new_axis: int = 0) -> Any:
    parts = list(sequence)
    if new_axis:
        return xp.stack(parts, axis=axis % (len(parts[0].shape) + 1))
    return xp.concat(parts, axis=axis % len(parts[0].shape))


@rule("OptionalGetElement")
def optional_get_element(xp: Any, x: Any) -> Any:
    if x is None:
        raise ValueError("an optional without a value")
    return x
