"""Rules that move, choose and combine elements, compared with JAX itself: value, dtype, shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.lax.windowed_reductions import _select_and_scatter

import tensorgraft as tg
from tensorgraft.frontends.jax import rules  # noqa: F401  (they register themselves)
from tensorgraft.frontends.jax.evaluate import plan
from tensorgraft.hub import registry

NAN, INF = np.nan, np.inf


BACKENDS = ("numpy", "torch", "tensorflow")


def agree(backends, fn, *operands, exact=False):
    with jax.enable_x64(True):
        operands = [jnp.asarray(o) for o in operands]
        program = jax.jit(fn).lower(*operands).compile({"xla_backend_optimization_level": 0})
        right = [np.asarray(x) for x in jax.tree.leaves(program(*operands))]
        with jax.ensure_compile_time_eval():
            closed = jax.make_jaxpr(fn)(*operands)
    wanted = (backends,) if isinstance(backends, str) else backends
    for backend in (name for name in wanted if name in registry.backends()):  # those that are installed
        xp = registry.get(backend)
        with xp.scope():
            found = [xp.to_numpy(x) for x in plan(closed)(xp, *[xp.asarray(np.array(o)) for o in operands])]
        assert len(found) == len(right)
        for ours, theirs in zip(found, right, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), backend
            if exact or theirs.dtype.kind in "biu":
                np.testing.assert_array_equal(ours, theirs, err_msg=backend)
            else:
                wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
                rtol = 2e-2 if theirs.dtype.itemsize == 2 else 1e-5
                np.testing.assert_allclose(ours.astype(wide), theirs.astype(wide), rtol, 1e-5, err_msg=backend)


def data(*shape, dtype="float32", seed=0):
    """Values of any dtype, with ties."""
    rng = np.random.default_rng(seed)
    dtype = jnp.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "c":
        return (rng.integers(-4, 5, shape) + 1j * rng.integers(-4, 5, shape)).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -6, 7, shape).astype(dtype)
    return (rng.integers(-8, 9, shape) / 4).astype(dtype)


X = data(4, 6)

LAYOUT = {
    "reshape": lambda x: lax.reshape(x, (3, 8), (1, 0)),
    "squeeze": lambda x: lax.squeeze(x[None, :, None], (0, 2)),
    "broadcast": lambda x: (lax.broadcast_in_dim(x, (2, 4, 6), (1, 2)), lax.broadcast_in_dim(x, (4, 3, 6), (0, 2))),
    "slice": lambda x: lax.slice(x, (1, 0), (4, 5), (2, 3)),
    "rev": lambda x: lax.rev(x, (0, 1)),
    "concatenate": lambda x: lax.concatenate([x, x[:2], x], 0),
    "pad": lambda x: lax.pad(x, x[0, 0], [(-1, 2, 0), (1, -3, 2)]),
    "pad_constant": lambda x: lax.pad(x, x.dtype.type(1), [(0, -1, 1), (2, 0, 0)]),
    "split": lambda x: lax.split(x, (1, 3), 0),
    "stack": lambda x: (jnp.stack([x, x], 1), jnp.unstack(x, axis=1)),
    "tile": lambda x: jnp.tile(x, (2, 1, 3)),
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (lax.argmax(x[:, 0], 0, "int8"), np.int8(9)), (2, 3)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(
        x, x[:2, :3], (np.uint8(9), lax.argmin(x[0], 0, "uint8"))
    ),
    "constant_slices": lambda x: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (9, -7), (2, 3)), (-1, 9)),
}
DTYPES = ("float32", "float64", "bfloat16", "float16", "int8", "uint16", "uint32", "int64", "bool", "complex64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(dtype):
    names = [n for n in LAYOUT if dtype not in ("complex64", "bool") or not n.startswith("dynamic")]
    agree(BACKENDS, lambda x: [LAYOUT[name](x) for name in names], data(4, 6, dtype=dtype), exact=True)


def test_results_on_numpy_are_arrays_of_their_own():
    f = tg.graft(lambda x: (x, jnp.arange(3), x.T, x.sum(), jnp.broadcast_to(x, (2, 2, 2))), onto="numpy")
    x = np.ones((2, 2), np.float32)
    for _ in range(2):
        found = f(x)
        np.testing.assert_array_equal(found[1], [0, 1, 2])
        assert all(type(y) is np.ndarray for y in found)
        for y in found:
            y += 1
    np.testing.assert_array_equal(x, 1)


def test_iota():
    kinds = ("int8", "uint16", "bfloat16", "float32", "complex64")
    agree(BACKENDS, lambda: [lax.broadcasted_iota(dtype, (2, 90, 3), 1) for dtype in kinds])


# ---- reductions, scans, orders -------------------------------------------------------------------------------------


def argmax_of(keys, values):
    """A reduction of two operands together."""

    def better(a, b):
        first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    return lax.reduce((keys, values), (keys.dtype.type(0), values.dtype.type(-1)), better, (1,))


REDUCTIONS = {
    "extremes": lambda x: [f(x, (0,)) for f in (lax.reduce_max, lax.reduce_min)],
    "sums": lambda x: [f(x, (0, 1)) for f in (lax.reduce_sum, lax.reduce_prod)],
    "positions": lambda x: [f(x, a, d) for f in (lax.argmax, lax.argmin) for a, d in ((0, "int32"), (1, "uint8"))],
    "scans": lambda x: [
        f(x, axis=a, reverse=r)
        for f in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin)
        for a, r in ((0, False), (1, True))
    ],
    "order": lambda x: (lax.sort(x, dimension=0), *lax.sort((x, -x, x), dimension=1, num_keys=2), *lax.top_k(x, 3)),
    "of_any_function": lambda x: lax.reduce(x, x.dtype.type(2), lambda a, b: a + b + a * b, (0,)),
    "from_a_value": lambda x: (
        lax.reduce(x, x.dtype.type(2), lax.add, (1,)),
        lax.reduce(x, x.dtype.type(-9 if x.dtype.kind != "u" else 3), lax.max, (0, 1)),
        lax.reduce(x, x.dtype.type(1), lax.mul, (0,)),
    ),
    "of_two": lambda x: argmax_of(x, lax.broadcasted_iota("int32", x.shape, 1)),
}


@pytest.mark.parametrize("dtype", ["float32", "int16", "uint32", "bfloat16"])
def test_reductions(dtype):
    agree(BACKENDS, lambda x: [f(x) for f in REDUCTIONS.values()], data(4, 6, dtype=dtype))


def test_reductions_of_bits_and_of_nothing():
    bits = [lax.reduce_and, lax.reduce_or, lax.reduce_xor]
    agree(BACKENDS, lambda x: [f(x, (0,)) for f in bits], data(5, 3, dtype="uint8"))
    agree(BACKENDS, lambda x: [f(x, (1,)) for f in bits], data(5, 3, dtype="int32"))
    agree(BACKENDS, lambda x: [f(x, (0,)) for f in bits], data(0, 3, dtype="int32"))
    agree(BACKENDS, lambda x: [f(x, (0, 1)) for f in bits[:2]], data(5, 3, dtype="bool"))
    agree(BACKENDS, lambda x: lax.reduce(x, np.float32(3), lambda a, b: a * 2 + b, (0,)), data(0, 3))
    agree(BACKENDS, lambda x: lax.reduce(x, np.float32(3), lambda a, b: a * 2 + b, ()), data(4, 3))


SPECIAL = np.array([1, NAN, -INF, INF, 0.0, -0.0, 0.0, -NAN, 3, NAN, -1], np.float32)


def test_values_that_are_no_numbers():
    x = SPECIAL.copy()
    x[7] = np.copysign(NAN, -1)
    agree(
        BACKENDS,
        lambda x: (
            (lax.sort((x, jnp.arange(11)), num_keys=1), lax.top_k(x, 11)),
            (jnp.argmax(x), jnp.argmin(x), lax.cummax(x), lax.cummin(x), lax.cumlogsumexp(x[4:7])),
            (lax.reduce_max(x, (0,)), lax.reduce_min(x, (0,)), lax.reduce_max(x[2:7], (0,))),
        ),
        x,
    )


def test_complex_numbers_have_a_lexicographic_order():
    x = data(5, 4, dtype="complex64")
    agree(BACKENDS, lambda x: (lax.reduce_max(x, (0,)), lax.reduce_min(x, (1,)), lax.cummax(x), lax.cummin(x)), x)
    agree(
        "torch",
        lambda x: (lax.sort(x, dimension=0), lax.reduce_window(x, np.complex64(-9), lax.max, (2, 2), (1, 1), "SAME")),
        x,
    )


def test_approximate_greatest_values():
    x = np.random.default_rng(0).permutation(24).reshape(4, 6).astype(np.float32)
    agree(BACKENDS, lambda x: (lax.approx_max_k(x, 3), lax.approx_min_k(x, 2, reduction_dimension=0)), x)


# ---- gather and scatter ----------------------------------------------------------------------------------------------

AT = np.array([[3, -1], [7, 2], [0, 2]], np.int32)
INDEXED = {
    "rows": lambda x, i: x[i],
    "modes": lambda x, i: [x.at[i].get(mode=m) for m in ("clip", "fill", "promise_in_bounds")],
    "fill": lambda x, i: x.at[i].get(mode="fill", fill_value=5),
    "columns": lambda x, i: jnp.take(x, i, axis=1, mode="clip"),
    "points": lambda x, i: x[i, i + 1],
    "mixed": lambda x, i: (x[1:3, i], x[:, None, i[0]], x[i[:, :1], i]),
    "along": lambda x, i: jnp.take_along_axis(x[:, :3], jnp.clip(i.T, 0, 2), axis=0),
    "one": lambda x, i: (x[i[0, 0]], x[:, i[0, 1]], x.at[i[1, 0]].get(mode="fill")),
    "windows": lambda x, i: jax.vmap(lambda a: lax.dynamic_slice(x, (a, a), (2, 3)))(i[:, 0]),
    "constant": lambda x, i: (x[np.array([0, 2])], x.at[np.array([0, 2])].add(1), x.at[np.array([0, 9])].set(2)),
    **{
        f"{kind}_{mode}": lambda x, i, kind=kind, mode=mode: (
            getattr(x.at[i], kind)(x[:3, None] * 2, mode=mode),
            getattr(x.at[:, i[:, 0]], kind)(3, mode=mode),
            getattr(x.at[i[0, 0]], kind)(x[1], mode=mode),
            getattr(x.at[i[1, 0], 2:4], kind)(x[1, :2], mode=mode),
        )
        for kind in ("add", "multiply", "min", "max", "subtract")
        for mode in ("drop", "clip")
    },
    "set": lambda x, i: [
        x.at[j].set(x[:3], mode=m) for m in ("drop", "clip") for j in (jnp.array([2, 9, 0]), i[:, 1] * 2)
    ],
    "apply": lambda x, i: [x.at[i].apply(lambda v: v + v, mode=m) for m in ("drop", "clip")],
    "batched": lambda x, i: jax.vmap(lambda r, j: (r[j], r.at[j].add(r[:2])))(x[:3], i),
    "batched_updates": lambda x, i: jax.vmap(lambda r, j: lax.dynamic_update_slice(r, r[:2], (j,)), (None, 0))(
        x[0], i[:, 0]
    ),
    "everything": lambda x, i: x.at[:, :].add(x),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indexing(name):
    agree(BACKENDS, INDEXED[name], X, AT, exact=True)


@pytest.mark.parametrize("dtype", ["uint16", "bfloat16", "bool", "complex64"])
def test_indexing_of_all_dtypes(dtype):
    names = ["modes", "mixed", "one", "windows", "add_drop", "multiply_clip", "batched"]
    if dtype == "bool":
        names = ["modes", "mixed", "one", "windows", "set"]
    if dtype == "uint16":
        names += ["min_drop", "max_clip", "subtract_drop", "apply"]
    agree(BACKENDS, lambda x, i: [INDEXED[n](x, i) for n in names], data(4, 6, dtype=dtype), AT)


def random_numbers(seed):
    """An operand, indices, and dimension numbers of a gather and of the scatter that puts it back."""
    rng = np.random.default_rng(seed)
    rank, lead = int(rng.integers(1, 5)), [int(n) for n in rng.integers(1, 4, rng.integers(0, 3))]
    shape = [int(n) for n in rng.integers(2, 5, rank)]
    axes = [int(a) for a in rng.permutation(rank)]
    together = min(int(rng.integers(0, 3)), len(lead), rank - 1)
    batching = sorted(axes[:together])
    places = [int(i) for i in rng.permutation(len(lead))[:together]]
    for a, i in zip(batching, places, strict=True):
        shape[a] = lead[i]
    rest = axes[together:]
    mapped = rest[: int(rng.integers(1, len(rest) + 1))]
    sizes = [1 if a in batching else int(rng.integers(1, n + 1)) for a, n in enumerate(shape)]
    collapsed = sorted(a for a in rest if rng.random() < 0.4)
    for a in collapsed:
        sizes[a] = 1
    windows = rank - len(collapsed) - together
    offsets = sorted(int(i) for i in rng.permutation(len(lead) + windows)[:windows])
    indices = rng.integers(-2, 5, (*lead, len(mapped))).astype(rng.choice(["int32", "int8", "int64"]))
    given = (tuple(offsets), tuple(collapsed), tuple(mapped), tuple(batching), tuple(places))
    return data(*shape, seed=seed), indices, given, tuple(sizes)


def gathered_and_scattered(x, indices, given, sizes, mode):
    offsets, collapsed, mapped, batching, places = given
    found = lax.gather(x, indices, lax.GatherDimensionNumbers(*given), sizes, mode=mode)
    numbers = lax.ScatterDimensionNumbers(offsets, collapsed, mapped, batching, places)
    updates = jnp.cos(lax.broadcasted_iota("float32", (found.size,), 0)).reshape(found.shape)
    return (
        found,
        lax.scatter_add(x, indices, updates, numbers, mode=mode),
        lax.scatter_max(x, indices, updates, numbers, mode=mode),
    )


@pytest.mark.parametrize("seed", range(12))
def test_any_dimension_numbers(seed):
    x, indices, given, sizes = random_numbers(seed)
    mode = ("clip", "fill", "promise_in_bounds")[seed % 3]
    agree(BACKENDS, lambda x, i: gathered_and_scattered(x, i, given, sizes, mode), x, indices)


# ---- windows ---------------------------------------------------------------------------------------------------------


def convolved(x, w, **settings):
    return lax.conv_general_dilated(x, w, **{"window_strides": (1, 1), "padding": "SAME", **settings})


CONVOLUTIONS = {
    "last": lambda x, w: convolved(
        x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
    "odd_layout": lambda x, w: convolved(
        x.transpose(2, 1, 0, 3), w.transpose(1, 3, 0, 2), dimension_numbers=("HCNW", "IWOH", "WNCH")
    ),
    "negative": lambda x, w: convolved(x, w, padding=((-1, 2), (1, -2)), window_strides=(2, 1)),
    "dilated": lambda x, w: convolved(x, w, lhs_dilation=(2, 1), rhs_dilation=(1, 2), padding=((2, 1), (0, 3))),
    "groups": lambda x, w: convolved(x, w[:, :2], feature_group_count=2),
    "batch_groups": lambda x, w: convolved(x, w, batch_group_count=2, window_strides=(1, 2)),
    "wider": lambda x, w: convolved(
        x, w, preferred_element_type=jnp.result_type(x, np.float64 if x.dtype.kind == "f" else x)
    ),
    "gradients": lambda x, w: jax.grad(lambda x, w: (convolved(x, w, rhs_dilation=(1, 2)) ** 2).real.sum(), (0, 1))(
        x, w
    ),
    "gradients_of_groups": lambda x, w: jax.grad(
        lambda x, w: (convolved(x, w[:, :2], feature_group_count=2, window_strides=(2, 2)) ** 2).real.sum(), (0, 1)
    )(x, w),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    agree(BACKENDS, CONVOLUTIONS[name], data(2, 4, 6, 5), data(4, 4, 3, 2, seed=1))


def test_gradients_of_convolutions_of_great_images():
    def strided(x, w):
        return (convolved(x, w, window_strides=(2, 1), rhs_dilation=(1, 2), padding=((1, 0), (2, 1))) ** 2).sum()

    def grouped(x, w):
        return (convolved(x, w[:, :2], feature_group_count=2, window_strides=(1, 3)) ** 2).sum()

    gradients = [jax.grad(f, (0, 1)) for f in (strided, grouped)]
    agree(BACKENDS, lambda x, w: [g(x, w) for g in gradients], data(3, 4, 14, 15), data(4, 4, 3, 2, seed=1))


@pytest.mark.parametrize("dtype", ["int32", "complex64"])
def test_convolutions_of_integers_and_complex_numbers(dtype):
    some = [CONVOLUTIONS[n] for n in ("negative", "groups", "batch_groups")]
    x, w = data(2, 4, 6, 5, dtype=dtype), data(4, 4, 3, 2, dtype=dtype, seed=1)
    agree(BACKENDS, lambda x, w: [f(x, w) for f in some], x, w)


def test_convolutions_without_axes_and_to_wider_integers():
    def both(x, w):
        wide = lax.conv_general_dilated(x, w, (2,), "SAME", preferred_element_type="int32")
        return wide, lax.conv_general_dilated(x[..., 0], w[..., 0], (), ())

    agree(BACKENDS, both, data(2, 3, 9, dtype="int8"), data(4, 3, 2, dtype="int8", seed=1))


def windowed(x, initial, function, window=(2, 3), strides=(1, 2), padding=((1, 0), (2, 1)), **dilations):
    return lax.reduce_window(x, initial, function, window, strides, padding, **dilations)


def pooled(x):
    return lax.reduce_window(x, -INF, lax.max, (2, 3), (1, 2), ((1, 0), (1, 1)))


WINDOWS = {
    **{
        kind: lambda x, f=f, v=v: (
            windowed(x, x.dtype.type(v), f),
            windowed(x, x.dtype.type(v), f, base_dilation=(2, 1), window_dilation=(1, 2)),
            windowed(x, x.dtype.type(v), f, padding=((-1, 0), (0, -2))),
            windowed(x, x.dtype.type(v), f, window=(1, 6), strides=(1, 1), padding=((0, 0), (5, 0))),
        )
        for kind, f, v in (
            ("sum", lax.add, 0), ("product", lax.mul, 1), ("from_two", lax.add, 2), ("max_of_one", lax.max, 1),
        )
    },
    "any_function": lambda x: windowed(x, x.dtype.type(1), lambda a, b: a + b - 1),
    "two_operands": lambda x: lax.reduce_window(
        (x, x), (np.float32(-9), np.float32(0)), 
        lambda a, b: tuple(jnp.where(a[0] >= b[0], u, v) for u, v in zip(a, b, strict=True)),
        (2, 2), (2, 2), "VALID",
    ),
    "pooled": lambda x: jax.grad(lambda x: (pooled(x) * jnp.arange(12.0).reshape(4, 3)).sum())(x),
    "pooled_tangents": lambda x: jax.jvp(pooled, (x,), (jnp.sin(x),)),
    "pooled_twice": lambda x: jax.grad(lambda x: jax.jvp(pooled, (x,), (jnp.sin(x),))[1].sum())(x),
    "least": lambda x: jax.grad(lambda x: lax.reduce_window(x, INF, lax.min, (4, 6), (1, 1), "VALID").sum())(x),
    "scans_that_are_batched": lambda x: jax.vmap(lambda r: lax.cumsum(r, reverse=True))(x),
    "select_and_scatter": lambda x: [
        _select_and_scatter(x, lax.ge, (2, 2), (2, 1), ((0, 0), (1, 0)), x[:2], v, f)
        for f, v in ((lax.add, np.float32(0.5)), (lambda a, b: a - 2 * b, np.float32(1)))
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name):
    agree(BACKENDS, WINDOWS[name], X)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "bfloat16", "complex64"])
def test_windows_of_all_dtypes(dtype):
    names = ["sum", "product", "from_two", "any_function"]
    agree(BACKENDS, lambda x: [WINDOWS[n](x) for n in names], data(4, 6, dtype=dtype))


def test_windows_of_truths():
    x = data(4, 6, dtype="bool")
    agree(
        "numpy",
        lambda x: [windowed(x, v, f) for f, v in ((lax.max, False), (lax.min, True), (lax.bitwise_or, False))],
        x,
    )
