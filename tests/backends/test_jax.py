"""What is particular to the JAX backend; its operations are tested with all others in tests/hub."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from jax import lax
from jax.experimental.layout import Format, Layout

import tensorgraft as tg
import tensorgraft.array_api
from tensorgraft.backends.jax import JaxBackend
from tensorgraft.backends.jax.compilation import executable
from tensorgraft.backends.numpy import NumpyBackend
from tensorgraft.errors import TracedValueError
from tensorgraft.hub import Backend, dtypes

pytestmark = pytest.mark.sampled

xp = JaxBackend()


def host(x: jax.Array) -> np.ndarray:
    return np.asarray(x)


# ---- the user's configuration ---------------------------------------------------------------------------------------


def test_the_users_configuration_is_unchanged() -> None:
    before = dict(jax.config.values)
    with xp.scope():
        assert xp.asarray(np.arange(3.0)).dtype == np.float64
    xp.compile(lambda x: (xp.add(x, 1),))(np.arange(3.0))
    assert dict(jax.config.values) == before
    assert not jax.config.jax_enable_x64
    assert jnp.arange(3.0).dtype == jnp.float32


def test_the_scope_ends_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError), xp.scope():
        _ = 1 / 0
    assert jnp.ones(1).dtype == jnp.float32


def test_import_changes_no_configuration() -> None:
    code = """
import jax
before = dict(jax.config.values)
import tensorgraft.backends.jax
assert dict(jax.config.values) == before
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


# ---- Python scalars -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*dtypes.FLOATING, dtypes.complex64])
def test_a_scalar_argument_takes_the_arrays_dtype(dtype: np.dtype) -> None:
    x = np.asarray([1, 2], dtype)
    times = xp.compile(lambda x, s: (xp.multiply(x, s), xp.subtract(s, x), xp.where(xp.equal(x, x), x, s)))
    for out, wanted in zip(times(x, 0.5), ([0.5, 1], [-0.5, -1.5], [1, 2]), strict=True):
        assert out.dtype == dtype and not out.weak_type
        assert (host(out) == np.asarray(wanted, dtype)).all()


def test_scalar_arguments_are_not_baked_in() -> None:
    traces = []

    def fn(x, s):
        traces.append(s)
        return (xp.add(x, s),)

    program = xp.compile(fn)
    x = np.ones(2, np.float32)
    assert [float(program(x, s)[0][0]) for s in (1.0, 2.0, 3.5)] == [2.0, 3.0, 4.5]
    assert len(traces) == 1


def test_a_bool_argument_with_integers() -> None:
    out = xp.compile(lambda x, s: (xp.add(x, s),))(np.arange(3, dtype=np.int8), True)[0]
    assert out.dtype == np.int8 and host(out).tolist() == [1, 2, 3]


def test_a_scalar_that_is_returned_is_an_array_like_any_other() -> None:
    out = xp.compile(lambda s: (s,))(2.5)[0]
    assert out.dtype == np.float64 and not out.weak_type


def test_scalars_out_of_range_wrap() -> None:
    with xp.scope():
        out = xp.add(xp.asarray(np.zeros(1, np.uint8)), -1)
    assert out.dtype == np.uint8 and int(out[0]) == 255


def test_the_dtype_of_operands_is_that_of_the_array() -> None:
    seen = []
    xp.compile(lambda s, x: (seen.append(xp.dtype_of(s, x)), xp.add(x, s))[1:])(1.5, np.ones(1, np.float16))
    assert seen == [dtypes.float16]


# ---- programs -------------------------------------------------------------------------------------------------------


