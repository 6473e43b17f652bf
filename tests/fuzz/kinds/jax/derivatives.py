"""Statements with derivatives of drawn functions, of second order, by rules of the user's, and through linear algebra,
transforms and convolutions."""

from __future__ import annotations

from tests.fuzz.kinds.jax.drawing import FULL, MATRIX, SQUARE, STATEMENTS, Drawing, statement, templates

import jax

FORMS = [
    "jax.jacrev(lambda {b}: {e})({n})",
    "jax.jacfwd(lambda {b}: {e})({n})",
    "jax.hessian(lambda {b}: jnp.sum({e}).astype({n}.dtype))({n})",
    "jax.jacfwd(jax.grad(lambda {b}: jnp.sum({e} * {n}).astype({n}.dtype)))({n})",
    "jax.grad(lambda q: jnp.sum(jax.vmap(lambda {b}: {row})(q)).astype({n}.dtype))({n})",
    "jax.vmap(jax.grad(lambda {b}: jnp.sum({row}).astype({n}.dtype)))({n})",
    "jax.vmap(jax.jacfwd(lambda {b}: {row}))({n})",
    "jax.vmap(lambda {b}: {row}, in_axes=0, out_axes=-1)({n})",
    "jax.grad(lambda q: lax.scan(lambda c, {b}: (c + jnp.sum({row}).astype(c.dtype), None), jnp.zeros((), {n}.dtype), q)[0])({n})",
    "jax.grad(lambda q: jnp.sum(lax.scan(lambda {b}, _: ({e}, None), q, length=2)[0]).astype({n}.dtype))({n})",
    "jax.jvp(lambda q: lax.fori_loop(0, 2, lambda i, {b}: {e}, q), ({n},), ({n},))[1]",
    "jax.grad(lambda q: jnp.sum(lax.fori_loop(0, 2, lambda i, {b}: {e}, q)).astype({n}.dtype))({n})",
    "jax.grad(lambda q: jnp.sum(lax.cond(q.sum() > 0, lambda {b}: {e}, lambda z: z * z, q)).astype({n}.dtype))({n})",
    "jax.grad(lambda q: jnp.sum(jax.checkpoint(jax.jit(lambda {b}: {e}))(q)).astype({n}.dtype))({n})",
    "jax.jvp(jax.grad(lambda {b}: jnp.sum({e}).astype({n}.dtype)), ({n},), ({n},))[1]",
    "jax.vjp(lambda q: jax.jvp(lambda {b}: {e}, (q,), (q,))[1], {n})[1]({n})[0]",
    "jax.value_and_grad(lambda {b}: (jnp.sum({e}).astype({n}.dtype), {b} * 2), has_aux=True)({n})[0][0]",
    "jax.linearize(jax.vmap(lambda {b}: {row}), {n})[1]({n})",
]


@statement(3)
def derived(d: Drawing) -> str:
    n = d.find("f", lambda x: x.ndim > 0 and 0 < x.size <= 12)
    x, b, form = d.arrays[n], d.name(), d.rng.choice(FORMS)
    d.arrays = {m: y for m, y in d.arrays.items() if y.shape == () or "{row}" not in form}  # what a row may capture
    row = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    return form.format(n=n, b=b, e=d.body(b, x, d.one(1, 2)), row=d.body(b, row, d.one(1, 2)))


