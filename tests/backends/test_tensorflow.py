"""What is particular to the TensorFlow backend; its operations are tested eagerly with all others in tests/hub."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import optree
import pytest
from tests.hub.cases import CASES, operation, units
from tests.hub.checks import assert_close, wide
from tests.hub.draw import Draw

pytest.importorskip("tensorflow")

from tensorgraft.backends.tensorflow.framework import tf
from tensorgraft.backends.tensorflow.graph import CompiledGraph
from tensorgraft.errors import TracedValueError
from tensorgraft.hub import dtypes, registry

xp: Any = registry.get("tensorflow")


def host(x: Any) -> np.ndarray:
    return xp.to_numpy(x)


# ---- every primitive in a graph -------------------------------------------------------------------------------------

# What the CPU's XLA lacks or does not do well enough: compiled programs with one of these are TensorFlow's own graphs.
NOT_BY_XLA = {
    "svd": "stops at 1e-6",
    "svdvals": "stops at 1e-6",
    "eigh": "stops at 1e-6",
    "eig": "no kernel",
}


def as_function(key: str) -> tuple[Any, list[np.ndarray], Any, np.dtype]:
    """A row of the table as a function of its arrays alone; the arrays; all operands. One dtype stands for all."""
    case = CASES[key]
    seed = zlib.crc32(key.encode())
    dtype = case.dtypes[seed % len(case.dtypes)]
    operands = case.arguments(Draw(random.Random(seed).randint, dtype))
    leaves, tree = optree.tree_flatten(operands)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]

    def fn(*arrays: Any) -> tuple[Any, ...]:
        filled = list(leaves)
        for i, a in zip(places, arrays, strict=True):
            filled[i] = a
        out = getattr(xp, operation(key))(*optree.tree_unflatten(tree, filled))
        return tuple(out) if isinstance(out, tuple | list) else (out,)

    return fn, [leaves[i] for i in places], operands, dtype


@pytest.mark.parametrize("mode", ["xla", "graph"])
@pytest.mark.parametrize("key", [key for key in CASES if key != "nonzero"])  # whose shape depends on values
def test_in_a_program(key: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, arrays, operands, dtype = as_function(key)
    case, made = CASES[key], []
    given = [xp.asarray(a) for a in arrays]
    if mode == "graph":
        found = [host(x) for x in tf.function(fn, autograph=False)(*given)]
    else:
        init = CompiledGraph.__init__
        monkeypatch.setattr(CompiledGraph, "__init__", lambda self, graph: (made.append(self), init(self, graph))[1])
        found = [host(x) for x in xp.compile(fn)(*given)]
        assert made[0].by_xla == (key not in NOT_BY_XLA)
    if case.verify is not None:
        case.verify(operands, tuple(found))
        return
    with np.errstate(all="ignore"):
        wanted = case.reference(*(wide(operands) if case.wide else operands))  # type: ignore[misc]
    for a, b in zip(found, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        assert_close(a, b, units(case, dtype))


def test_what_xla_has_not_is_remembered() -> None:
    seen = []
    program = xp.compile(lambda x: (seen.append(1), xp.eig(x)[0])[1:])
    for _ in range(2):
        assert sorted(host(program(xp.asarray(np.diag([2.0, 1.0])))[0]).real) == [1, 2]
    assert len(seen) == 1


BRANCHES = {
    "log of exp": lambda z: xp.log(xp.exp(z)),
    "log of product": lambda z: xp.log(xp.multiply(xp.exp(z), xp.exp(z))),
    "log of power": lambda z: xp.log(xp.pow(z, 2.5)),
    "log10 of exp": lambda z: xp.log10(xp.exp(z)),
    "log2 of exp": lambda z: xp.log2(xp.exp(z)),
    "sqrt of square": lambda z: xp.sqrt(xp.multiply(z, z)),
    "rsqrt of square": lambda z: xp.rsqrt(xp.multiply(z, z)),
    "power of exp": lambda z: xp.pow(xp.exp(z), 1.5),
    "power of square": lambda z: xp.pow(xp.multiply(z, z), 0.5),
    "power of power": lambda z: xp.pow(xp.pow(z, 2.5), 1.5),
    "log": xp.log,
    "sqrt": xp.sqrt,
}


@pytest.mark.parametrize("name", BRANCHES)
def test_complex_functions_have_their_principal_branch_in_a_program(name: str) -> None:
    """XLA would undo log by exp, which is right for real numbers alone."""
    z = xp.asarray(np.array([0.5 + 4j, -0.5 - 4j, 3 + 1000j, -2 + 0.5j, -4 + 0j, 4 + 0j], np.complex128))
    [found] = xp.compile(lambda z: (BRANCHES[name](z),))(z)
    np.testing.assert_allclose(host(found), host(BRANCHES[name](z)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("compiled", [False, True])
def test_nan_wins(compiled: bool) -> None:
    x, y = np.array([np.nan, 1, 2, np.nan]), np.array([1, np.nan, 1, 0])

    def fn(x: Any, y: Any) -> tuple[Any, ...]:
        return xp.maximum(x, y), xp.minimum(x, y), xp.max(x), xp.min(y), xp.argmax(x, axis=0), xp.argmin(y, axis=0)

    found = (xp.compile(fn) if compiled else fn)(xp.asarray(x), xp.asarray(y))
    wanted = np.maximum(x, y), np.minimum(x, y), np.nan, np.nan, 0, 1
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(host(a), b)


@pytest.mark.parametrize("compiled", [False, True])
def test_incomplete_gamma_functions_at_their_edges(compiled: bool) -> None:
    a, x = np.array([[0, 1], [0, 0], [1, 0], [np.inf, 1], [1, np.inf], [-1, 1], [np.inf, np.inf]]).T

    def fn(a: Any, x: Any) -> tuple[Any, ...]:
        return xp.igamma(a, x), xp.igammac(a, x)

    lower, upper = map(host, (xp.compile(fn) if compiled else fn)(xp.asarray(a), xp.asarray(x)))
    np.testing.assert_array_equal(lower, [1, np.nan, 0, 0, 1, np.nan, np.nan])
    np.testing.assert_array_equal(upper, 1 - lower)


# ---- integers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.int32, dtypes.int64], ids=str)
def test_divisions_that_trap_elsewhere(dtype: np.dtype, compiled: bool) -> None:
    least = np.iinfo(dtype).min
    x, y = np.array([least, 7, -7], dtype), np.array([-1, 0, -1], dtype)

    def fn(x: Any, y: Any) -> tuple[Any, ...]:
        return xp.integer_floor_divide(x, y), xp.fmod(x, y)

    quotient, rest = map(host, (xp.compile(fn) if compiled else fn)(xp.asarray(x), xp.asarray(y)))
    assert quotient[[0, 2]].tolist() == [least, 7] and rest[[0, 2]].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.uint8, dtypes.uint64], ids=str)
def test_shifts_by_more_bits_than_there_are(dtype: np.dtype) -> None:
    x, y = np.array([5, 200, 1], dtype), np.array([8 * dtype.itemsize, 1, 100], dtype)
    with np.errstate(all="ignore"):
        for name in ("bitwise_left_shift", "bitwise_right_shift"):
            found, wanted = getattr(xp, name)(xp.asarray(x), xp.asarray(y)), getattr(np, name)(x, y)
            np.testing.assert_array_equal(host(found), wanted)


def test_negative_powers_of_integers() -> None:
    x, y = np.array([-1, -1, 1, 2], np.int32), np.array([-3, -2, -1, -1], np.int32)
    assert host(xp.pow(xp.asarray(x), xp.asarray(y))).tolist() == [-1, 1, 1, 0]


# ---- more axes than TensorFlow's kernels take -----------------------------------------------------------------------

SHAPE = (2, 3, 2, 1, 2, 1, 2, 3, 1, 2)
MANY_AXES = {
    "add": lambda ns, x: ns.add(x, ns.permute_dims(x, (0, 3, 2, 1, 4, 5, 6, 8, 7, 9))),
    "broadcast": lambda ns, x: ns.broadcast_to(x, tuple(3 if n == 1 else n for n in SHAPE)),
    "slice": lambda ns, x: ns.slice(x, (0, 1) + (0,) * 8, (2, 3, *SHAPE[2:]), (1, 2) + (1,) * 8),
    "slice_update": lambda ns, x: ns.slice_update(
        x, ns.zeros((1, *SHAPE[1:]), dtypes.float32), (1, *(0,) * 9), (1,) * 10
    ),
    "pad": lambda ns, x: ns.pad(x, 1, [(1, 0, 0), (-1, 1, 1), *[(0, 0, 0)] * 7, (0, 1, 0)]),
    "flip": lambda ns, x: ns.flip(x, (0, 7, 9)),
    "sum": lambda ns, x: ns.sum(x, axis=(0, 2, 4, 9)),
    "argmax": lambda ns, x: ns.argmax(x, axis=1),
    "cumsum": lambda ns, x: ns.cumsum(x, axis=7),
    "cummax": lambda ns, x: ns.cummax(x, axis=7),
    "sort": lambda ns, x: ns.sort((x,), axis=1)[0],
    "where": lambda ns, x: ns.where(ns.greater(x, 3), x, ns.permute_dims(x, (0, 3, 2, 1, 4, 5, 6, 8, 7, 9))),
}


@pytest.mark.parametrize("name", MANY_AXES)
def test_many_axes(name: str) -> None:
    x = np.random.default_rng(0).uniform(size=SHAPE).astype(np.float32)
    of_numpy = registry.get("numpy")
    found, wanted = MANY_AXES[name](xp, xp.asarray(x)), MANY_AXES[name](of_numpy, x)
    np.testing.assert_allclose(host(found), wanted, rtol=1e-6)


# ---- Python scalars -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*dtypes.FLOATING, dtypes.complex64], ids=str)
def test_a_scalar_argument_takes_the_arrays_dtype(dtype: np.dtype) -> None:
    x = xp.asarray(np.asarray([1, 2], dtype))
    times = xp.compile(lambda x, s: (xp.multiply(x, s), xp.subtract(s, x), xp.where(xp.equal(x, x), x, s)))
    for out, wanted in zip(times(x, 0.5), ([0.5, 1], [-0.5, -1.5], [1, 2]), strict=True):
        assert xp.dtype_of(out) == dtype
        assert (host(out) == np.asarray(wanted, dtype)).all()


def test_scalar_arguments_are_not_baked_in() -> None:
    traces, x = [], xp.asarray(np.ones(2, np.float32))
    program = xp.compile(lambda x, s: (traces.append(s), xp.add(x, xp.multiply(s, 2)))[1:])
    assert [float(host(program(x, s)[0])[0]) for s in (1.0, 2.0, 3.5)] == [3, 5, 8]
    assert len(traces) == 1


def test_scalars_that_are_returned_wrapped_or_bool() -> None:
    assert xp.dtype_of(xp.compile(lambda s: (s,))(2.5)[0]) == dtypes.float64
    assert host(xp.add(xp.asarray(np.zeros(1, np.uint8)), -1)).tolist() == [255]
    out = xp.compile(lambda x, s: (xp.add(x, s),))(xp.asarray(np.arange(3, dtype=np.int8)), True)[0]
    assert xp.dtype_of(out) == dtypes.int8 and host(out).tolist() == [1, 2, 3]


# ---- programs -------------------------------------------------------------------------------------------------------


def test_arrays_from_outside_are_inputs_whatever_their_size() -> None:
    """Also those that are used only in a branch or in the body of a loop."""
    outside = [xp.asarray(np.full(shape, k, np.float32)) for k, shape in ((2, ()), (3, (2,)), (4, (500,)), (5, ()))]
    branch, looped, large, stepped = map(xp.stand_in, outside)

    def program() -> list[Any]:
        x = xp.cond(xp.greater(xp.sum(large), 0), lambda: xp.multiply(branch, 1), lambda: xp.zeros((), dtypes.float32))
        y = xp.while_loop(lambda s: xp.less(xp.sum(s), 20), lambda s: xp.add(s, looped), xp.zeros((2,), dtypes.float32))
        z = xp.scan(lambda c, at: (xp.add(c, stepped), at), x, xp.iota(3, dtypes.int64), length=3)[0]
        return [x, y, z]

    traced = xp.trace(program)
    assert {id(a) for a in traced.captured} >= {id(branch), id(looped), id(large), id(stepped)}
    assert traced.size > 3
    run = traced.compile()
    assert [host(x).tolist() for x in run(*traced.captured)] == [2, [12, 12], 17]
    other = {id(branch): 7.0, id(stepped): 1.0}
    given = [np.float32(other[id(a)]) if id(a) in other else a for a in traced.captured]
    assert [host(x).tolist() for x in run(*given)] == [7, [12, 12], 10]


def test_values_while_tracing() -> None:
    seen = []

    def program() -> list[Any]:
        x = xp.add(known, 1)
        with pytest.raises(TracedValueError, match="float32 array of shape \\(2,\\)"):
            xp.to_numpy(x)
        with xp.eagerly():
            seen.append(host(xp.add(known, 2)).tolist())
        seen.append(host(xp.asarray(np.arange(3))).tolist())
        return [x]

    known = xp.asarray(np.zeros(2, np.float32))
    xp.trace(program)
    assert seen == [[2, 2], [0, 1, 2]]


def test_gradients_of_a_tape() -> None:
    """Through operations, and through compiled functions and the control flow in them."""
    x = xp.asarray(np.array([1.0, 2.0, 3.0]))

    def fn(x: Any) -> Any:
        total = xp.scan(lambda c, v: (xp.add(c, xp.multiply(v, v)), c), xp.zeros((), dtypes.float64), x, length=3)[0]
        return xp.add(total, xp.sum(xp.gather(xp.sort((x,))[0], (xp.iota(2, dtypes.int64),))))

    for run in (fn, tf.function(fn, autograph=False), lambda x: xp.compile(lambda x: (fn(x),))(x)[0]):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(x)
        np.testing.assert_allclose(host(y), 17)
        np.testing.assert_allclose(host(tape.gradient(y, x)), [3, 5, 6])


def test_compiled_functions_are_inlined_in_other_graphs() -> None:
    double = xp.compile(lambda x: (xp.multiply(x, 2),))
    outer = tf.function(lambda x: double(x)[0] + 1, autograph=False, jit_compile=True)
    assert host(outer(tf.range(3.0))).tolist() == [1, 3, 5]


def test_errors_of_control_flow_name_what_differs() -> None:
    with pytest.raises(TypeError, match="the body returns the structure"):
        xp.while_loop(lambda s: xp.less(s, 1), lambda s: (s, s), xp.full((), 0, dtypes.int32))
    with pytest.raises(TypeError, match=r"cond: the branches return int32\[3\] and int32\[2\]"):
        xp.compile(lambda x: (xp.cond(xp.any(xp.equal(x, 0)), lambda: x, lambda: xp.take_slice(x, 0, 0, 2)),))(
            xp.iota(3, dtypes.int32)
        )
    with pytest.raises(TypeError, match=r"while_loop: the body turns int32\[\] into .*float32"):
        xp.compile(lambda s: (xp.while_loop(lambda s: xp.less(s, 1), lambda s: xp.astype(s, dtypes.float32), s),))(
            xp.full((), 0, dtypes.int32)
        )


# ---- arrays ---------------------------------------------------------------------------------------------------------


def test_float8_moves() -> None:
    x = np.array([[1, 2, -3], [0.5, 0, 448]], ml_dtypes.float8_e4m3fn)
    a = xp.asarray(x)
    for found, wanted in (
        (xp.flip(a, (1,)), np.flip(x, 1)),
        (xp.gather(a, (xp.asarray(np.array([1])),)), x[[1]]),
        (xp.pad(a, 0, [(1, 0, 0), (0, 0, 0)]), np.pad(x.astype(np.float32), ((1, 0), (0, 0)))),
        (xp.add(a, a), (x.astype(np.float32) * 2).astype(x.dtype)),
        (xp.bitcast(xp.reshape(a, (6,)), dtypes.uint8), x.reshape(-1).view(np.uint8)),
    ):
        np.testing.assert_array_equal(host(found).astype(np.float32), np.asarray(wanted).astype(np.float32))


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_bits_of_float8_in_graphs(dtype: type) -> None:
    """All of them, and back; NaN has one pattern of bits for each sign at the most."""
    bits = np.arange(256, dtype=np.uint8)
    nan = np.isnan(bits.view(dtype).astype(np.float32))
    a = xp.asarray(bits.view(dtype))
    (found,) = xp.compile(lambda a: (xp.bitcast(a, dtypes.uint8),))(a)
    np.testing.assert_array_equal(host(found)[~nan], bits[~nan])
    assert np.isnan(host(found)[nan].view(dtype).astype(np.float32)).all()
    (back,) = xp.compile(lambda a: (xp.bitcast(a, np.dtype(dtype)),))(xp.asarray(bits))
    np.testing.assert_array_equal(host(back).astype(np.float32), bits.view(dtype).astype(np.float32))


def test_dtypes_that_tensorflow_has_not() -> None:
    with pytest.raises(NotImplementedError, match="no tensors of int2"):
        xp.asarray(np.zeros(3, ml_dtypes.int2))


@pytest.mark.parametrize("dtype", [np.bool_, np.uint16, np.float64, np.complex64])
def test_dlpack_of_any_layout(dtype: Any) -> None:
    for x in (np.ones((4, 3), dtype), np.ones((4, 6), dtype)[:, ::2], np.broadcast_to(np.ones(3, dtype), (2, 3))):
        found = host(xp.from_dlpack(x))
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, x)


def test_dlpack_of_memory_that_is_not_aligned() -> None:
    """TensorFlow takes it, and its kernels end the process."""
    memory = np.arange(64, dtype=np.float32)
    for start in range(4):
        x = xp.from_dlpack(memory[start : start + 32])
        assert host(xp.copy(x)).tolist() == host(xp.add(x, 0)).tolist() == memory[start : start + 32].tolist()


def test_import_is_quiet_and_leaves_the_users_settings() -> None:
    code = """
