"""Statements that gather, scatter, slice and sort, with every mode for indices that are out of range."""

from __future__ import annotations

from tests.fuzz.kinds.jax.drawing import FULL, STATEMENTS, templates

_ROWS = (
    "lax.GatherDimensionNumbers(offset_dims=tuple(range(1, {n}.ndim)), collapsed_slice_dims=(0,), start_index_map=(0,))"
)
_INTO = "lax.ScatterDimensionNumbers(update_window_dims=tuple(range(1, {n}.ndim)), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))"

SCATTERED = templates(
    "fiubc", FULL,
    *(f"{{n}}.at[jnp.array([0, 7, -9])].{op}({{c}}, mode='{mode}')" for op in ("set", "add", "multiply", "max") for mode in ("drop", "clip", "fill")),
    "{n}.at[jnp.array([0])].set({c}, mode='promise_in_bounds', unique_indices=True, indices_are_sorted=True)",
    "{n}.at[jnp.array([5, -1])].get(mode='fill')", "{n}.at[jnp.array([5, -1])].get(mode='clip')",
    "{n}.at[jnp.array([0, 0])].divide(2)", "{n}.at[jnp.array([0, -1])].power(2)", "{n}.at[jnp.array([0, 9])].min({c})",
    "{n}.at[jnp.array([0, -1])].add(jnp.stack([{m}[0], {m}[-1]]))", "{n}.at[::2].set({m}[::2])", "{n}.at[..., -1].max({c})",
    "{n}.at[jnp.array([0, 1]), ..., jnp.array([1, 0])].set({c}) if {n}.ndim > 1 else {n}",
    "{n}.at[jnp.zeros((2, 1), int)].add({c})",
    f"lax.scatter({{n}}, jnp.array([[0], [9]]), jnp.stack([{{m}}[0], {{m}}[-1]]), {_INTO})",
    f"lax.scatter_add({{n}}, jnp.array([[0], [0]]), jnp.stack([{{m}}[0], {{m}}[-1]]), {_INTO}, mode='clip')",
    f"lax.scatter_max({{n}}, jnp.array([[-1], [0]]), jnp.stack([{{m}}[0], {{m}}[-1]]), {_INTO}, mode='drop')",
    f"lax.scatter_mul({{n}}, jnp.array([[1], [0]]), jnp.stack([{{m}}[0], {{m}}[-1]]), {_INTO}, mode='fill')",
    f"lax.gather({{n}}, jnp.array([[0], [8]]), {_ROWS}, (1, *{{n}}.shape[1:]), mode='clip')",
    f"lax.gather({{n}}, jnp.array([[0], [8], [-1]]), {_ROWS}, (1, *{{n}}.shape[1:]), mode='fill')",
    "jnp.put_along_axis({n}, jnp.zeros_like({n}, int), {c}, axis={a}, inplace=False)",
    "jax.ops.segment_prod({n}, jnp.array([0, 5, -1, 0, 1])[:{n}.shape[0]], 2)",
    "jax.ops.segment_min({n}, jnp.arange({n}.shape[0]) // 2, indices_are_sorted=True, num_segments=3)",
)  # fmt: skip
GATHERED = templates(
    "fiubc", FULL,
    "{n}[jnp.array([0, 1]), ..., jnp.array([1, 0])] if {n}.ndim > 1 else {n}",
    "{n}[jnp.ix_(jnp.array([0, 0]), jnp.array([1, 0]))] if {n}.ndim == 2 else {n}",
    "{n}[:, jnp.array([0, 1])] if {n}.ndim > 1 else {n}[jnp.array([0, 1])]",
    "{n}[jnp.array([[0], [-1]]), None]", "{n}[np.array([True] + [False] * ({n}.shape[0] - 1))]", "{n}[jnp.array(0), ...]",
    "{n}[jnp.argsort({m}, axis=0)[0].ravel()[0]]", "{n}[-1:0:-1]", "{n}[..., ::-2]", "{n}[jnp.uint8(200) % {n}.shape[0]]",
    "lax.dynamic_slice({n}, (jnp.array(9), ) + (0,) * ({n}.ndim - 1), (1, *{n}.shape[1:]))",
    "lax.dynamic_slice({n}, (jnp.int8(-1),) * {n}.ndim, (1,) * {n}.ndim)",
    "lax.dynamic_update_index_in_dim({n}, {n}[0], {k}, 0)",
    "lax.slice({n}, (0,) * {n}.ndim, {n}.shape, (2,) * {n}.ndim)", "lax.split({n}, (1, {n}.shape[0] - 1), 0)[1]",
    "jnp.take({n}, jnp.array([[0, 7]]), axis={a}, mode='fill', fill_value=1)", "jnp.take({n}, 1)", "jnp.choose(jnp.zeros({n}.shape, int), [{n}, {m}], mode='clip')",
    "jnp.compress(np.array([True, False]), {n}, axis=0)", "jnp.squeeze({n}[:1], 0)", "lax.index_take({n}, (jnp.array([0, 0]),), (0,))",
    "jnp.tril_indices(3)[0][{k}] + {n}", "jnp.resize({n}, (3, 2))", "lax.collapse({n}, 0)", "jnp.unstack({n})[0]",
    "lax.broadcast_in_dim({n}, (2, *{n}.shape), tuple(range(1, {n}.ndim + 1)))", "lax.concatenate([{n}, {m}], 0)", "lax.transpose({n}, tuple(range({n}.ndim))[::-1])",
)  # fmt: skip
SORTED = templates(
    "fiu", FULL,
    "lax.sort(({n}, {m}), dimension=0, num_keys=2)[1]", "lax.sort(({n}, jnp.arange({n}.size).reshape({n}.shape)), dimension=0, num_keys=1)[1]",
    "lax.top_k({n}, 1)[0]", "jnp.argwhere({n} > {c}, size=3)", "jnp.where({n} > {c}, size=2, fill_value=-1)[0]", "jnp.flatnonzero({n}, size=3)",
    "jnp.partition({n}, 0, axis={a})[..., :1]", "jnp.unique({n}, size=4, return_counts=True)[1]", "jnp.unique({n}, size=4, return_inverse=True, fill_value=0)[1]",
    "jnp.setdiff1d({n}.ravel(), {m}.ravel(), size=3)", "jnp.union1d({n}.ravel(), {m}.ravel(), size=5)", "jnp.intersect1d({n}.ravel(), {m}.ravel(), size=3)",
    "jnp.sort({n}, axis={a}, descending=True)", "jnp.argsort({n}, axis={a}, descending=True)", "jnp.argsort({n}, axis={a}, stable=False)[..., :1] * 0", "jnp.nanargmax({n}, axis={a})",
    "jnp.searchsorted(jnp.sort({n}.ravel()), {m}.ravel(), side='right', method='sort')", "jnp.searchsorted(jnp.sort({n}.ravel()), {m}.ravel(), method='compare_all')",
    "jnp.percentile({n}, jnp.array([10.0, 60.0]), axis={a})", "jnp.quantile({n} * 1.0, 0.5, method='nearest')", "jnp.nanmedian({n}, axis={a})", "jnp.maximum.accumulate({n}, axis={a})",
    "lax.reduce(({n}, {m}), ({n}.dtype.type(0), {m}.dtype.type(1)), lambda p, q: (p[0] + q[0], p[1] * q[1]), (0,))[1]",
    "lax.reduce({n}, {n}.dtype.type(1), lambda p, q: p * q, (0,))", "lax.reduce_and({n} > 0, (0,))", "lax.cumsum({n}, axis=0, reverse=True)", "lax.cumprod({n}, axis=0)", "lax.cummin({n}, axis=0, reverse=True)",
    "lax.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), ({n}, {m}))[1]", "jnp.add.at({n}, jnp.array([0, 0]), {c}, inplace=False)", "jnp.add.reduceat({n}, jnp.array([0, {n}.shape[0] - 1]))", "jnp.multiply.outer({n}, {m})",
)  # fmt: skip

STATEMENTS += [(1.5, SCATTERED), (1.2, GATHERED), (1.2, SORTED)]
