"""Statements of one call: elementwise functions, reductions, moves, products, and what is made of nothing."""

from __future__ import annotations

import numpy as np
from tests.fuzz.kinds.jax.drawing import (
    ANY,
    FULL,
    MATRIX,
    SQUARE,
    STATEMENTS,
    Drawing,
    broadcasts,
    kind,
    statement,
    templates,
)

import jax.numpy as jnp

UNARY = templates(
    "f", ANY,
    *(f"jnp.{f}({{n}})" for f in ["sin", "cos", "tan", "tanh", "exp", "log1p", "sqrt", "arctan", "arcsinh", "floor", "ceil", "rint", "square", "sign", "abs", "expm1", "exp2", "cbrt", "isfinite", "trunc", "reciprocal", "sinc", "deg2rad", "i0", "spacing", "frexp"] if f not in ("frexp", "spacing")),
    *(f"jax.nn.{f}({{n}})" for f in ["relu", "gelu", "sigmoid", "softplus", "silu", "elu", "leaky_relu", "log_sigmoid", "relu6", "celu", "selu", "hard_tanh", "soft_sign", "mish"]),
    *(f"lax.{f}({{n}})" for f in ["erf", "erf_inv", "lgamma", "digamma", "rsqrt", "logistic", "is_finite", "neg"]),
    "jax.scipy.special.erfc({n})", "jax.scipy.special.gammaln({n})", "jax.scipy.special.xlogy({n}, {n})", "lax.reduce_precision({n}, 5, 7)", "jnp.nan_to_num({n} / 0)", "jnp.frexp({n})[0]", "jnp.modf({n})[0]",
)  # fmt: skip


INTEGERS = templates(
    "iu", ANY, "{n} + {c}", "{n} // {c}", "{n} % {c}", "{n} << {k}", "{n} >> {k}", "~{n}", "lax.population_count({n})", "lax.clz({n})", "jnp.abs({n})", "-{n}", "lax.shift_right_logical({n}, {n}.dtype.type({k}))", "{n} ** 2", "{n} / {c}", "jnp.sqrt({n})", "{n} // ({n} | 1)", "{n} % ({n} | 1)", "jnp.bitwise_count({n})", "jnp.gcd({n}, {n}.dtype.type(6))", "lax.rem({n}, {n} | 1)", "lax.div({n}, {n} | 1)", "jnp.unpackbits({n}.astype(jnp.uint8), axis=None)", "{n} > {c}",
)  # fmt: skip


CONVERTED = templates("fiubc", lambda x: True, "{n}.astype(jnp.{t})", "lax.convert_element_type({n}, jnp.{t})", "jnp.asarray({n}, jnp.{t})", "({n} * 1).astype(jnp.{t})", "{n}.view({n}.dtype)")  # fmt: skip


BITS = templates("iu", lambda x: np.dtype(x.dtype).itemsize in (1, 2, 4), "lax.bitcast_convert_type(jnp.nan_to_num({n}), jnp.uint8)", "lax.bitcast_convert_type(jnp.nan_to_num({n}), {{1: jnp.int8, 2: jnp.int16, 4: jnp.int32}}[{n}.dtype.itemsize])")  # fmt: skip


REDUCED = templates(
    "fiu", FULL, *(f"jnp.{f}({{n}}, axis={{a}})" for f in ["sum", "max", "min", "prod", "argmax", "argmin", "cumsum", "cumprod", "mean", "var", "std", "median", "ptp", "sort", "argsort", "any", "all", "flip", "count_nonzero", "nansum", "nanmax", "nanmean", "cummax"] if hasattr(jnp, f)),
    "{n}.sum()", "{n}.max(keepdims=True)", "jnp.mean({n}, {a}, keepdims=True)", "jax.nn.logsumexp({n}, axis={a})", "jax.nn.softmax({n}, {a})", "jax.nn.log_softmax({n}, {a})", "jnp.linalg.norm({n}.ravel())", "jnp.quantile({n}, 0.3, axis={a})",
    "lax.cummax({n}, axis={n}.ndim - 1)", "lax.cumlogsumexp({n} * 1.0, axis=0)", "lax.top_k({n}, 1)[1]", "lax.argmax({n}, 0, jnp.int32)", "lax.reduce({n}, {n}.dtype.type(0), lax.add, (0,))", "lax.reduce_max({n}, (0,))", "jnp.average({n}, axis={a})", "lax.associative_scan(jnp.add, {n}, axis={a})", "lax.associative_scan(jnp.multiply, {n}, axis={a}, reverse=True)", "jnp.diff({n}, axis={a})", "jnp.trapezoid({n}, axis={a})", "jnp.digitize({n}.ravel(), jnp.array([0, 1], {n}.dtype))", "jnp.argpartition({n}, 0, axis={a})[..., :1] * 0", "jax.nn.standardize({n}, axis={a})", "jnp.unique({n}, size=3)", "jnp.nonzero({n}, size=3)[0]", "jnp.bincount(jnp.abs({n}).astype(int).ravel(), length=4)", "jnp.histogram({n}, bins=3, range=(-2, 2))[0]", "jnp.lexsort(({n},), axis={a})",
)  # fmt: skip


