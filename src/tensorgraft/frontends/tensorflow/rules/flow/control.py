"""Control flow. What is known is decided while the program is read; a loop that is traced stays a loop."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.errors import ShapeError, TracedValueError
from tensorgraft.frontends.tensorflow.branch_residuals import KeptOfBranches, of_side
from tensorgraft.frontends.tensorflow.counted_rows import largest_counts, with_counts, without_counts
from tensorgraft.frontends.tensorflow.graph import FunctionGraph, GraphNode, Shape
from tensorgraft.frontends.tensorflow.loop_carry import LoopCarry, abstractly, traced
from tensorgraft.frontends.tensorflow.planning import plan
from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import failed
from tensorgraft.frontends.tensorflow.trip_count import counted
from tensorgraft.frontends.tensorflow.values import CountedRows, VariableCell, all_the_same, is_known, lifted
from tensorgraft.frontends.tensorflow.written_variables import written_arguments
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

_UNROLLED = 64  # the largest number of steps of a loop whose body needs the value of its counter


def _as_predicate(xp: Backend, x: Any) -> Any:
    """Return a bool, or an array of one where it is traced. Of arrays with axes: whether there are elements."""
    x = x if is_known(x) else lifted(xp, x)
    if is_known(x):
        return bool(np.asarray(x)) if x.ndim == 0 else x.size > 0
    if xp.ndim(x):
        return xp.size(x) > 0
    return (xp.astype(x, dtypes.bool_)) if xp.is_traced(x) else bool(xp.to_numpy(x))


@rule("If", "StatelessIf", either=EVERY, folds=False)
def if_(
    xp: Backend, condition: Any, *operands: Any, then_branch: FunctionGraph, else_branch: FunctionGraph
) -> list[Any]:
    return _branch(xp, _as_predicate(xp, condition), operands, [then_branch], [else_branch])


@rule("Case", "StatelessCase", either=EVERY, folds=False)
def case(xp: Backend, branch: Any, *operands: Any, branches: Sequence[FunctionGraph]) -> list[Any]:
    """Run the branch with the given number, or the last one if the number is out of range."""
    if is_known(branch) or not xp.is_traced(branch):
        number = int(branch if is_known(branch) else xp.to_numpy(branch))
        return plan(branches[number if 0 <= number < len(branches) else -1])(xp, *operands)
    first = list(branches[:1])
    if len(branches) == 1:
        return plan(branches[0])(xp, *operands)
    return _branch(xp, xp.equal(branch, 0), operands, first, list(branches[1:]), xp.subtract(branch, 1))


def _branch(
    xp: Backend,
    predicate: Any,
    operands: Sequence[Any],
    on_true: list[FunctionGraph],
    on_false: list[FunctionGraph],
    number: Any = None,
) -> list[Any]:
    if isinstance(predicate, bool):
        return plan((on_true if predicate else on_false)[0])(xp, *(of_side(x, 0 if predicate else 1) for x in operands))
    writes = sorted(frozenset().union(*(written_arguments(graph) for graph in (*on_true, *on_false))))
    opaque = any(on_true[0].nodes[index].dtypes[k] is None for index, k in on_true[0].outputs)
    branches = [functools.partial(_of_specs, graphs) for graphs in (on_true, on_false)] if opaque else []
    most: dict[int, int] = {}
    common: dict[int, Any] = {}  # results that are one known value
    if _may_be_counted(on_true[0], operands):
        # results whose shapes cannot be computed are not counted, either
        with contextlib.suppress(TracedValueError, ShapeError):
            sides = [functools.partial(_of_specs, graphs) for graphs in (on_true, on_false)]
            with_number = [*operands, np.asarray(0) if number is None else number]
            specs = [abstractly(xp, side, [of_side(x, k) for x in with_number])[1] for k, side in enumerate(sides)]
            most = largest_counts(specs)
            common = {k: x for k, pair in enumerate(zip(*specs, strict=True)) if (x := all_the_same(pair)) is not None}
    residuals = KeptOfBranches(xp, branches, [*operands, np.asarray(0) if number is None else number])
    carries: list[LoopCarry] = []

    def run(side: int) -> Callable[[], list[Array]]:
        def branch() -> list[Array]:
            inner = [of_side(x, side) for x in operands]
            for i in writes:
                inner[i] = VariableCell(operands[i].value, operands[i].name)
            outputs = [_passed(x, inner, operands) for x in _outputs((on_true, on_false)[side], number, xp, inner)]
            outputs = with_counts(xp, outputs, most)
            arrays = residuals.arrays(side, outputs)
            carries.append(LoopCarry(xp, [*residuals.others(outputs), *(inner[i].value for i in writes)]))
            shapes, other_shapes = ([xp.shape(a) for a in c.arrays] for c in (carries[0], carries[-1]))
            if shapes != other_shapes:
                raise TracedValueError(
                    f"the branches of a tf.cond return arrays of the shapes {shapes} and {other_shapes}, and which"
                    " branch runs depends on values that are being traced: call the program without compiling it,"
                    " or return the same shapes"
                )
            return [*carries[-1].arrays, *arrays]

        return branch

    arrays = xp.cond(predicate, run(0), run(1))
    values = carries[0].values(arrays)
    for i, value in zip(writes, values[len(values) - len(writes) :], strict=True):
        operands[i].value = value
    results = without_counts(
        residuals.merged(values[: len(values) - len(writes)], arrays[len(carries[0].arrays) :]), most
    )
    return [common.get(k, x) for k, x in enumerate(results)]


def _may_be_counted(graph: FunctionGraph, operands: Sequence[Any]) -> bool:
    if any(isinstance(x, CountedRows) for x in operands):
        return True
    shapes = [graph.nodes[index].shapes[k] for index, k in graph.outputs if graph.nodes[index].dtypes[k] is not None]
    return any(shape is None or None in shape[:1] for shape in shapes)


def _outputs(graphs: list[FunctionGraph], branch: Any, xp: Backend, operands: list[Any]) -> list[Any]:
    return plan(graphs[0])(xp, *operands) if len(graphs) == 1 else case(xp, branch, *operands, branches=graphs)


def _of_specs(graphs: list[FunctionGraph], abstract: Backend, specs: list[Any]) -> list[Any]:
    *operands, branch = specs
    return _outputs(graphs, branch, abstract, operands)


def _passed(x: Any, values: Sequence[Any], operands: Sequence[Any]) -> Any:
    """Return a result of a branch; for a variable that it returns, the variable outside that is its operand."""
    if isinstance(x, VariableCell):
        return next(outside for x_own, outside in zip(values, operands, strict=True) if x_own is x)
    return x


@rule("While", "StatelessWhile", either=EVERY, folds=False)
def while_(xp: Backend, *operands: Any, cond: FunctionGraph, body: FunctionGraph) -> list[Any]:
    if not traced(xp, operands):
        return _in_steps(xp, list(operands), cond, body)
    count = counted(cond, body, operands)
    if count is not None and not count[0]:
        return list(operands)
    before = {i: operands[i].value for i in written_arguments(body) | written_arguments(cond)}
    try:
        return _as_a_loop(xp, operands, cond, body, count)
    except TracedValueError:
        if count is None or count[0] > _UNROLLED:
            raise
    for i, value in before.items():
        operands[i].value = value
    return _in_steps(xp, list(operands), cond, body)


def _in_steps(xp: Backend, state: list[Any], cond: FunctionGraph, body: FunctionGraph) -> list[Any]:
    goes_on, step = plan(cond), plan(body)
    while True:
        is_true = _as_predicate(xp, goes_on(xp, *state)[0])
        if not isinstance(is_true, bool):
            return _as_a_loop(xp, state, cond, body, None)
        if not is_true:
            return state
        state = step(xp, *state)


def _as_a_loop(
    xp: Backend,
    operands: Sequence[Any],
    cond: FunctionGraph,
    body: FunctionGraph,
    count: tuple[int, dict[int, Any]] | None,
) -> list[Any]:
    steps = None if count is None else count[0]
    moving = [i for i, value in enumerate(body.outputs) if body.argument(value) != i]
    cells = sorted(written_arguments(body) | written_arguments(cond))
    init = LoopCarry.into_loop(xp, operands, moving, lambda abstract, specs: plan(body)(abstract, *specs), steps, cells)

    def loop_values(arrays: Sequence[Array]) -> list[Any]:
        state, values = list(operands), init.values(arrays)
        for i, value in zip(moving, values, strict=False):
            state[i] = value
        for i, value in zip(cells, values[len(moving) :], strict=True):
            state[i] = VariableCell(value, operands[i].name)
        return state

    def step(arrays: Sequence[Array]) -> list[Array]:
        state = loop_values(arrays)
        outputs = plan(body)(xp, *state)
        return init.flatten_like([*(outputs[i] for i in moving), *(state[i].value for i in cells)])

    def goes_on(arrays: Sequence[Array]) -> Array:
        is_true = _as_predicate(xp, plan(cond)(xp, *loop_values(arrays))[0])
        return xp.full((), is_true, dtypes.bool_) if isinstance(is_true, bool) else is_true

    if steps is None:
        arrays = xp.while_loop(goes_on, step, init.arrays)
    else:
        numbers = xp.iota(steps, dtypes.int32)
        arrays = xp.scan(lambda carry, _: (step(carry), ()), init.arrays, (numbers,), length=steps)[0]
    values = init.values(arrays, after=steps)
    out = list(operands)
    for i, value in zip(moving, values, strict=False):
        out[i] = value
    for i, value in zip(cells, values[len(moving) :], strict=True):
        operands[i].value = value
    for i, value in ({} if count is None else count[1]).items():
        out[i] = value
    return out


@rule("For", either=EVERY, folds=False)
def for_(xp: Backend, start: Any, limit: Any, delta: Any, *state: Any, body: FunctionGraph) -> list[Any]:
    """Run a loop over a range, which has to be known."""
    if any(not is_known(x) and xp.is_traced(x) for x in (start, limit, delta)):
        raise TracedValueError("the range of a For loop depends on traced values: use tf.while_loop, which allows that")
    ends = [int(x if is_known(x) else xp.to_numpy(x)) for x in (start, limit, delta)]
    step, values = plan(body), list(state)
    for i in range(*ends):
        values = step(xp, np.asarray(i, np.int32), *values)
    return values


@rule("MapDefun", either=EVERY, folds=False)
def map_defun(xp: Backend, *operands: Any, f: FunctionGraph, Targuments: tuple[Any, ...]) -> list[Any]:
    """Compute a function of each row of the first operands, and of the others."""
    count = len(Targuments)
    rows = tuple(lifted(xp, x) for x in operands[:count])

    def run_row(row: Sequence[Array]) -> list[Array]:
        return [lifted(xp, x) for x in plan(f)(xp, *row, *operands[count:])]

    return list(xp.map(run_row, rows, xp.shape(rows[0])[0]))


@rule("FakeParam", folds=False)
def fake_param(xp: Backend, *, shape: Shape, dtype: np.dtype) -> Array:
    """Return zeros for residuals of a branch that has not run, which are not read."""
    return xp.zeros(tuple(n or 0 for n in shape or ()), dtype)


@rule("EnsureShape")
def ensure_shape(xp: Backend, x: Array, *, shape: Shape, node: GraphNode) -> Array:
    extents = xp.shape(x)
    if shape is not None and (
        len(shape) != len(extents) or any(n not in (None, m) for n, m in zip(shape, extents, strict=True))
    ):
        failed(node, [np.zeros(extents, node.dtypes[0])])
    return x


@rule("CheckNumerics", "CheckNumericsV2")
def check_numerics(xp: Backend, x: Array, *, node: GraphNode) -> Array:
    """Check that numbers are finite. Traced ones are not checked, as in programs that TensorFlow compiles with XLA."""
    if not xp.is_traced(x) and not bool(xp.to_numpy(xp.all(xp.isfinite(x)))):
        failed(node, [xp.to_numpy(x)])
    return x


@rule("PlaceholderWithDefault")
def handed_on(xp: Backend, x: Array) -> Array:
    return x


@rule("DeepCopy", "Copy", "CopyHost")
def copied(xp: Backend, x: Array) -> Array:
    return lifted(xp, x)
