"""What is particular to the PyTorch backend; its operations are tested with all others in tests/hub."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from tests.hub.cases import CASES, operation
from tests.hub.checks import backend, to_backend, wide
from tests.hub.draw import Draw
from tests.hub.test_control_flow import powers, running_sum
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import tensorgraft as tg
from tensorgraft.backends.torch import program
from tensorgraft.errors import TracedValueError
from tensorgraft.hub import dtypes

xp: Any = backend("torch")
KEY = np.array([3, 4], np.uint32)


def array(values: Any, dtype: Any = np.float32) -> torch.Tensor:
    return xp.asarray(np.asarray(values, dtype))


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> torch.Tensor:
    return array(np.random.default_rng(seed).standard_normal(shape), dtype)


# ---- torch.compile and torch.func ------------------------------------------------------------------------------------

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "add": (lambda x: xp.add(x, 2), (normal(3),)),
    "unsigned": (lambda x: xp.integer_floor_divide(xp.add(x, 7), 3), (array([0, 5, 2**32 - 1], np.uint32),)),
    "scope": (lambda x: xp.sum(xp.exp(x), axis=0), (normal(3, 4),)),
    "mean": (lambda x: xp.mean(x, axis=0), (normal(3, 4, dtype=dtypes.bfloat16),)),
    "max": (lambda x: xp.max(x, axis=(0, 1)), (normal(3, 4),)),
    "logsumexp": (lambda x: xp.logsumexp(x, axis=0), (normal(3, 4),)),
    "astype": (lambda x: xp.astype(x, dtypes.uint8), (normal(3, 4),)),
    "bitcast": (lambda x: xp.bitcast(x, dtypes.int64), (normal(4),)),
    "matmul": (lambda x: xp.matmul(x, x), (normal(4, 4),)),
    "convolution": (
        lambda x, w: xp.convolution(x, w, (1, 1), ((1, 0), (0, 1)), (1, 2), (1, 1)),
        (normal(2, 3, 5, 5), normal(4, 3, 2, 2)),
    ),
    "scatter": (lambda x, i: xp.scatter(x, (i,), x[:2], "max"), (normal(4, 4), array([1, 1], np.int64))),
    "sort": (lambda x: xp.sort((x, x), num_keys=2), (normal(4, 4),)),
    "normal": (lambda key: xp.normal(key, (5,), dtypes.float32), (array(KEY, np.uint32),)),
    "dynamic_slice": (lambda x, i: xp.dynamic_slice(x, (i, i), (2, 2)), (normal(4, 4), array(1, np.int64))),
    "slice_update": (lambda x: xp.slice_update(x, x[:2, :2], (0, 1), (2, 1)), (normal(4, 4),)),
    "solve": (lambda x: xp.solve(x, x), (normal(3, 3),)),
    "while_loop": (lambda limit: powers(xp, limit), (array(100, np.int32),)),
    "scan": (lambda xs: running_sum(xp, xs, 20, reverse=True), (normal(20, 2),)),
    "cond": (
        lambda p, x: xp.cond(p, lambda x: {"out": xp.add(x, x)}, lambda x: {"out": x}, x),
        (array(True, bool), normal(3)),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_compile(name: str) -> None:
    fn, args = FUNCTIONS[name]
    torch._dynamo.reset()
    found = torch.compile(fn, fullgraph=True, backend="aot_eager")(*args)
    for a, b in zip(tree_leaves(found), tree_leaves(fn(*args)), strict=True):
        torch.testing.assert_close(a, b)


def test_the_scope_under_torch_compile() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with xp.scope():
            return xp.add(x, 1)

    torch._dynamo.reset()
    assert torch.compile(fn, fullgraph=True, backend="eager")(torch.zeros(2)).tolist() == [1, 1]


UNIQUE_UP_TO_SIGNS = {"qr", "svd", "eigh", "eig"}


@pytest.mark.parametrize("key", [key for key in CASES if key != "nonzero"])
def test_vmap(key: str) -> None:
    case = CASES[key]
    for dtype in case.dtypes[:: max(len(case.dtypes) - 1, 1)]:
        arguments = to_backend(xp, case.arguments(Draw(random.Random(key).randint, dtype)))
        leaves, tree = tree_flatten(arguments)
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if not at:
            return

        def fn(*arrays: Any, leaves: Any = leaves, at: Any = at, tree: Any = tree) -> Any:
            given = list(leaves)
            for i, x in zip(at, arrays, strict=True):
                given[i] = x
            return getattr(xp, operation(key))(*tree_unflatten(given, tree))

        arrays = [leaves[i] for i in at]
        found = tree_leaves(torch.vmap(fn)(*[torch.stack([x, x]) for x in arrays]))
        for batch, one in zip(found, tree_leaves(fn(*arrays)), strict=True):
            if key not in UNIQUE_UP_TO_SIGNS:
                np.testing.assert_allclose(wide(xp.to_numpy(batch[1])), wide(xp.to_numpy(one)), rtol=1e-4, atol=1e-4)


GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: xp.softmax(x, 1),
    "gather": lambda x: xp.gather(x, (array([0, 0, 2], np.int64),)),
    "scatter": lambda x: xp.scatter(x, (array([0, 2], np.int64),), xp.multiply(x[:2], 3), "add"),
    "slice_update": lambda x: xp.slice_update(x, xp.exp(x[:1, :2]), (1, 1), (1, 1)),
    "pad": lambda x: xp.pad(x, 1.5, ((1, -1, 1), (0, 2, 0))),
    "sort": lambda x: xp.sort((x,), axis=0)[0],
    "reduce_window": lambda x: xp.reduce_window(x, "max", (2, 2), (1, 1), ((0, 0), (1, 0)), (1, 1)),
    "convolution": lambda x: xp.convolution(
        x[None, None], x[None, None, :2, :2], (1, 1), ((0, 0),) * 2, (1, 1), (1, 1)
    ),
    "cholesky": lambda x: xp.cholesky(xp.matmul(x, x.mT) + 3 * torch.eye(3, dtype=x.dtype)),
    "scan": lambda x: xp.scan(lambda c, row: (xp.multiply(c, row), c), x[0], x, length=3)[1],
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    x = normal(3, 4, dtype=np.float64).requires_grad_()
    assert torch.autograd.gradcheck(GRADIENTS[name], (x,), check_forward_ad=True)
    grad = torch.func.grad(lambda x: GRADIENTS[name](x).square().sum())(x.detach())
    (wanted,) = torch.autograd.grad(GRADIENTS[name](x).square().sum(), x)
    torch.testing.assert_close(grad, wanted)


def test_a_condition_for_each_of_a_batch() -> None:
    found = torch.vmap(lambda p, x: xp.cond(p, lambda x: xp.add(x, 1), lambda x: x, x))(
        torch.tensor([True, False]), torch.zeros(2)
    )
    assert found.tolist() == [1, 0]


# ---- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dtypes.uint16, dtypes.uint32, dtypes.uint64], ids=str)
def test_great_unsigned_numbers(dtype: np.dtype) -> None:
    most = int(np.iinfo(dtype).max)
    values = np.array([0, 1, 2, 3, most // 2, most // 2 + 1, most // 2 + 2, most - 1, most], dtype)
    a, b = (v.reshape(-1) for v in np.meshgrid(values, values[1:]))
    x, y = xp.asarray(a), xp.asarray(b)
    for name, reference in {
        "integer_floor_divide": np.floor_divide,
        "fmod": np.fmod,
        "multiply": np.multiply,
        "maximum": np.maximum,
        "less_equal": np.less_equal,
    }.items():
        np.testing.assert_array_equal(xp.to_numpy(getattr(xp, name)(x, y)), reference(a, b), err_msg=name)
    shift = np.arange(len(values), dtype=dtype) % 8
    np.testing.assert_array_equal(
        xp.to_numpy(xp.bitwise_right_shift(xp.asarray(values), xp.asarray(shift))), values >> shift
    )
    for wide_dtype in (dtypes.float32, dtypes.float64, dtypes.int64, dtypes.uint64, dtypes.int8):
        found = xp.to_numpy(xp.astype(xp.asarray(values), wide_dtype))
        np.testing.assert_array_equal(found, values.astype(wide_dtype), err_msg=str(wide_dtype))
    order = xp.to_numpy(xp.argsort(xp.asarray(values[::-1].copy())))
    assert order.tolist() == list(range(len(values)))[::-1]


@pytest.mark.parametrize("dtype", [dtypes.uint16, dtypes.uint32, dtypes.uint64, dtypes.float8_e5m2])
def test_elements_are_taken_of_every_dtype(dtype: np.dtype) -> None:
    x, at = xp.asarray(np.arange(6).reshape(2, 3).astype(dtype)), array([2, 0], np.int64)
    assert xp.to_numpy(xp.take(x, at, 1)).tolist() == [[2, 0], [5, 3]]
    assert xp.to_numpy(xp.gather(x, (array([1], np.int64),))).tolist() == [[3, 4, 5]]


def test_uint64_from_floats() -> None:
    values = np.array([0.0, 1.5, 2.0**52, 2.0**63, 1.5 * 2.0**63], np.float64)
    np.testing.assert_array_equal(xp.to_numpy(xp.astype(xp.asarray(values), dtypes.uint64)), values.astype(np.uint64))


@pytest.mark.parametrize(("value", "wanted"), [(300, 44), (-1, 255), (2**64 + 1, 1), (-(2**70), 0)])
def test_python_ints_wrap(value: int, wanted: int) -> None:
    assert xp.add(array([0, 0], np.uint8), value).tolist() == [wanted] * 2
    assert xp.full((), value, dtypes.uint8).item() == wanted


@pytest.mark.parametrize("dtype", dtypes.FLOAT8, ids=str)
def test_float8(dtype: np.dtype) -> None:
    host = np.array([1.5, -2, 0.25, 8], np.float32).astype(dtype)
    x = xp.asarray(host)
    for found, wanted in (
        (xp.add(x, x), wide(host) * 2),
        (xp.multiply(x, 0.5), wide(host) / 2),
        (xp.less(x, 0), wide(host) < 0),
        (xp.max(x), 8),
        (xp.flip(x, (0,)), wide(host)[::-1]),
        (xp.gather(x, (array([2, 0], np.int64),)), wide(host)[[2, 0]]),
        (xp.pad(x, 1, ((1, 0, 0),)), np.pad(wide(host), (1, 0), constant_values=1)),
        (xp.sort((x,))[0], np.sort(wide(host))),
        (xp.matmul(xp.reshape(x, (2, 2)), xp.reshape(x, (2, 2))), wide(host).reshape(2, 2) @ wide(host).reshape(2, 2)),
    ):
        assert xp.dtype_of(found) in (dtype, dtypes.bool_)
        np.testing.assert_array_equal(wide(xp.to_numpy(found)), wide(np.asarray(wanted).astype(xp.dtype_of(found))))


def test_int4_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="no tensors of int4: convert them to int8"):
        xp.asarray(np.zeros(2, ml_dtypes.int4))


@pytest.mark.parametrize(("x", "y"), [(-(2**63), -1), (5, 0), (-5, -1), (-7, 2)])
def test_integer_division_neither_raises_nor_traps(x: int, y: int) -> None:
    a, b = array([x], np.int64), array([y], np.int64)
    quotient, rest = xp.integer_floor_divide(a, b), xp.fmod(a, b)
    if y == 2:
        assert (quotient.item(), rest.item()) == (-4, -1)
    if y == -1:
        assert rest.item() == 0 and quotient.item() in (-x, x)


def test_integer_products_without_kernels_for_integers() -> None:
    from tensorgraft.backends.torch.linalg import integer_product

    rng = np.random.default_rng(0)
    for dtype in (np.int8, np.int32, np.int64):
        info = np.iinfo(dtype)
        a, b = (rng.integers(info.min, info.max, shape, dtype, True) for shape in ((4, 50), (50, 3)))
        np.testing.assert_array_equal(xp.to_numpy(integer_product(xp.asarray(a), xp.asarray(b))), a @ b)


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_tensors_of_the_front_end_are_not_its_arrays() -> None:
    assert xp.is_array(torch.ones(2)) and not xp.is_array(torch.ones(2, device=tg.device("numpy")))


def test_own_copies_only_what_others_hold() -> None:
    x = xp.matmul(normal(2, 3), normal(3, 2))
    assert xp.ensure_owned(x) is x
    view = xp.reshape(x, (4,))
    assert xp.ensure_owned(view) is not view
    del x
    assert xp.ensure_owned(view[:2]).untyped_storage().nbytes() == 8
    assert xp.ensure_owned(xp.broadcast_to(array([1.0]), (3,))).is_contiguous()
    conjugate = torch.ones(2, dtype=torch.complex64).conj()
    assert not xp.ensure_owned(conjugate).is_conj()


def test_a_view_of_other_elements() -> None:
    x = array(np.arange(6), np.uint8)
    view = xp.strided_view(x, (1,), (1,), 0, dtypes.uint32)  # six bytes hold one of four
    assert view.tolist() == [int.from_bytes(bytes(range(4)), "little")]
    xp.assign(view, array([0], np.uint32))
    assert x.tolist() == [0, 0, 0, 0, 4, 5]


@pytest.mark.parametrize("strides", [(0, 1), (1, 1)])
def test_of_elements_in_one_place_the_last_is_kept(strides: tuple[int, int]) -> None:
    x, value = array(np.zeros(8)), np.arange(6.0, dtype=np.float32).reshape(2, 3)
    xp.assign(xp.strided_view(x, (2, 3), strides, 2, dtypes.float32), xp.asarray(value))
    wanted = np.zeros(8)
    for i, j in np.ndindex(2, 3):
        wanted[2 + i * strides[0] + j * strides[1]] = value[i, j]
    np.testing.assert_array_equal(xp.to_numpy(x), wanted)


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"'torch:tpu:0' is not a device: PyTorch has torch:cpu:0"):
        type(xp)(0, "tpu")


class Watch(TorchDispatchMode):
    """A mode of the program that is not to see the inside of a device."""

    seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


def test_the_programs_modes_do_not_reach_the_inside() -> None:
    x = normal(4, 4)
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"), Watch() as watch, xp.scope():
        y = xp.add(xp.matmul(x, x), xp.iota(4, dtypes.float32))
    assert y.dtype == torch.float32 and y.device.type == "cpu" and not watch.seen
    with torch.inference_mode(), xp.scope():
        z = xp.add(x, 1)
    assert not z.is_inference() and not z.requires_grad
    z += 1  # which an inference tensor would refuse
    assert xp.compile(lambda x: (xp.add(x, 1),))(x)[0].equal(x + 1)


# ---- programs --------------------------------------------------------------------------------------------------------


def run(fn: Callable[..., Any], *arrays: torch.Tensor) -> list[torch.Tensor]:
    """The results of a traced function of arrays."""
    stand_ins = [xp.stand_in(x) for x in arrays]
    traced = xp.trace(lambda: fn(*stand_ins))
    given = {id(s): x for s, x in zip(stand_ins, arrays, strict=True)}
    return list(traced.compile()(*[given.get(id(x), x) for x in traced.captured]))


def test_a_program_reads_what_is_outside_and_nothing_is_baked_in() -> None:
    x, y, unused = normal(3), normal(3, seed=1), normal(3, seed=2)
    a, b = xp.stand_in(x), xp.stand_in(unused)
    traced = xp.trace(lambda: [xp.add(xp.multiply(a, y), xp.iota(3, dtypes.float32)), xp.reshape(a, (3, 1)), y])
    assert [c is a or c is y for c in traced.captured] == [True, True] and b is not None
    program = traced.compile()
    total, same, given = program(x + 1, y + 2)
    torch.testing.assert_close(total, (x + 1) * (y + 2) + torch.arange(3))
    assert same.shape == (3, 1) and given.equal(y + 2)
    assert xp.mutable and total.is_contiguous()
    host = np.ones(3, np.float32)
    assert program(host, host)[1].reshape(3).tolist() == [1, 1, 1]


def test_results_have_memory_of_their_own() -> None:
    x = normal(4)
    first, second, back = run(lambda x: [xp.reshape(y := xp.exp(x), (2, 2)), y, x], x)
    first.zero_()
    assert second.all()
    back.zero_()
    assert x.all()


def test_strides_that_meta_functions_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken lies as the indices do."""
    monkeypatch.setattr(program, "compiler", lambda: "none")
    table, at = normal(20), array(np.arange(15).reshape(3, 5), np.int64)
    (flat,) = run(lambda x, i: [xp.reshape(xp.gather(x, (xp.permute_dims(i, (1, 0)),)), (15,))], table, at)
    assert torch.equal(flat, table[at].T.reshape(15))