MOVED = templates(
    "fiubc", FULL, "{n}.T", "{n}.ravel()", "jnp.moveaxis({n}, {a}, 0)", "jnp.expand_dims({n}, {a})", "jnp.flip({n}, {a})", "jnp.roll({n}, {k}, {a})", "jnp.repeat({n}, 2, {a})", "jnp.tile({n}, 2)", "jnp.concatenate([{n}, {n}], {a})", "jnp.stack([{n}, {m}], {a})", "{n}[..., 0]", "{n}[::-1]", "{n}[-1]", "{n}[..., None]", "{n}[:, None] if {n}.ndim > 1 else {n}[None]", "{n}[jnp.array([0, -1, 1])]", "{n}[jnp.array([[0, 1], [5, -9]])]", "jnp.take({n}, jnp.array([0, 7]), axis={a})", 'jnp.take({n}, jnp.array([0, 7, -1]), axis={a}, mode="clip")', 'jnp.take({n}, jnp.array([0, 7]), axis={a}, mode="wrap")', "jnp.pad({n}, 1)", 'jnp.pad({n}, 1, mode="reflect") if min({n}.shape) > 1 else {n}', 'jnp.pad({n}, 1, mode="edge")', "lax.pad({n}, {n}.dtype.type(1), [(1, -1, 1)] * {n}.ndim)", "lax.dynamic_slice({n}, (5,) * {n}.ndim, (1,) * {n}.ndim)", "lax.dynamic_slice_in_dim({n}, {k}, 1, {a})", "lax.dynamic_update_slice({n}, {n}[:1], ({k},) + (0,) * ({n}.ndim - 1))", "lax.dynamic_index_in_dim({n}, {k}, {a}, keepdims=False)", "jnp.where({n} == {m}, {n}, {m})", "jnp.broadcast_to({n}, (2, *{n}.shape))", "lax.rev({n}, (0,))", "lax.squeeze({n}[None], (0,))", "lax.slice_in_dim({n}, 0, None, 2, {a})", "jnp.atleast_2d({n})", "jnp.swapaxes({n}, 0, -1)", "lax.expand_dims({n}, (0, 2))", "{n}.at[jnp.array([0, 0])].add({c})", "{n}.at[jnp.array([7, 0])].set({c})", '{n}.at[jnp.array([7])].set({c}, mode="clip")', "{n}.at[0].set({m}[0])", "{n}.at[..., 0].multiply({c})", '{n}.at[jnp.array([9])].get(mode="fill", fill_value=0)', "{n}.at[1:].set({m}[1:])", "{n}.at[jnp.array([0])].apply(lambda q: q)", "jnp.select([{n} == {m}, {n} != {m}], [{n}, {m}])", "jnp.take_along_axis({n}, jnp.argsort({m}, axis={a}), {a})", "jnp.split({n}, 1, {a})[0]", "jnp.array_split({n}, 2, {a})[1]", "jnp.delete({n}, 0, {a})", "jnp.insert({n}, 0, {c}, {a})", "jnp.append({n}, {m}, {a})", "jnp.rot90({n}) if {n}.ndim > 1 else {n}", "jnp.apply_along_axis(lambda q: q[::-1], {a}, {n})", "jnp.meshgrid({n}.ravel()[:2], {n}.ravel()[:3])[1]",
)  # fmt: skip