RULES = templates(
    "f", FULL,
    "jax.grad(lambda t: jnp.sum(t['a'] * t['b'][0]))({{'a': {n}, 'b': [{m}]}})['b'][0]",
    "jax.grad(lambda p, q: jnp.sum(jnp.sin(p) * q), argnums=(0, 1))({n}, {m})[1]",
    "jax.grad(lambda q: jnp.sum(weighed(q, {m})))({n})", "jax.jvp(lambda q: weighed(q, q * 2), ({n},), ({m},))[1]", "jax.hessian(lambda q: jnp.sum(weighed(q, q)))({n})",
    "jax.grad(lambda q: jnp.sum(paired({{'p': q, 'n': 2}}, {k})[0]))({n})", "jax.vjp(lambda q: paired({{'p': q, 'n': q}}, 1), {n})[1](({m}, {m}))[0]",
    "jax.vmap(jax.grad(lambda q: jnp.sum(paired({{'p': q, 'n': 2}}, 3)[1])))({n})",
    "lax.custom_linear_solve(lambda q: 4 * q, {n}, lambda mv, b: b / 4)", "jax.grad(lambda q: jnp.sum(lax.custom_linear_solve(lambda w: 4 * w, q * q, lambda mv, b: b / 4, symmetric=True)))({n})",
    "jax.grad(lambda q: jnp.sum(lax.custom_root(lambda w: w * w * w + w - q, q, lambda g, x0: lax.fori_loop(0, 12, lambda i, w: w - g(w) / (3 * w * w + 1), x0), lambda g, y: y / g(jnp.ones_like(y)))))({n})",
    "jax.grad(lambda q: jnp.sum(jnp.where(q > 0, q, lax.stop_gradient(q)) ** 2))({n})", "jax.grad(lambda q: jnp.sum(q.at[jnp.array([0, 7])].multiply(2, mode='drop') ** 2))({n})",
    "jax.grad(lambda q: jnp.sum(q.at[jnp.array([9, 0])].get(mode='fill', fill_value=0) ** 2))({n})", "jax.grad(lambda q: jnp.sum(q.at[0].max({c}) * q))({n})", "jax.grad(lambda q: jnp.sum(lax.dynamic_update_slice(q, q[:1] * 2, ({k},) + (0,) * (q.ndim - 1)) ** 2))({n})",
    "jax.grad(lambda q: jnp.sum(jnp.sort(q, axis={a})[..., 0] * 2))({n})", "jax.grad(lambda q: jnp.sum(lax.top_k(q, 1)[0]))({n})", "jax.grad(lambda q: jnp.median(q))({n})", "jax.grad(lambda q: jnp.sum(jnp.cumprod(q, axis={a})))({n})", "jax.grad(lambda q: jnp.sum(lax.cummax(q, axis=0) ** 2))({n})",
    "jax.grad(lambda q: jnp.sum(jnp.minimum(q, {m}) + jnp.clip(q, -1, 1) + jnp.abs(q)))({n})", "jax.grad(lambda q: jnp.sum(lax.reduce_window(q, 0.0, lax.add, (2,) + (1,) * (q.ndim - 1), (1,) * q.ndim, 'SAME') ** 2))({n})", "jax.grad(lambda q: jnp.sum(jnp.linalg.norm(q, axis={a})))({n})",
    "jax.grad(lambda q: jnp.sum(jax.random.normal(jax.random.key({s}), q.shape) * q ** 2))({n})", "jax.grad(lambda q: jnp.sum(lax.erf(q) + jax.nn.softplus(q) + lax.lgamma(q * q + 1)))({n})", "jax.grad(lambda q: jnp.sum(jnp.arctan2(q, {m}) + jnp.hypot(q, {m}) + jnp.logaddexp(q, {m})))({n})",
    "jax.grad(lambda q: jnp.sum(jnp.power(q * q + 1, {m})))({n})", "jax.jvp(lambda q: q.astype(jnp.bfloat16).astype({n}.dtype) * q, ({n},), ({m},))[1]", "jax.grad(lambda q: jnp.sum(q.astype(jnp.float16) * 2).astype({n}.dtype))({n})",
    "jax.linear_transpose(lambda q: lax.dynamic_slice_in_dim(q, 0, 1, 0) * 3, {n})({n}[:1])[0]", "jax.linear_transpose(lambda q: q[jnp.array([0, 0])], {n})(jnp.stack([{m}[0], {m}[-1]]))[0]", "jax.grad(lambda q: jnp.real(jnp.sum(jnp.exp(1j * q.astype(jnp.float32)))))({n})", "jax.vjp(lambda q: q * q, {n})[1]({m})[0]",
)  # fmt: skip
_EYE = "5 * jnp.eye({n}.shape[0])"
ALGEBRA = templates(
    "f", SQUARE,
    f"jax.grad(lambda q: jnp.sum(jnp.linalg.cholesky(q @ q.T + {_EYE})))({{n}})", "jax.grad(lambda q: jnp.linalg.eigvalsh(q + q.T)[0])({n})", "jax.grad(lambda q: jnp.linalg.svd(q, compute_uv=False)[0])({n})",
    f"jax.grad(lambda q: jnp.sum(jnp.linalg.solve(q + {_EYE}, {{m}})))({{n}})", f"jax.jvp(lambda q: jnp.linalg.inv(q + {_EYE}), ({{n}},), ({{m}},))[1]", f"jax.grad(lambda q: jnp.linalg.det(q + {_EYE}))({{n}})", f"jax.hessian(lambda q: jnp.linalg.slogdet(q @ q.T + {_EYE})[1])({{n}})",
    f"jnp.linalg.lstsq({{n}} + {_EYE}, {{m}})[0]", "jax.vmap(jnp.linalg.det)(jnp.stack([{n}, {m}]))", f"jnp.linalg.inv(jnp.stack([{{n}}, {{m}}]) + {_EYE})", f"jax.vmap(jnp.linalg.solve)(jnp.stack([{{n}}, {{m}}]) + {_EYE}, jnp.stack([{{m}}, {{n}}]))",
    "jnp.linalg.eigh({n} + {n}.T)[0]", "jnp.linalg.eigh(jnp.stack([{n} + {n}.T, {m} + {m}.T]))[0]", "jnp.abs(jnp.linalg.qr(jnp.stack([{n}, {m}]))[1])", f"jnp.abs(jax.grad(lambda q: jnp.sum(jnp.linalg.qr(q + {_EYE})[1] ** 2))({{n}}))",
    f"jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor({{n}} + {_EYE}), {{m}})", f"jax.scipy.linalg.solve_triangular({{n}} + {_EYE}, {{m}}, trans=1)", f"jax.scipy.linalg.solve_triangular({{n}} + {_EYE}, {{m}}, unit_diagonal=True)", f"lax.linalg.triangular_solve({{n}} + {_EYE}, {{m}}, left_side=False, lower=True)",
    "jnp.linalg.multi_dot([{n}, {m}, {n}])", "jax.scipy.linalg.block_diag({n}, {m})", "jax.scipy.linalg.toeplitz({n}[0])", "jnp.linalg.cond({n} + 5 * jnp.eye({n}.shape[0]))", "jnp.linalg.matrix_rank({n} + 5 * jnp.eye({n}.shape[0]))", "jax.scipy.linalg.expm(jnp.stack([{n}, {m}]) / 8)", "jax.grad(lambda q: jnp.sum(jax.scipy.linalg.expm(q / 8)))({n})",
    "jnp.linalg.pinv({n} + 5 * jnp.eye({n}.shape[0]))", "lax.linalg.cholesky({n} @ {n}.T + 5 * jnp.eye({n}.shape[0]), symmetrize_input=False)", "jnp.linalg.matrix_norm({n}, ord='nuc')", "jnp.linalg.vecdot({n}, {m})", "jnp.linalg.tensorinv({n} + 5 * jnp.eye({n}.shape[0]), ind=1)",
)  # fmt: skip
SIGNALS = templates(
    "f", MATRIX,
    "jax.grad(lambda q: jnp.sum(jnp.abs(jnp.fft.fft(q) + 3) ** 2))({n})", "jnp.fft.rfftn({n} * 1.0)", "jnp.fft.ifft({n}, axis=0)", "jnp.fft.fftshift({n})", "jnp.fft.irfft({n} + 0j, n=4)", "jax.vmap(jnp.fft.rfft)({n})", "jax.grad(lambda q: jnp.sum(jnp.fft.irfft(jnp.fft.rfft(q) * 2) ** 2))({n})",
    "jax.grad(lambda q: jnp.sum(lax.conv(q[None, None], {m}[None, None, :2, :2], (1, 1), 'SAME') ** 2))({n})", "jax.grad(lambda q: jnp.sum(lax.conv({m}[None, None], q[None, None, :1, :2], (2, 1), 'VALID') ** 2))({n})",
    "lax.conv_general_dilated(jnp.stack([{n}, {m}])[None], jnp.stack([{n}[:1, :1], {m}[:1, :1]])[:, None], (1, 1), 'VALID', feature_group_count=2)", "lax.conv_general_dilated({n}[None, None], {m}[None, None, :2, :1], (1, 1), [(1, 2), (0, 1)], rhs_dilation=(2, 1))",
    "lax.conv_general_dilated({n}[None, :, :, None], {m}[:1, :2, None, None], (1, 2), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))", "lax.conv_transpose({n}[None, :, :, None], {m}[:2, :2, None, None], (2, 2), 'SAME')", "jax.vmap(lambda r: jnp.convolve(r, {m}[0], 'same'))({n})",
    "jax.nn.dot_product_attention({n}[None, :, None], {m}[None, :, None], {m}[None, :, None])", "jax.grad(lambda q: jnp.sum(jax.nn.dot_product_attention(q[None, :, None], q[None, :, None], {m}[None, :, None], is_causal=True)))({n})",
    "jax.image.resize({n}, (4, 4), 'linear')", "jax.image.resize({n}, (4, 2), 'nearest')", "jax.image.resize({n}, (3, 5), 'cubic')", "jax.scipy.signal.convolve({n}, {m})", "jax.scipy.ndimage.map_coordinates({n}, [jnp.array([0.5]), jnp.array([1.2])], 1)", "jax.lax.batch_matmul({n}[None], {m}.T[None])",
    "lax.dot({n}, {m}.T, precision='highest', preferred_element_type=jnp.float32)", "jnp.matmul({n}.astype(jnp.bfloat16), {m}.T.astype(jnp.bfloat16), preferred_element_type=jnp.float32)", "lax.reduce_window({n}, -jnp.inf, lax.max, (2, 2), (1, 1), 'SAME', window_dilation=(1, 2))", "jax.vmap(lambda r: lax.reduce_window(r, 0.0, lax.add, (2,), (1,), [(1, 0)]))({n})",
)  # fmt: skip

STATEMENTS += [(1.5, RULES), (0.8, ALGEBRA), (0.7, SIGNALS)]
