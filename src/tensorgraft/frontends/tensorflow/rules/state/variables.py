"""Variables, and the optimizers that TensorFlow has as operations."""

from __future__ import annotations

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import FailedCheckError
from tensorgraft.frontends.tensorflow.values import VariableCell
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


@rule("ReadVariableOp", folds=False)
def read_variable(xp: Backend, cell: VariableCell) -> Array:
    return cell.value


@rule("AssignVariableOp", writes=True)
def assign_variable(xp: Backend, cell: VariableCell, value: Array) -> list[Array]:
    cell.value = value
    return []


@rule("AssignAddVariableOp", writes=True)
def assign_add_variable(xp: Backend, cell: VariableCell, value: Array) -> list[Array]:
    cell.value = xp.add(cell.value, value)
    return []


@rule("AssignSubVariableOp", writes=True)
def assign_sub_variable(xp: Backend, cell: VariableCell, value: Array) -> list[Array]:
    cell.value = xp.subtract(cell.value, value)
    return []


@rule("ResourceCountUpTo", writes=True)
def count_up_to(xp: Backend, cell: VariableCell, *, limit: int) -> Array:
    """Add 1, and return the value before. A limit that is reached is not noticed in a trace."""
    before = cell.value
    if not xp.is_traced(before) and int(xp.to_numpy(before)) >= limit:
        raise FailedCheckError(f"Reached limit of {limit}")
    cell.value = xp.add(before, 1)
    return before


@rule("VarIsInitializedOp", folds=False)
def var_is_initialized(xp: Backend, cell: VariableCell) -> Array:
    return xp.full((), True, xp.dtype_of(xp.equal(cell.value, cell.value)))


@rule("ResourceApplyGradientDescent", writes=True)
def gradient_descent(xp: Backend, cell: VariableCell, rate: Array, d: Array) -> list[Array]:
    cell.value = xp.subtract(cell.value, xp.multiply(d, rate))
    return []


@rule("ResourceApplyMomentum", writes=True)
def momentum_step(
    xp: Backend,
    cell: VariableCell,
    moment: VariableCell,
    rate: Array,
    d: Array,
    momentum: Array,
    *,
    use_nesterov: bool = False,
) -> list[Array]:
    moment.value = xp.add(xp.multiply(moment.value, momentum), d)
    if use_nesterov:
        step = xp.add(xp.multiply(d, rate), xp.multiply(xp.multiply(moment.value, momentum), rate))
    else:
        step = xp.multiply(moment.value, rate)
    cell.value = xp.subtract(cell.value, step)
    return []


@rule("ResourceApplyKerasMomentum", writes=True)
def keras_momentum_step(
    xp: Backend,
    cell: VariableCell,
    moment: VariableCell,
    rate: Array,
    d: Array,
    momentum: Array,
    *,
    use_nesterov: bool = False,
) -> list[Array]:
    moment.value = xp.subtract(xp.multiply(moment.value, momentum), xp.multiply(d, rate))
    step = moment.value
    if use_nesterov:
        step = xp.subtract(xp.multiply(moment.value, momentum), xp.multiply(d, rate))
    cell.value = xp.add(cell.value, step)
    return []


@rule("ResourceApplyAdam", writes=True)
def adam(
    xp: Backend,
    cell: VariableCell,
    first: VariableCell,
    second: VariableCell,
    beta1_power: Array,
    beta2_power: Array,
    rate: Array,
    beta1: Array,
    beta2: Array,
    epsilon: Array,
    d: Array,
    *,
    use_nesterov: bool = False,
) -> list[Array]:
    scale = xp.divide(xp.multiply(rate, xp.sqrt(xp.subtract(1, beta2_power))), xp.subtract(1, beta1_power))
    left = xp.subtract(1, beta1)
    first.value = xp.add(first.value, xp.multiply(xp.subtract(d, first.value), left))
    second.value = xp.add(second.value, xp.multiply(xp.subtract(xp.square(d), second.value), xp.subtract(1, beta2)))
    moment = first.value
    if use_nesterov:
        moment = xp.add(xp.multiply(moment, beta1), xp.multiply(d, left))
    step = xp.divide(xp.multiply(moment, scale), xp.add(xp.sqrt(second.value), epsilon))
    cell.value = xp.subtract(cell.value, step)
    return []


@rule("ResourceApplyRMSProp", writes=True)
def rms_prop(
    xp: Backend,
    cell: VariableCell,
    squares: VariableCell,
    moment: VariableCell,
    rate: Array,
    rho: Array,
    momentum: Array,
    epsilon: Array,
    d: Array,
) -> list[Array]:
    squares.value = xp.add(squares.value, xp.multiply(xp.subtract(xp.square(d), squares.value), xp.subtract(1, rho)))
    step = xp.divide(xp.multiply(d, rate), xp.sqrt(xp.add(squares.value, epsilon)))
    moment.value = xp.add(xp.multiply(moment.value, momentum), step)
    cell.value = xp.subtract(cell.value, moment.value)
    return []


@rule("ResourceApplyAdagradV2", writes=True)
def adagrad(
    xp: Backend,
    cell: VariableCell,
    squares: VariableCell,
    rate: Array,
    epsilon: Array,
    d: Array,
    *,
    update_slots: bool = True,
) -> list[Array]:
    if update_slots:
        squares.value = xp.add(squares.value, xp.square(d))
    cell.value = xp.subtract(cell.value, xp.divide(xp.multiply(d, rate), xp.add(xp.sqrt(squares.value), epsilon)))
    return []