PRODUCTS = templates(
    "fic", FULL, "{n} @ {m}.T", "jnp.dot({n}, {n}.T)", 'jnp.einsum("...i,...i->...", {n}, {m})', 'jnp.einsum("i...,j...->ij", {n}, {m})', "jnp.vdot({n}, {m})", "jnp.outer({n}, {m})", "jnp.inner({n}, {m})", "jnp.tensordot({n}, {m}, ((0,), (0,)))", "lax.dot_general({n}, {m}, ((({n}.ndim - 1,), ({n}.ndim - 1,)), ((), ())))", "jnp.kron({n}.ravel(), {m}.ravel())", "jnp.convolve({n}.ravel(), {m}.ravel()[:2])", "lax.dot_general({n}, {m}, (((), ()), ((0,), (0,))))", "jnp.cross({n}[..., :2], {m}[..., :2]) if {n}.shape[-1] > 1 else {n}", "lax.dot_general({n}, {m}, ((({n}.ndim - 1,), ({n}.ndim - 1,)), ((), ())), preferred_element_type={n}.dtype)",
)  # fmt: skip


MATRICES = templates(
    "fi", MATRIX, "jnp.trace({n})", "jnp.tril({n}, -1)", "jnp.triu({n}, 1)", "jnp.diag({n})", "jnp.diagonal({n}, 1)", "lax.reduce_window({n}, {n}.dtype.type(0), lax.add, (2, 1), (1, 1), 'VALID')", "lax.reduce_window({n}, {n}.dtype.type(-128), lax.max, (2, 2), (1, 2), 'SAME')", "lax.conv_general_dilated(({n} * 1.0)[None, None], ({m} * 1.0)[None, None, :2, :2], (1, 1), 'SAME')", "lax.conv_general_dilated(({n} * 1.0)[None], ({m} * 1.0)[None, :, :1], (1,), [(1, 1)], lhs_dilation=(2,))", "jnp.cov({n})", "jnp.fill_diagonal({n}, {c}, inplace=False)", "jnp.matrix_transpose({n})", "jnp.block([[{n}, {m}], [{m}, {n}]])", "jax.ops.segment_sum({n}, jnp.zeros({n}.shape[0], int), 2)", "jax.ops.segment_max({n}, jnp.arange({n}.shape[0]), 4)", "jnp.searchsorted(jnp.sort({n}[0]), {m}[0])", "jnp.isin({n}, {m})", "jax.nn.one_hot({n}[:, 0].astype(int), 3)",
)  # fmt: skip


LINALG = templates(
    "f", SQUARE, "jnp.linalg.det({n})", "jnp.linalg.inv({n} + 5 * jnp.eye({n}.shape[0]))", "jnp.linalg.solve({n} + 5 * jnp.eye({n}.shape[0]), {m})", "jnp.linalg.cholesky({n} @ {n}.T + jnp.eye({n}.shape[0]))", "jnp.linalg.slogdet({n})[1]", "jnp.linalg.eigvalsh({n} + {n}.T)", "jnp.linalg.svd({n}, compute_uv=False)", "jnp.linalg.matrix_power({n}, 3)", "jax.scipy.linalg.solve_triangular({n} + 4 * jnp.eye({n}.shape[0]), {m}, lower=True)", "jax.scipy.linalg.expm({n} / 4)", "jnp.abs(jnp.linalg.qr({n})[1])", "jax.grad(lambda q: jnp.linalg.slogdet(q @ q.T + jnp.eye(q.shape[0]))[1])({n})", "jnp.linalg.pinv({n} + 4 * jnp.eye({n}.shape[0]))", "lax.linalg.lu({n} + 5 * jnp.eye({n}.shape[0]))[0]", "jax.scipy.linalg.cho_solve((jnp.linalg.cholesky({n} @ {n}.T + jnp.eye({n}.shape[0])), True), {m})", "jnp.fft.fft({n})", "jnp.fft.irfft(jnp.fft.rfft({n}))", "jnp.abs(jnp.fft.fft2({n}))",
)  # fmt: skip


COMPLEX = templates("c", ANY, "jnp.abs({n})", "jnp.angle({n})", "{n}.real", "{n}.imag", "jnp.conj({n})", "jnp.exp({n})", "{n} * {c}", "jnp.sin({n})", "jnp.sum({n})", "lax.complex({n}.real, {n}.imag)", "jnp.sqrt({n})", "{n} == {c}", "jnp.square({n})")  # fmt: skip