import tensorgraft.backends.tensorflow as b
import numpy as np
xp = b.TensorFlowBackend()
print(xp.to_numpy(xp.compile(lambda x: (xp.add(x, 1),))(xp.asarray(np.zeros(1, np.float32)))[0]))
import tensorflow as tf
assert tf.executing_eagerly() and not tf.config.optimizer.get_jit() and tf.config.get_soft_device_placement()
"""
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1.]\n", "")


@pytest.mark.parametrize("divisor", [127.5, 3.0, 2.0])
@pytest.mark.parametrize("how", ["number", "full", "broadcast"])
def test_division_by_a_constant_is_no_product_with_its_reciprocal(divisor: float, how: str) -> None:
    x = np.random.default_rng(0).standard_normal((64, 33)).astype(np.float32)

    def quotient(x: Any) -> tuple[Any]:
        y = {
            "number": lambda: divisor,
            "full": lambda: xp.full((64, 1), divisor, dtypes.float32),
            "broadcast": lambda: xp.broadcast_to(xp.full((), divisor, dtypes.float32), (5, 64, 33)),
        }[how]()
        return (xp.divide(x, y),)

    found = host(xp.compile(quotient)(xp.asarray(x))[0])
    assert np.array_equal(found, np.broadcast_to(x / np.float32(divisor), found.shape))
    assert found.ndim == (3 if how == "broadcast" else 2)


def test_a_number_that_is_zero_keeps_its_sign() -> None:
    """TensorFlow keeps one tensor for equal numbers, and takes 0.0 for -0.0."""
    reciprocal = xp.compile(lambda x, y: (xp.divide(x, y),))
    one = xp.asarray(np.ones(2, np.float32))
    for zero in (0.0, -0.0, 0.0):
        assert np.array_equal(np.signbit(host(reciprocal(one, zero)[0])), np.signbit([zero, zero]))


def test_int4_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="cannot compute with arrays of int4: convert them to int8"):
        xp.astype(xp.asarray(np.zeros(2, np.float32)), np.dtype(ml_dtypes.int4))
