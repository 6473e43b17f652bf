"""Statements of loops, branches, batches and compiled parts, whose operands are pytrees and random keys."""

from __future__ import annotations

from tests.fuzz.kinds.jax.drawing import FULL, STATEMENTS, templates

LOOPS = templates(
    "fi", FULL,
    "lax.while_loop(lambda s: s['i'] < 3, lambda s: {{'i': s['i'] + 1, 'x': (s['x'][1], s['x'][0] + 1)}}, {{'i': 0, 'x': ({n}, {m})}})['x'][0]",
    "lax.while_loop(lambda s: jnp.all(jnp.abs(s) < 9), lambda s: jnp.abs(s) * 2 + 1, {n})",
    "lax.while_loop(lambda s: (s[0] < 4) & jnp.any(s[1] < 30), lambda s: (s[0] + 1, s[1] * 2 + {m}), (0, {n}))[1]",
    "lax.scan(lambda c, r: ((c[1], c[0] + r[0]), {{'d': r[1] - c[0], 'n': None}}), ({n}[0], {m}[0]), ({n}, {m}))[1]['d']",
    "lax.scan(lambda c, r: (c * r, c), {n}[0], {n}, unroll=2)[0]",
    "lax.scan(lambda c, r: (c + r['p'] * r['q'][0], (c, {{'s': r['p']}})), {n}[0], {{'p': {n}, 'q': [{m}]}}, reverse=True)[1][1]['s']",
    "lax.scan(lambda k, r: (jax.random.split(k)[0], r + jax.random.bernoulli(k).astype(r.dtype)), jax.random.key({s}), {n})[1]",
    "jax.random.key_data(lax.scan(lambda k, _: (jax.random.fold_in(k, 1), None), jax.random.key({s}), length=2)[0])",
    "lax.scan(lambda c, _: (lax.cond(c[0] < 2, lambda x: x, lambda x: -x, c[1]).sum().astype(jnp.int32), c[1])[::-1] and ((c[0] + 1, c[1] * 2), c[1]), (0, {n}), length=3)[1]",
    "lax.fori_loop(0, jnp.sum(jnp.abs({n}) > 1), lambda i, c: c + 1, {n})",
    "lax.fori_loop({k}, 4, lambda i, c: {{'x': c['x'].at[i % {n}.shape[0]].add(1), 'n': c['n'] + i}}, {{'x': {n}, 'n': 0}})['x']",
    "lax.fori_loop(0, 3, lambda i, c: lax.fori_loop(0, i, lambda j, d: d + j, c), {n})",
    "lax.map(lambda t: t[0] * 2 + t[1], ({n}, {m}))",
    "lax.scan(lambda c, r: (c, jnp.where(r > c, r, c)), jnp.zeros((), {n}.dtype), {n}.ravel())[1]",
)  # fmt: skip
BRANCHES = templates(
    "fi", FULL,
    "lax.switch(jnp.sum({n} > 0), [lambda p, q: {{'r': p + q}}, lambda p, q: {{'r': p - q}}, lambda p, q: {{'r': q}}], {n}, {m})['r']",
    "lax.cond({n}.ravel()[0] > 0, lambda t: t, lambda t: {{'a': t['b'], 'b': t['a']}}, {{'a': {n}, 'b': {m}}})['a']",
    "jax.vmap(lambda i, r: lax.switch(i, [lambda q: q + 1, lambda q: q * 2], r))(jnp.arange({n}.shape[0]) % 2, {n})",
    "jax.vmap(lambda i, r: lax.fori_loop(0, i, lambda j, c: c * 2, r))(jnp.arange({n}.shape[0]), {n})",
    "jax.vmap(lambda r: lax.cond(r.ravel()[0] > 0, lambda q: (q, 0), lambda q: (-q, 1), r))({n})[1]",
    "lax.switch({n}.ravel()[0].astype(int), [lambda: 1, lambda: 2, lambda: 3])",
    "lax.cond(True, jnp.negative, jnp.abs, {n})",
    "lax.cond({m}.ravel()[0] > {n}.ravel()[0], lambda: {n}, lambda: {m})",
    "lax.platform_dependent({n}, cpu=lambda q: q + 1, default=lambda q: q - 1)",
)  # fmt: skip
BATCHES = templates(
    "fi", FULL,
    "jax.vmap(lambda r: lax.scan(lambda c, q: (jnp.where(q > 0, c + q, c), (c, q)), r.ravel()[0], r.ravel())[1][0])({n})",
    "jax.vmap(jax.vmap(lambda p, q: p * q, (0, None)), (None, 0))({n}, {m})",
    "jax.vmap(lambda r, d: r + d['k'], in_axes=(0, {{'k': None}}))({n}, {{'k': {m}[0]}})",
    "jax.vmap(lambda r: {{'a': r, 'b': {m}}}, out_axes={{'a': -1, 'b': None}})({n})['b']",
    "jax.vmap(lambda r: r.sum(), in_axes={a})({n})",
    "jax.vmap(lambda r: lax.pmean(r * 1.0, 'i') + lax.pmin(r, 'i'), axis_name='i')({n})",
    "jax.vmap(lambda r: lax.all_gather(r[None], 'i', tiled=True), axis_name='i')({n})",
    "jax.vmap(lambda r: r * lax.axis_size('i') + lax.psum(1, 'i'), axis_name='i')({n})",
    "jax.vmap(lambda r: jax.vmap(lambda q: lax.psum(q, ('i', 'j')), axis_name='j')(jnp.stack([r, r])), axis_name='i')({n})",
    "jax.vmap(lambda r: jnp.cumsum(r.ravel()).at[0].set(1))({n})",
    "jax.vmap(lambda r, i: r.at[i].set(0))({n}.reshape({n}.shape[0], -1), jnp.arange({n}.shape[0]))",
    "jax.vmap(lambda r, i: lax.dynamic_update_slice_in_dim(r, r[:1] * 2, i, 0))({n}.reshape({n}.shape[0], -1), jnp.arange({n}.shape[0]))",
    "jax.vmap(lambda i: lax.dynamic_slice_in_dim({n}, i, 1, {a}))(jnp.array([0, 5, -1]))",
    "jax.vmap(lambda r, i: r.ravel()[i])({n}, jnp.arange({n}.shape[0]))",
    "jax.vmap(lambda r: lax.sort((r.ravel(), jnp.arange(r.size)), num_keys=1)[1])({n})",
    "jax.vmap(lambda r, q: jnp.searchsorted(jnp.sort(r.ravel()), q.ravel()))({n}, {m})",
    "jax.vmap(lambda k, r: jax.random.permutation(k, r.ravel()))(jax.random.split(jax.random.key({s}), {n}.shape[0]), {n})",
    "jax.vmap(lambda r: jnp.convolve(r.ravel(), {m}.ravel()[:2]))({n})",
    "jnp.vectorize(lambda p, q: p @ q, signature='(k),(k)->()')({n}, {m})",
    "jax.vmap(jax.custom_batching.sequential_vmap(lambda r: r * 2 + 1))({n})",
    "jax.vmap(jax.jit(lambda r: lax.cond(r.sum() > 0, lambda q: q, lambda q: q * 0, r)))({n})",
)  # fmt: skip
PARTS = templates(
    "fi", FULL,
    "jax.jit(lambda p, k: p * k, static_argnums=1)({n}, {k})",
    "jax.jit(lambda p, *, mode: p if mode == 'a' else -p, static_argnames='mode')({n}, mode='b')",
    "jax.jit(lambda t: jax.tree.map(jnp.negative, t))({{'a': [{n}, {m}]}})['a'][1]",
    "jax.jit(jax.vmap(jax.jit(lambda r: r + r)))({n})",
    "jax.jit(lambda p: (jax.jit(lambda q: q + {c})(p), jax.jit(lambda q: q * {c})(p)))({n})[1]",
    "jax.jit(lambda p, q=2: p + q)({n}, q={m})",
    "jax.named_call(lambda p: p + p, name='q')({n})",
    "lax.optimization_barrier(({n}, {m}))[0]",
    "jax.pure_callback(lambda p: np.asarray(p) * np.asarray(2, p.dtype), jax.ShapeDtypeStruct({n}.shape, {n}.dtype), {n})",
    "jax.eval_shape(jnp.sin, {n}).dtype.type(2) * {n}",
    "jax.checkpoint(lambda p: jnp.cumsum(p * {m}, 0), policy=jax.checkpoint_policies.dots_saveable)({n})",
    "jax.tree.reduce(jnp.add, [{n}, ({m}, {{'x': {n}}})])",
    "jax.tree.transpose(jax.tree.structure([0, 0]), jax.tree.structure((0, 0)), [({n}, {m}), ({m}, {n})])[0][1]",
    "jax.flatten_util.ravel_pytree({{'a': {n}, 'b': [{m}]}})[1](jnp.concatenate([{n}.ravel(), {m}.ravel()]) * 2)['b'][0]",
    "jax.jit(lambda p: p.at[0].set(p[-1]), donate_argnums=0)({n} + 0)",
)  # fmt: skip

STATEMENTS += [(1.2, LOOPS), (0.8, BRANCHES), (1.5, BATCHES), (0.8, PARTS)]