RANDOM = templates(
    "fiub", ANY, *(f"jax.random.{f}(jax.random.key({{s}}), {{n}}.shape)" for f in ["uniform", "normal", "exponential", "bernoulli", "gumbel", "laplace", "rademacher", "logistic", "cauchy"]),
    "jax.random.randint(jax.random.key({s}), (3,), 0, 9)", "jax.random.permutation(jax.random.key({s}), 4)", "jax.random.bits(jax.random.fold_in(jax.random.key({s}), {k}), (2,))", "jax.random.choice(jax.random.PRNGKey({s}), 5, (3,))", "jax.random.key_data(jax.random.split(jax.random.key({s}), 2))", "jax.random.categorical(jax.random.key({s}), jnp.zeros((2, 3)))", "jax.random.truncated_normal(jax.random.key({s}), -1, 1, (3,))", "jax.vmap(lambda k: jax.random.uniform(k))(jax.random.split(jax.random.key({s}), 3))", "jax.random.gamma(jax.random.key({s}), 2.0, (2,))",
)  # fmt: skip


TREES = templates(
    "fi", FULL, "lax.scan(lambda c, r: (c + r, c * r), {n}[0], {n})[1]", "lax.scan(lambda c, r: ({{'s': c['s'] + jnp.sum(r), 'n': c['n'] + 1}}, None), {{'s': jnp.zeros((), {n}.dtype), 'n': 0}}, {n})[0]['s']", "lax.scan(lambda c, r: (c * {k}, (c, r)), {n}[0], {n}, reverse=True)[1][0]", "lax.while_loop(lambda s: s[1] < 3, lambda s: (s[0] + s[1].astype({n}.dtype), s[1] + 1), ({n}, 0))[0]", "lax.scan(lambda c, _: (c + 1, c), 0, length=3)[1]", "lax.switch({k}, [lambda q: q + 1, lambda q: q * 2, lambda q: -q], {n})", "lax.switch(jnp.argmax({n}.ravel()), [lambda q: q + 1, lambda q: q * 2], {n})", "jax.tree.map(lambda p, q: p + q, {{'a': {n}, 'b': [{m}, None]}}, {{'a': {m}, 'b': [{n}, None]}})['b'][0]", "jax.vmap(lambda r, q: jnp.dot(r.ravel(), q.ravel()), in_axes=(0, None))({n}, {m})", "jax.vmap(lambda r: r - lax.psum(r, 'i'), axis_name='i')({n})", "jax.vmap(lambda r: lax.pmax(r, 'i') + lax.axis_index('i').astype(r.dtype), axis_name='i')({n})", "jax.vmap(lambda r: lax.all_gather(r, 'i'), axis_name='i')({n})", "jax.vmap(lambda r: lax.ppermute(r, 'i', [(0, 1), (1, 0)]) if {n}.shape[0] == 2 else r, axis_name='i')({n})", "jax.vmap(lambda r: lax.cond(jnp.sum(r) > 0, lambda q: q * 2, lambda q: -q, r))({n})", "jax.vmap(lambda r: lax.while_loop(lambda c: jnp.sum(jnp.abs(c)) < 9, lambda c: jnp.abs(c) * 2 + 1, r))({n})", "jax.vmap(lambda r: lax.dynamic_slice_in_dim(jnp.arange(6), jnp.argmax(r.ravel()), 2))({n})", "jax.vmap(lambda r: jnp.sort(r.ravel())[0], out_axes=0)({n})", "jax.vmap(jnp.add, in_axes=({a}, None), out_axes=-1)({n}, {c})", "lax.scan(lambda c, r: lax.cond(jnp.sum(r) > 0, lambda: (c + 1, r), lambda: (c - 1, -r)), 0, {n})[0]", "jax.vmap(lambda r: lax.scan(lambda c, q: (c + q, c), r * 0, jnp.stack([r, r]))[1])({n})", "lax.fori_loop(0, {n}.shape[0], lambda i, s: s.at[i].add({n}[i]), {n} * 2)", "lax.map(lambda r: r * 2, {n}, batch_size=2)",
)  # fmt: skip


