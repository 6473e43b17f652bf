"""Control flow, and primitives that say something about a value and compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree
from jax.extend import core

from tensorgraft.frontends.jax.evaluate import evaluator
from tensorgraft.frontends.jax.keys import Keys, is_key_dtype
from tensorgraft.frontends.jax.rule import rule, without_rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


def _flat(values: Sequence[Any]) -> tuple[list[Array], Any]:
    """Return the arrays in values, words of keys among them, and how to put them together."""
    return optree.tree_flatten(list(values), namespace="tensorgraft.jax")  # type: ignore[arg-type]


@rule("while")
def while_(
    xp: Backend,
    *operands: Array,
    cond_nconsts: int,
    cond_jaxpr: core.ClosedJaxpr,
    body_nconsts: int,
    body_jaxpr: core.ClosedJaxpr,
    **_: Any,
) -> list[Array]:
    """Run a loop. A batched loop may have a condition for each element: it continues while one is true, and updates
    only elements whose condition is true."""
    split = cond_nconsts + body_nconsts
    condition_consts, used, init = operands[:cond_nconsts], operands[cond_nconsts:split], operands[split:]
    condition, body = evaluator(xp, cond_jaxpr), evaluator(xp, body_jaxpr)
    leaves, tree = _flat(init)
    batch = cond_jaxpr.out_avals[0].shape

    def goes_on(state: list[Array]) -> Array:
        return condition(*condition_consts, *optree.tree_unflatten(tree, state))[0]

    def step(state: list[Array]) -> list[Array]:
        new_state = _flat(body(*used, *optree.tree_unflatten(tree, state)))[0]
        if not batch:
            return new_state
        active = goes_on(state)
        masks = [xp.reshape(active, (*batch, *[1] * (xp.ndim(x) - len(batch)))) for x in state]
        return [xp.where(on, new, old) for on, new, old in zip(masks, new_state, state, strict=True)]

    end = xp.while_loop((lambda state: xp.any(goes_on(state))) if batch else goes_on, step, leaves)
    return list(optree.tree_unflatten(tree, end))


@rule("cond")
def cond(xp: Backend, index: Array, *operands: Array, branches: Sequence[core.ClosedJaxpr], **_: Any) -> list[Array]:
    """Run the branch with the given number, clipped to the existing ones; it is found by bisection."""
    trees: list[Any] = []

    def branch(i: int) -> Callable[[], list[Array]]:
        def run() -> list[Array]:
            leaves, tree = _flat(evaluator(xp, branches[i])(*operands))
            trees.append(tree)
            return leaves

        return run

    def branch_among(first: int, last: int) -> list[Array]:
        if last - first == 1:
            return branch(first)()
        middle = (first + last) // 2
        is_late = index if dtypes.is_bool(xp.dtype_of(index)) else xp.greater_equal(index, middle)
        return xp.cond(is_late, lambda: branch_among(middle, last), lambda: branch_among(first, middle))

    leaves = branch_among(0, len(branches))
    return list(optree.tree_unflatten(trees[0], leaves))


@rule("scan")
def scan(
    xp: Backend,
    *operands: Array,
    jaxpr: core.ClosedJaxpr,
    length: int,
    reverse: bool,
    num_consts: int,
    num_carry: int,
    **_: Any,
) -> list[Array]:
    split = num_consts + num_carry
    used = operands[:num_consts]
    if not any(isinstance(x, Keys) for x in operands) and not any(is_key_dtype(a.dtype) for a in jaxpr.out_avals):
        evaluate_body = evaluator(xp, jaxpr)

        def plain(carry: Sequence[Array], x: Sequence[Array]) -> tuple[list[Array], list[Array]]:
            outputs = evaluate_body(*used, *carry, *x)
            return outputs[:num_carry], outputs[num_carry:]

        init, xs = list(operands[num_consts:split]), list(operands[split:])
        carry, ys = xp.scan(plain, init, xs, length=length, reverse=reverse)
        return [*carry, *ys]
    init, carry_tree = _flat(operands[num_consts:split])
    xs, x_tree = _flat(operands[split:])
    step = evaluator(xp, jaxpr)
    y_trees: list[Any] = []

    def body(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
        outputs = step(*used, *optree.tree_unflatten(carry_tree, carry), *optree.tree_unflatten(x_tree, x))
        ys, y_tree = _flat(outputs[num_carry:])
        y_trees.append(y_tree)
        return _flat(outputs[:num_carry])[0], ys

    carry, ys = xp.scan(body, init, xs, length=length, reverse=reverse)
    return [*optree.tree_unflatten(carry_tree, carry), *optree.tree_unflatten(y_trees[0], ys)]


# ---- annotations -----------------------------------------------------------------------------------------------------


@rule(
    *("stop_gradient", "copy", "copy_p", "name", "optimization_barrier_single", "sharding_constraint"),
    *("layout_constraint", "with_memory_space_constraint", "pvary", "reshard", "preduced", "xla_metadata_value"),
    *("vary_unreduced_cast_p", "reduced_vary_cast_p"),
)
def identity(xp: Backend, x: Array, **_: Any) -> Array:
    return x


@rule("device_put", "optimization_barrier", "pin", "unpin", "shard_alike")
def identities(xp: Backend, *operands: Array, **_: Any) -> list[Array]:
    return list(operands)


@rule("tie")
def tie(xp: Backend, x: Array, y: Array, **_: Any) -> Array:
    """Return `y` as a value that is not computed before `x`."""
    return y


@rule("create_token", "after_all")
def token(xp: Backend, *operands: Array, **_: Any) -> Array:
    """Return a token, which orders effects in JAX; it is empty, since effects are in order here."""
    return xp.zeros((0,), dtypes.bool_)


@rule("inspect_sharding", "dce_sink")
def no_results(xp: Backend, *operands: Array, **_: Any) -> list[Array]:
    return []


@rule("platform_index")
def platform_index(xp: Backend, *, platforms: Sequence[tuple[str, ...] | None], **_: Any) -> Array:
    """Return the index of the branch for the platform: that for the CPU, whose primitives every backend has."""
    index = next(i for i, names in enumerate(platforms) if names is None or "cpu" in names)
    return xp.full((), index, dtypes.int32)


_BETWEEN_DEVICES = (
    "communication between devices is for programs that run on several; evaluate what one of them computes"
)


def _collective(reduction: str) -> Callable[..., Any]:
    """Compute a collective over numbered axes as a reduction: under `vmap`, the named axis of a collective has become a
    numbered one."""

    def run(xp: Backend, x: Array, *, axes: Sequence[Any], axis_index_groups: Any = None, **_: Any) -> Array:
        if axis_index_groups is not None or not all(isinstance(axis, int) for axis in axes):
            raise NotImplementedError(f"p{reduction} over {axes} has no rule here: {_BETWEEN_DEVICES}")
        return getattr(xp, reduction)(x, axis=tuple(axes))

    return run


for _reduction in ("sum", "max", "min"):
    rule(f"p{_reduction}")(_collective(_reduction))

without_rule(
    _BETWEEN_DEVICES,
    *("all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all", "axis_index"),
    *("ppermute", "psum_invariant", "ragged_all_to_all", "reduce_scatter", "unreduced_psum", "psend"),
    *(
        "unreduced_pmax",
        "unreduced_pmin",
        "pbroadcast_dynamic",
        "unreduced_reduce_scatter",
        "precv",
        "pbroadcast",
        "shard_map",
        "pgather",
        "core_map",
    ),
    *[
        f"{name}_{end}"
        for end in ("start", "done")
        for name in (
            *("all_gather", "all_gather_reduced", "all_to_all", "pbroadcast", "ppermute", "psum", "psum_invariant"),
            *("reduce_scatter", "unreduced_psum", "unreduced_reduce_scatter"),
        )
    ],
)
without_rule(
    "arrays that are written become results before a program is planned; one that is an argument of the whole program"
    " cannot: pass an array, and return what it becomes",
    *("get", "swap", "addupdate", "accum_grad_in_ref", "new_ref", "empty_ref", "freeze", "free_ref", "get_global"),
)
without_rule(
    "shapes are numbers here: trace the function with the shapes of its arguments",
    *("dimension_size", "shape_assertion"),
)
without_rule("it is a part of a Pallas kernel, which is written for one kind of device", "pallas_call", "mpmd_map")
without_rule(
    "it stands for what no evaluation reaches",
    *("create_linear", "unreachable", "stage", "delay", "custom_jvp_call_jaxpr"),
)
without_rule("arrays of this kind are JAX's own, and are taken apart while it traces", "to_edtype", "from_edtype")
without_rule(
    "types of JAX's experimental hijax are not arrays",
    *("box_get", "box_set", "new_box", "log_extend", "log_read", "new_log"),
    "call_hi_primitive_linearized",
)
