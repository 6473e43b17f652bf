"""Variables."""

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