def test_donated_arrays_are_gone_and_unused_ones_make_no_noise() -> None:
    with xp.scope():
        x, y = (xp.copy(xp.asarray(np.ones(4, np.float32))) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = xp.compile(lambda x, y: (xp.add(x, 1),), donate=(0, 1))(x, y)[0]  # one result, two donations
    assert x.is_deleted() and host(out).tolist() == [2] * 4


def test_compiled_functions_are_inlined_in_other_traces() -> None:
    double = xp.compile(lambda x: (xp.multiply(x, 2),))
    x = jnp.arange(3, dtype=jnp.float32)
    jaxpr = jax.make_jaxpr(double)(x)
    assert [e.primitive.name for e in jaxpr.eqns] == ["mul"]
    out = jax.jit(lambda x: double(x)[0] + 1)(x)
    assert out.dtype == jnp.float32 and host(out).tolist() == [1, 3, 5]
    assert host(jax.grad(lambda x: double(x)[0].sum())(x)).tolist() == [2, 2, 2]
    assert host(jax.vmap(lambda x: double(x)[0])(x)).tolist() == [0, 2, 4]


def test_operations_leave_no_calls_in_a_trace() -> None:
    with xp.scope():
        jaxpr = jax.make_jaxpr(lambda x: xp.softmax(xp.add(x, 1), 0))(np.ones(3, np.float32))
    assert not {"jit", "pjit", "convert_element_type"} & {e.primitive.name for e in jaxpr.eqns}


IN_32_BITS = {
    "argmax": lambda x: xp.argmax(xp.astype(x, dtypes.float32), axis=0),  # of float64: JAX itself fails
    "argsort": lambda x: xp.argsort(x),
    "cumsum": lambda x: xp.cumsum(x, axis=0),
    "gather": lambda x: xp.gather(x, (xp.iota(2, dtypes.int64),)),
    "iota": lambda x: xp.multiply(xp.iota(2, dtypes.int64), 2**40),
    "scatter": lambda x: xp.scatter(x, (xp.iota(1, dtypes.int64),), xp.full((1,), 7, dtypes.float64), mode="add"),
    "searchsorted": lambda x: xp.searchsorted(x, x),
    "sigmoid": lambda x: xp.sigmoid(x),
    "sum": lambda x: xp.sum(x),
    "top_k": lambda x: xp.top_k(x, 1)[1],
    "uniform": lambda x: xp.uniform(xp.iota(2, dtypes.uint32), (3,), dtypes.float64),
}


@pytest.mark.parametrize("name", IN_32_BITS)
def test_64_bit_programs_inside_a_32_bit_trace(name: str) -> None:
    program = xp.compile(lambda x: (IN_32_BITS[name](x),))
    with xp.scope():
        x = xp.asarray(np.asarray([1.0, 1 + 1e-12]))
    wanted = program(x)[0]
    found = jax.jit(program)(x)[0]
    assert found.dtype == wanted.dtype and found.dtype.itemsize == 8
    assert host(found).tolist() == host(wanted).tolist()


def test_constants_have_values_in_a_trace() -> None:
    values = []

    def fn(x):
        values.append(xp.to_numpy(xp.asarray(np.asarray([1, 2]))).tolist())
        return (x,)

    xp.compile(fn)(np.ones(1))
    assert values == [[1, 2]]


@pytest.mark.parametrize("ask", [xp.to_numpy, xp.nonzero])
def test_values_that_are_traced_are_errors(ask) -> None:
    with pytest.raises(TracedValueError, match=r"bool array of shape \(3,\).*traced"):
        xp.compile(lambda x: (ask(x),))(np.ones(3, bool))


# ---- programs that are called often ----------------------------------------------------------------------------------


def often(fn, *args, donate=()):
    """A compiled function after many calls with arrays like these."""
    run = xp.compile(fn, donate)
    for _ in range(2 * executable._OFTEN):
        run(*[jnp.copy(a) for a in args])
    known = dict(zip(run.__code__.co_freevars, run.__closure__, strict=True))
    assert known["cached"].cell_contents.direct is not None  # what is tested below is called
    return run


def test_another_array_to_a_program_that_is_called_often() -> None:
    x = jnp.arange(8.0).reshape(2, 4)
    run = often(lambda x, y: (xp.add(x, y), x, 2 * y), x, x)
    given = [
        x,
        x.reshape(4, 2),  # of as many bytes
        jnp.arange(8).reshape(2, 4),
        jnp.arange(3.0),
        jnp.full((2, 4), 2),
        np.arange(8, dtype=np.float32).reshape(2, 4),
        xp.from_dlpack(np.arange(8, dtype=np.float32).reshape(4, 2).T),
        jnp.float16(3),
        1.5,
    ]
    for y in (*given, x):
        with xp.scope():
            wanted = jax.jit(lambda x, y: (x + y, x, 2 * y))(y, y)
        found = run(y, y)
        assert [a.dtype for a in found] == [a.dtype for a in wanted]
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(host(a), host(b))


def test_arguments_and_results_of_a_program_that_is_called_often() -> None:
    x, y = jnp.arange(3.0), jnp.arange(4)
    np.testing.assert_array_equal(host(often(lambda x, y: y + 1, x, y)(x, y)), [1, 2, 3, 4])  # one result, one unused
    assert often(lambda x: (), x)(x) == ()
    run = often(lambda x, y: (x + 1, y), x, y, donate=(0,))
    given = x + 0
    run(given, y)
    assert given.is_deleted() and not y.is_deleted()
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        run(given, y)


def test_in_a_trace_a_program_that_is_called_often_is_a_part_of_it() -> None:
    x = jnp.arange(3.0)
    run = often(lambda x: (xp.multiply(x, x),), x)
    np.testing.assert_array_equal(host(jax.jit(run)(x)[0]), [0, 1, 4])
    np.testing.assert_array_equal(host(jax.grad(lambda x: run(x)[0].sum())(x)), [0, 2, 4])
    assert jax.make_jaxpr(lambda: run(x))().jaxpr.eqns  # arrays of outside, too: a capture has them for what changes


def test_nan_is_looked_for_in_a_program_that_is_called_often() -> None:
    x = jnp.ones(3)
    run = often(lambda x: (xp.log(x),), x)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        run(-x)


def test_what_tells_the_host_does_so_at_every_call() -> None:
    told: list[float] = []

    def tell(x):
        xp.observe(lambda v: told.append(float(v)), x)
        return (x,)

    run = xp.compile(tell)
    for i in range(3 * executable._OFTEN):
        run(jnp.float32(i))
    jax.effects_barrier()
    assert sorted(told) == list(range(3 * executable._OFTEN))


def test_arrays_of_several_devices_to_a_program_that_is_called_often() -> None:
    code = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from tensorgraft.backends.jax import JaxBackend
xp, x = JaxBackend(), jnp.arange(4.0)
run = xp.compile(lambda x: (xp.add(x, x),))
for _ in range(30): run(x)
mesh = Mesh(np.array(jax.devices()), ("a",))
for where in (NamedSharding(mesh, P("a")), NamedSharding(mesh, P()), jax.devices()[1]):
    y = jax.device_put(x, where)
    assert run(y)[0].sharding.device_set == y.sharding.device_set
    np.testing.assert_array_equal(run(y)[0], [0, 2, 4, 6])
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    environment = {**os.environ, **flags, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_dlpack_of_a_transposed_array_lies_as_all_others() -> None:
    x = xp.from_dlpack(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert x.format.layout.major_to_minor == (0, 1)
    np.testing.assert_array_equal(host(x), [[0, 3], [1, 4], [2, 5]])
    across = jax.device_put(jnp.ones((2, 3)), Format(Layout((1, 0)), jnp.ones(1).sharding))
    for inside in (tg.to_backend_array(tg.from_backend_array(across)), tg.array_api.asarray(across).native):
        assert inside.format.layout.major_to_minor == (0, 1)


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_host_arrays_are_copied() -> None:
    with xp.scope():
        source = np.zeros(1 << 16)
        x = xp.asarray(source)
        source += 1
        assert not host(x).any()


def test_host_arrays_of_any_layout() -> None:
    source = np.arange(12).reshape(3, 4).T[::-1]
    with xp.scope():
        assert (host(xp.asarray(source)) == source).all()


def test_values_on_the_host_cannot_be_written() -> None:
    with xp.scope():
        assert not xp.to_numpy(xp.asarray(np.zeros(3))).flags.writeable


STRIDED = [
    torch.arange(12.0).reshape(3, 4),
    torch.arange(12.0).reshape(3, 4).T,
    torch.arange(12.0).reshape(3, 4)[:, ::2],
    torch.arange(9.0)[1:],
    torch.arange(3).to(torch.int64),
    torch.tensor([True, False]),
    torch.tensor(2.0, dtype=torch.bfloat16),
    torch.zeros(0, 3),
]


@pytest.mark.parametrize("t", STRIDED, ids=lambda t: f"{t.dtype}-{tuple(t.stride())}")
def test_dlpack(t: torch.Tensor) -> None:
    with xp.scope():
        x = xp.from_dlpack(t)
    assert x.shape == tuple(t.shape)
    assert host(x).astype(np.float64).tolist() == t.double().tolist()


def test_dlpack_of_a_read_only_array() -> None:
    source = np.arange(3.0)
    source.flags.writeable = False
    with xp.scope():
        assert host(xp.from_dlpack(source)).tolist() == [0, 1, 2]


def test_devices() -> None:
    assert xp.device_name() == ("CPU" if jax.default_backend() == "cpu" else jax.devices()[0].device_kind)
    assert JaxBackend.device_count() == len(jax.devices())
    with pytest.raises(ValueError, match="JAX has no device 99: it has"):
        JaxBackend(99)
    assert set(xp.memory_stats()) <= {"allocated", "peak"}


def test_a_named_device_holds_its_arrays() -> None:
    cpu = JaxBackend(0, "cpu")
    with cpu.scope():
        x = cpu.add(cpu.asarray(np.arange(3.0)), cpu.iota(3, dtypes.float64))
    assert x.devices() == {jax.devices("cpu")[0]} and x.dtype == np.float64
    cpu.synchronize()


# ---- operations that are not XLA's own ------------------------------------------------------------------------------

CONVOLUTIONS = {  # x, w, strides, padding, lhs dilation, rhs dilation, groups, batch groups
    "window beyond image": ((2, 6, 2, 2), (4, 6, 3, 3), (1, 1), [(1, 1)] * 2, (1, 1), (1, 1), 1, 1),
    "its input gradient": ((2, 6, 2, 2), (4, 6, 3, 3), (1, 1), [(1, 2), (2, 1)], (2, 2), (1, 1), 1, 1),
    "window beyond image, groups": ((2, 6, 2, 2), (4, 3, 3, 3), (1, 2), [(1, 1)] * 2, (1, 1), (1, 1), 2, 1),
    "one axis": ((2, 6, 3), (4, 6, 5), (2,), [(3, 2)], (1,), (1,), 1, 1),
    "three axes": ((2, 2, 2, 2, 2), (4, 2, 3, 2, 3), (1, 1, 1), [(1, 1)] * 3, (1, 1, 1), (1, 1, 1), 1, 1),
    "depthwise": ((2, 6, 9, 7), (6, 1, 3, 2), (2, 1), [(1, 1), (0, 2)], (1, 1), (2, 3), 6, 1),
    "depthwise, two filters a channel": ((2, 3, 9, 7), (6, 1, 3, 2), (1, 1), [(1, 1), (0, 2)], (1, 1), (1, 1), 3, 1),
    "depthwise, padding cut off": ((2, 6, 9, 7), (6, 1, 3, 2), (1, 1), [(-1, 1), (0, -2)], (2, 1), (1, 1), 6, 1),
    "batch groups": ((6, 4, 8, 8), (9, 4, 7, 7), (1, 1), [(1, 1)] * 2, (1, 1), (1, 1), 1, 3),
    "batch groups of one": ((6, 4, 8, 8), (6, 4, 4, 4), (1, 1), [(1, 1)] * 2, (1, 1), (2, 2), 1, 6),
    "few places": ((2, 3, 5, 4), (40, 3, 3, 2), (2, 1), [(1, 1), (0, 1)], (1, 1), (1, 2), 1, 1),
    "window of one": ((2, 3, 5, 4), (4, 3, 1, 1), (2, 3), [(0, 0)] * 2, (1, 1), (1, 1), 1, 1),
    "window of one, many channels": ((2, 40, 1, 2), (80, 40, 1, 1), (1, 1), [(0, 0)] * 2, (1, 1), (1, 1), 1, 1),
    "batch groups of one, two filters": ((3, 4, 8, 8), (6, 4, 8, 8), (1, 1), [(1, 1)] * 2, (1, 1), (1, 1), 1, 3),
}


@pytest.mark.parametrize("dtype", [np.dtype(np.float64), np.dtype(np.int32), dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_as_products_are_xlas(case: str, dtype: np.dtype) -> None:
    sx, sw, *rest, groups, batches = CONVOLUTIONS[case]
    random = np.random.default_rng(0)
    with xp.scope():
        x, w = (xp.asarray(random.integers(-3, 4, s).astype(dtype)) for s in (sx, sw))  # no rounding
        program = xp.compile(lambda x, w: (xp.convolution(x, w, *rest, groups=groups, batch_groups=batches),))
        if xp.device.platform == "cpu":
            assert "conv_general_dilated" not in str(jax.make_jaxpr(program)(x, w))
        own = lax.conv_general_dilated(
            x, w, *rest, feature_group_count=groups, batch_group_count=batches, preferred_element_type=np.float32
        ) if dtype == dtypes.bfloat16 else lax.conv_general_dilated(
            x, w, *rest, feature_group_count=groups, batch_group_count=batches
        )  # fmt: skip
    out = program(x, w)[0]
    assert out.dtype == dtype and out.shape == own.shape
    assert (host(out) == host(own).astype(dtype)).all()


TRANSPOSED = {  # x, w, strides, padding, dilation, output padding
    "window beyond image": ((2, 4, 2, 2), (4, 6, 3, 3), (2, 2), (1, 1), (1, 1), (1, 0)),
    "few places": ((1, 40, 3, 4), (40, 6, 3, 2), (1, 3), (2, 0), (1, 2), (0, 2)),
    "padding beyond image": ((2, 4, 1, 2), (4, 3, 5, 5), (1, 1), (2, 2), (1, 1), (0, 0)),
    "window of one": ((2, 3, 4, 5), (3, 4, 1, 1), (2, 1), (0, 1), (1, 1), (1, 0)),
    "window of one, many channels": ((2, 80, 2, 2), (80, 40, 1, 1), (2, 1), (0, 0), (1, 1), (1, 0)),
    "one axis": ((2, 3, 2), (3, 4, 4), (3,), (1,), (2,), (0,)),
    "three axes": ((1, 2, 2, 1, 2), (2, 3, 2, 3, 2), (1, 2, 2), (0, 1, 1), (1, 1, 1), (0, 1, 0)),
}
WEIGHTS = {  # x, gradient, window, strides, padding, dilation
    "few places": ((2, 3, 5, 4), (2, 40, 3, 3), (3, 2), (2, 1), (1, 0), (1, 1)),
    "places that no window sees": ((1, 3, 8, 6), (1, 20, 3, 2), (2, 3), (2, 3), (0, 0), (3, 1)),
    "window of one": ((3, 4, 5, 4), (3, 6, 3, 2), (1, 1), (2, 3), (0, 0), (1, 1)),
    "window of one, many channels": ((3, 64, 1, 1), (3, 32, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
    "result beyond image": ((2, 3, 2, 2), (2, 4, 4, 4), (3, 3), (1, 1), (2, 2), (1, 1)),
    "one axis": ((2, 3, 9), (2, 20, 4), (3,), (2,), (1,), (2,)),
    "three axes": ((1, 2, 3, 3, 3), (1, 20, 2, 2, 2), (2, 2, 2), (1, 1, 1), (0, 0, 0), (1, 1, 1)),
}


@pytest.mark.parametrize("dtype", [np.dtype(np.float64), np.dtype(np.int32), dtypes.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "case"),
    [("transposed_convolution", c) for c in TRANSPOSED] + [("convolution_weights", c) for c in WEIGHTS],
)
def test_gradients_of_convolutions_as_products_are_the_composites(name: str, case: str, dtype: np.dtype) -> None:
    first, second, *rest = (TRANSPOSED if name == "transposed_convolution" else WEIGHTS)[case]
    random = np.random.default_rng(0)
    values = [random.integers(-3, 4, s).astype(dtype) for s in (first, second)]  # no rounding
    numpy = NumpyBackend()
    with xp.scope():
        a, b = map(xp.asarray, values)
        program = xp.compile(lambda a, b: (getattr(xp, name)(a, b, *rest),))
        if xp.device.platform == "cpu":
            assert "conv_general_dilated" not in str(jax.make_jaxpr(program)(a, b))
        out = program(a, b)[0]
    wanted = getattr(numpy, name)(*values, *rest)
    assert out.dtype == dtype and out.shape == wanted.shape
    assert (host(out) == wanted).all()


@pytest.mark.parametrize(
    "dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64, dtypes.int32], ids=str
)
@pytest.mark.parametrize("axis", [0, 1])
def test_top_k_is_the_composite(dtype: np.dtype, axis: int) -> None:
    special = [1, 0.0, -0.0, 0.0, 2, 2] + [np.nan, -np.nan, np.inf, -np.inf] * dtypes.is_floating(dtype)
    values = np.random.default_rng(0).choice(special, (9, 8)).astype(dtype)
    with xp.scope():
        x = xp.asarray(values)
        found, wanted = xp.top_k(x, 6, axis), Backend.top_k(xp, x, 6, axis)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(host(a).astype(np.float64), host(b).astype(np.float64))
        assert (np.signbit(host(a)) == np.signbit(host(b)))[~np.isnan(host(a).astype(np.float64))].all()


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64), dtypes.bfloat16], ids=str)
def test_logarithms_of_powers_are_exact(dtype: np.dtype) -> None:
    powers = np.arange(-30, 31)
    with xp.scope():
        out = xp.log2(xp.asarray(np.ldexp(1.0, powers).astype(dtype)))
    assert (host(out).astype(np.float64) == powers).all()


def test_floating_numbers_become_integers_as_on_x86() -> None:
    values = np.asarray([300.7, -129.5, 3e9, -3e9, np.nan], np.float32)
    with xp.scope():
        x = xp.asarray(values)
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
            wanted = torch.from_numpy(values).to(dtype).numpy()
            assert (host(xp.astype(x, wanted.dtype)) == wanted).all()


def test_float32_products_are_not_rounded() -> None:
    with xp.scope():
        jaxpr = str(jax.make_jaxpr(lambda x: xp.dot_general(x, x, ((1,), (0,))))(np.ones((2, 2), np.float32)))
        with jax.default_matmul_precision("bfloat16"):  # unless the user says so
            rounded = str(jax.make_jaxpr(lambda x: xp.dot_general(x, x, ((1,), (0,))))(np.ones((2, 2), np.float32)))
    assert "HIGHEST" in jaxpr and "HIGHEST" not in rounded


def test_gradients_of_updates_and_logarithms() -> None:
    with xp.scope():
        x, u = xp.asarray(np.arange(1.0, 7.0).reshape(2, 3)), xp.asarray(np.ones((2, 2)))
        gx, gu = jax.grad(lambda x, u: (xp.slice_update(x, u, (0, 0), (1, 2)) * x).sum(), (0, 1))(x, u)
        assert host(gu).tolist() == [[1, 3], [4, 6]] and host(gx).tolist() == [[1, 4, 1], [1, 10, 1]]
        slope = jax.grad(lambda x: xp.log2(x).sum())(xp.asarray(np.asarray([1.0, 3.0, 8.0])))
        np.testing.assert_allclose(host(slope), 1 / (np.asarray([1, 3, 8]) * np.log(2)))


def test_structures_of_control_flow_are_checked() -> None:
    with xp.scope():
        zero = xp.asarray(np.zeros(()))
        with pytest.raises(TypeError, match="scan: the body returns the structure"):
            xp.scan(lambda c, x: ((c, c), x), zero, xp.asarray(np.zeros(3)), length=3)
        with pytest.raises(TypeError, match="cond: the branches return different structures"):
            xp.cond(xp.asarray(np.asarray(True)), lambda x: (x,), lambda x: [x], zero)


def test_float8() -> None:
    with xp.scope():
        x = xp.astype(xp.asarray(np.asarray([1.0, 2.5, 300.0], np.float32)), dtypes.float8_e4m3fn)
        assert x.dtype == dtypes.float8_e4m3fn
        assert host(xp.astype(x, dtypes.int32)).tolist() == [1, 2, 288]
        assert host(xp.bitcast(x, dtypes.uint8)).tolist() == np.asarray(x).view(np.uint8).tolist()
        out = xp.dot_general(x, x, ((0,), (0,)), dtype=dtypes.float32)
    assert float(out) == 1 + 2.5**2 + 288**2
    assert np.dtype(ml_dtypes.float8_e4m3fn) == x.dtype


# ---- rounding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("divisor", [127.5, np.linspace(0.3, 3, 50, dtype=np.float32)[:, None], np.float32(3)])
def test_quotients_are_rounded_once(divisor: object) -> None:
    """Not a product with a reciprocal, which XLA prefers for divisors that are broadcast."""
    x = np.linspace(0.1, 9, 5000, dtype=np.float32).reshape(50, 100)
    given = divisor if isinstance(divisor, float) else xp.asarray(np.asarray(divisor))
    np.testing.assert_array_equal(host(xp.divide(xp.asarray(x), given)), x / divisor)
    (found,) = xp.compile(lambda x, y: (xp.round(xp.divide(x, y)),))(xp.asarray(x), given)
    np.testing.assert_array_equal(host(found), np.round(x / divisor))


# ---- memory ----------------------------------------------------------------------------------------------------------


FAULTS = """
import resource
import jax, jax.numpy as jnp, numpy as np
from tensorgraft.backends.jax import JaxBackend

xp = JaxBackend()
rows = xp.asarray(np.ones((4096, 4096), np.float32))  # 64 MB: beyond what glibc keeps by itself

def program(x):
    turned = jax.lax.optimization_barrier(x.T * 2)
    return (jnp.cumsum(turned, 1)[:, -1] + turned[:, 0],)

compiled = xp.compile(program)
for _ in range(3):
    jax.block_until_ready(compiled(rows))
faults = []
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(compiled(rows))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as Linux counts them")
@pytest.mark.slow
def test_intermediate_results_are_not_mapped_anew_at_each_call() -> None:
    """In a process of one thread. Not in each process, nor at each call: where glibc has put small blocks between large
    ones, or gives a block to another result than before, it asks for more."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = functools.partial(subprocess.run, capture_output=True, text=True, check=True, env=alone)
    faults = (int(run([sys.executable, "-c", FAULTS]).stdout) for _ in range(10))
    assert any(n < 4096 for n in faults)  # of 16,384 pages a block


def test_a_factor_is_turned_before_its_product() -> None:
    """XLA would take the transposition into the product, which its fast kernels do not do."""
    g, x = (xp.asarray(np.arange(n * 64, dtype=np.float32).reshape(64, n) % 7) for n in (32, 48))

    def program() -> list[jax.Array]:
        return [xp.matmul(xp.permute_dims(g, (1, 0)), x)]

    traced = xp.trace(program)
    assert "optimization_barrier" in traced.analyse().primitives
    np.testing.assert_array_equal(host(traced.compile()(*traced.captured)[0]), host(g).T @ host(x))


def test_a_program_is_traced_once() -> None:
    """What is compiled is one call of the traced program, whose equations are not traced again."""
    x, y = (xp.asarray(np.full(3, value, np.float32)) for value in (1, 2))
    traced = xp.trace(lambda: [xp.sin(xp.add(x, y)), xp.subtract(x, y), y])
    compiled = traced.compile()
    with xp.scope():
        (call,) = jax.make_jaxpr(compiled)(*traced.captured).eqns
    assert call.primitive.name == "jit"
    expected = np.sin(np.float32(3)), -1, 2
    for out, value in zip(compiled(*traced.captured), expected, strict=True):
        np.testing.assert_allclose(host(out), np.full(3, value, np.float32), rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 64, 128, 16), (2, 100, 48, 32), (1, 16, 32, 48), (4, 16, 32, 48)])
def test_gradients_of_weights_are_products_of_matrices(shape: tuple[int, int, int, int]) -> None:
    batch, length, m, n = shape
    rng = np.random.default_rng(0)
    g, x = (xp.asarray(rng.integers(-3, 4, (batch, length, k)).astype(np.float32)) for k in (m, n))
    traced = xp.trace(lambda: [xp.dot_general(g, x, ((0, 1), (0, 1)), ((), ()), None)])
    expected = host(g).reshape(-1, m).T @ host(x).reshape(-1, n)
    np.testing.assert_array_equal(host(traced.compile()(*traced.captured)[0]), expected)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((300,), 0), ((128,), 0), ((3, 129), 1), ((5, 7, 200), (0, 2)), ((40, 130), (0, 1)), ((200, 3), 0)],
)
def test_products_along_long_axes(shape: tuple[int, ...], axis: int | tuple[int, ...]) -> None:
    x = 1 + 0.1 * np.random.default_rng(0).standard_normal(shape)
    with xp.scope():
        product = jax.jit(lambda x: xp.prod(x, axis))(x)
        gradient = jax.jit(jax.grad(lambda x: xp.prod(x, axis).sum()))(x)
    expected = np.prod(x, axis)
    np.testing.assert_allclose(host(product), expected, rtol=1e-12)
    np.testing.assert_allclose(host(gradient), np.prod(x, axis, keepdims=True) / x, rtol=1e-10)