DERIVATIVES = templates(
    "f", FULL, "jax.jacfwd(lambda q: jnp.sin(q) * q[::-1])({n})", "jax.jacrev(lambda q: jnp.cumsum(q * q, 0))({n})", "jax.hessian(lambda q: jnp.sum(q**3))({n})", "jax.value_and_grad(lambda q: jnp.sum(jnp.tanh(q) * {c}))({n})[1]", "jax.grad(lambda q: lax.scan(lambda c, r: (jnp.tanh(c + r), c), q[0] * 0, q)[0].sum())({n})", "jax.grad(lambda q: jnp.max(q) + jnp.sum(jnp.sort(q, axis=0)[0]))({n})", "jax.grad(lambda q: jnp.sum(q[jnp.array([0, 0, -1])] ** 2))({n})", "jax.grad(lambda q: jnp.sum(q.at[0].set(1) * q))({n})", "jax.vmap(jax.grad(lambda q: jnp.sum(jnp.exp(-q * q))))({n})", "jax.jvp(lambda q: lax.while_loop(lambda s: s[1] < 3, lambda s: (jnp.sin(s[0]), s[1] + 1), (q, 0))[0], ({n},), ({m},))[1]", "jax.grad(lambda q: jax.grad(lambda w: jnp.sum(jnp.sin(w) * q))(q).sum())({n})", "jax.grad(lambda q: jnp.sum(clipped(q) * scaled(q)))({n})", "jax.grad(lambda q: jnp.prod(q))({n})", "jax.grad(lambda q: jnp.linalg.norm(q.ravel()))({n})", "jax.grad(lambda q: jax.nn.logsumexp(q))({n})", "jax.grad(lambda q: jnp.sum(lax.cond(q.sum() > 0, jnp.sin, jnp.cos, q)))({n})", "jax.linear_transpose(lambda q: jnp.cumsum(2 * q, 0), {n})({n})[0]", "jax.grad(lambda q: jnp.sum(jax.checkpoint(lambda w: jnp.sin(jnp.sin(w)))(q)))({n})", "jax.vjp(lambda q: jnp.cumprod(q, 0), {n})[1]({m})[0]", "jax.grad(lambda q: jnp.var(q) + jnp.mean(q))({n})", "jax.grad(lambda q: (q @ q.T).sum())({n})", "jax.jvp(jax.grad(lambda q: jnp.sum(jnp.tanh(q))), ({n},), ({m},))[1]", "jax.grad(lambda q: jnp.sum(lax.associative_scan(jnp.multiply, q)))({n})", "jax.grad(lambda q: jnp.sum(lax.reduce_window(q, -jnp.inf, lax.max, (1,) * q.ndim, (1,) * q.ndim, 'VALID')))({n})", "jax.grad(lambda q: jnp.sum(jnp.where(q > 0, jnp.sqrt(q), 0.0)))({n})",
)  # fmt: skip


STATEMENTS += [(1.5, f) for f in (INTEGERS, CONVERTED, PRODUCTS, MATRICES)]


STATEMENTS += [(2.5, f) for f in (UNARY, REDUCED, DERIVATIVES, TREES)]


STATEMENTS += [(4.0, MOVED), (0.6, LINALG), (0.7, COMPLEX), (0.7, RANDOM), (0.5, BITS)]


@statement(2)
def created(d: Drawing) -> str:
    return d.new() if d.maybe(0.85) else f"number({d.one(0.5, 2, -3, 1.25, True)})"


@statement(5)
def nested(d: Drawing) -> str:
    n = d.find()
    return d.body(n, d.arrays[n], d.one(1, 2, 2, 3))


@statement(4)
def combined(d: Drawing) -> str:
    n = d.find("fiuc")
    x = d.arrays[n]
    m = d.find("fiubc", lambda y: broadcasts(x, y)) if d.maybe(0.7) else d.num(kind(x))
    if d.maybe(0.2) and kind(x) in "iu" and (m not in d.arrays or kind(d.arrays[m]) in "iu"):
        return f"{n} {d.one('//', '%')} ({m} | 1)"  # XLA's compiler divides constants on the host, and is killed by 0
    if d.maybe(0.7):
        return f"{n} {d.rng.choice(('+ - * / == < >= !=' if kind(x) in 'iu' else '+ - * / // % == < >= !=').split() if kind(x) != 'c' else ['+', '-', '*', '==', '!='])} {m}"
    return f"jnp.{d.one('maximum', 'minimum', 'arctan2', 'logaddexp', 'hypot', 'power', 'fmod' if kind(x) == 'f' else 'minimum', 'heaviside', 'nextafter', 'float_power', 'floor_divide' if kind(x) == 'f' else 'maximum')}({n}, {m})"