def test_in_a_trace_arrays_have_no_values() -> None:
    x = normal(3)
    for ask in (xp.to_numpy, xp.nonzero, lambda x: float(xp.sum(x)), lambda x: bool(xp.any(xp.less(x, 0)))):
        with pytest.raises(TracedValueError):
            run(lambda x, ask=ask: [ask(xp.exp(x))], x)
    assert xp.mutable  # after the error, too
    kept: list[Any] = []
    run(lambda x: kept.append(xp.exp(x)) or [x], x)  # type: ignore[func-returns-value]
    with pytest.raises(TracedValueError, match="created while a program was traced, and is used outside"):
        xp.add(kept[0], 1)


def test_known_values_are_computed_at_once() -> None:
    x = normal(3)
    seen = []

    def fn(a: Any) -> list[Any]:
        with xp.eagerly():
            seen.append(xp.to_numpy(xp.add(a, xp.full((3,), 1, dtypes.float32))))
        return [xp.exp(a)]

    run(fn, x)
    np.testing.assert_array_equal(seen[0], xp.to_numpy(x) + 1)


LOOPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "while_loop": (lambda limit: list(powers(xp, limit)), (array(100, np.int32),)),
    "scan": (lambda xs: tree_leaves(running_sum(xp, xs, 20)), (normal(20, 2),)),
    "scan reversed": (lambda xs: tree_leaves(running_sum(xp, xs, 20, True)), (normal(20, 2),)),
    "short scan": (lambda xs: tree_leaves(running_sum(xp, xs, 3)), (normal(3, 2),)),
    "cond": (
        lambda p, x: [xp.cond(p, lambda y: xp.add(y, x), lambda y: xp.full((3,), 2, dtypes.float32), x)],
        (array(False, bool), normal(3)),
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_control_flow_is_in_the_program(name: str) -> None:
    fn, args = LOOPS[name]
    for found, wanted in zip(run(fn, *args), fn(*args), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_loop_is_one_body() -> None:
    sizes = []
    for length in (20, 200):
        xs = xp.stand_in(normal(length, 2))
        sizes.append(xp.trace(lambda xs=xs, n=length: tree_leaves(running_sum(xp, xs, n))).size)
    assert sizes[0] == sizes[1]


def test_branches_that_differ_are_refused() -> None:
    with pytest.raises(TypeError, match="cond: the branches return different results"):
        run(lambda p, x: [xp.cond(p, lambda: x, lambda: xp.sum(x))], array(True, bool), normal(3))
    with pytest.raises(TypeError, match=r"while_loop: the body returns .*int64.* but the loop started with .*float32"):
        run(
            lambda x: [xp.while_loop(lambda x: xp.any(xp.less(x, 0)), lambda x: xp.astype(x, dtypes.int64), x)],
            normal(3),
        )


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler")
def test_inductor_compiles_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "compiler", lambda: "inductor")
    x, key = normal(3, 4), array(KEY, np.uint32)

    def fn(x: Any, key: Any) -> list[Any]:
        carry, _ = running_sum(xp, xp.reshape(x, (6, 2)), 6)
        return [xp.add(xp.softmax(x, 1), xp.uniform(key, (3, 4), dtypes.float32)), carry["total"]]

    for found, wanted in zip(run(fn, x, key), fn(x, key), strict=True):
        torch.testing.assert_close(found, wanted)


# ---- the front end on it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_step(compiled: bool) -> None:
    losses = []
    for device in ("cpu", tg.device("torch")):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(32, 3)).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x, y = torch.randn(4, 1, 6, 6).to(device), torch.tensor([0, 1, 2, 0]).to(device)

        def step(x: Any, y: Any, model: Any = model, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        step = tg.jit(step) if compiled and device != "cpu" else step
        losses.append([step(x, y).item() for _ in range(4)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_writes_through_views() -> None:
    x = torch.zeros(3, 4, device=tg.device("torch"))
    x.t()[1:3] += 2
    x[0].fill_(1)
    assert x.tolist() == [[1, 1, 1, 1], [0, 2, 2, 0], [0, 2, 2, 0]]

    def write(x: torch.Tensor) -> torch.Tensor:
        x[:, 1:].mul_(3)
        return x.sum()

    assert tg.jit(write)(x).item() == 34
    assert x.tolist() == [[1, 3, 3, 3], [0, 6, 6, 0], [0, 6, 6, 0]]


def test_native_tensors_are_shared() -> None:
    native = torch.zeros(3)
    t = tg.from_backend_array(native)
    t += 2
    assert t.device == tg.device("torch") and native.tolist() == [2, 2, 2]
    tg.to_backend_array(t)[0] = 5
    assert t.tolist() == [5, 2, 2]
    with pytest.raises(ValueError, match="row-major"):
        tg.from_backend_array(torch.zeros(2, 3).t())


def test_kernels_taken_apart_read_what_was_expanded() -> None:
    x = torch.arange(6.0).expand(1, 3, 6)
    wanted = torch.ops.aten.unfold_backward(x, [1, 8], 1, 6, 1)
    found = torch.ops.aten.unfold_backward(torch.arange(6.0).to(tg.device("torch")).expand(1, 3, 6), [1, 8], 1, 6, 1)
    assert found.cpu().equal(wanted)
