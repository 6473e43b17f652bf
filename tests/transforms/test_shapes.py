"""Static and dynamic shapes: one rule and one error on every backend; shapes without computing."""

from __future__ import annotations

import importlib.util
import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.transforms.shape_programs import HEAD, PROGRAMS

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.errors import TracedValueError
from tensorgraft.hub import registry
from tensorgraft.transforms import ShapeDtype, filter_eval_shape

pytestmark = pytest.mark.sampled
BACKENDS = [name for name in ("numpy", "torch", "jax", "tensorflow") if name in registry.backends()]
f32, f64, i64 = np.dtype("float32"), np.dtype("float64"), np.dtype("int64")


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    before = registry.default_or_none()
    tg.set_default_device(request.param)
    yield request.param
    registry._chosen = before


def program(text: str, tmp_path: Path) -> Callable[..., Any]:
    file = tmp_path / "demo.py"
    file.write_text(HEAD + text)
    linecache.checkcache()
    spec = importlib.util.spec_from_file_location("demo", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.f


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(tg.TracedValueError) as caught:
        call()
    text = f"{type(caught.value).__name__}: {caught.value}"
    assert len(text.splitlines()) <= 10
    return text


@pytest.mark.parametrize("name", PROGRAMS)
def test_words(name: str, device: str, tmp_path: Path) -> None:
    """NumPy compiles nothing, so that nothing is traced by `tg.jit`."""
    text, expected = PROGRAMS[name]
    f = program(text, tmp_path)
    x, k = xp.asarray([1.0, 2.0, 3.0, 4.0]), xp.asarray(3, dtype=xp.int32)
    assert error_of(lambda: filter_eval_shape(f, x, k)) == expected.format(name="filter_eval_shape")
    if device != "numpy":
        assert error_of(lambda: tg.jit(f)(x, k)) == expected.format(name="jit")
        assert error_of(lambda: tg.transforms.filter_jit(f)(x, k)) == expected.format(name="jit")


def test_ways_out_work(device: str, tmp_path: Path) -> None:
    """Those of the first program."""
    text = PROGRAMS["shape"][0]
    x = xp.asarray([1.0, 2.0, 3.0, 4.0])
    one = program(text.replace("xp.maximum(k, 1)", "min(max(k, 1), n)"), tmp_path)
    assert tg.jit(one)(x, 3).shape == (8, 3) and tg.jit(one)(x, 9).shape == (8, 4)
    masked = "rademacher(key(0), (8, n)) * (xp.arange(n) < k)"
    two = program(text.replace("rademacher(key(0), (8, k))", masked), tmp_path)
    found = np.asarray(tg.jit(two)(x, xp.asarray(3)))
    assert found.shape == (8, 4) and not found[:, 3].any() and found[:, :3].all()


def test_where_values_are_known(device: str) -> None:
    """Outside of traces, in derivatives, and of constants that a traced function makes itself."""
    n = xp.asarray(3)
    assert xp.zeros((2, n)).shape == (2, 3)
    assert xp.arange(10)[:n].shape == (3,) and len(range(n)) == 3
    x = xp.asarray(2.0)
    with pytest.raises(TracedValueError, match="Inside grad they would have no derivative"):
        tg.grad(lambda v: v * float(v))(x)
    assert float(tg.grad(lambda v: v * v if v * v > 3 else v)(x)) == 4.0
    found = tg.jit(lambda v: xp.zeros((xp.asarray(3), 2)) + v)(x)
    assert found.shape == (3, 2)
    full = tg.jit(lambda v: xp.full((2,), v, dtype=xp.float32))(x)
    assert full.dtype == xp.float32 and np.asarray(full).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("backend", [b for b in ("torch", "jax") if b in BACKENDS])
def test_batches(backend: str) -> None:
    def f(v: Any) -> Any:
        return v if v > 2 else -v

    text = error_of(lambda: tg.vmap(f)(xp.asarray([1.0, 3.0], device=backend)))
    assert text.splitlines()[0].startswith("TracedValueError: test_shapes.py:")
    assert text.splitlines()[0].endswith(
        "`return v if v > 2 else -v` needs its condition now, but v > 2 is a traced bool scalar."
    )
    assert text.splitlines()[2] == "Inside vmap an array has no value yet."


@pytest.mark.parametrize("backend", [b for b in ("torch", "jax", "tensorflow") if b in BACKENDS])
def test_nothing_is_baked_in(backend: str) -> None:
    """Arguments, what a function reaches, and derivatives inside."""
    x, k = xp.asarray([1.0, 2.0], device=backend), xp.asarray(1, device=backend)
    holder = type("Holder", (), {"k": k})()
    for fn in (
        lambda x: x[: holder.k],
        lambda x: x * float(k),
        lambda x: x * float(x[0]),
        lambda x: tg.grad(lambda v: xp.sum(v * float(v[0])))(x),
        lambda x: x[xp.asarray([True, False], device=backend) & (x > 0)],
    ):
        with pytest.raises(tg.TracedValueError):
            tg.jit(fn)(x)
    assert issubclass(tg.ShapeError, tg.TracedValueError) and issubclass(tg.TracedValueError, RuntimeError)


def test_python_numbers_stay_python() -> None:
    for name, given, expected in [
        ("minimum", (3, 5), 3), ("maximum", (3, 5), 5), ("add", (3, 5), 8), ("abs", (-3,), 3), ("negative", (3,), -3),
        ("floor_divide", (-7, 2), -4), ("remainder", (-7, 2), 1), ("multiply", (3, 5), 15), ("pow", (2, 10), 1024),
        ("square", (3,), 9), ("sign", (-3,), -1), ("bitwise_and", (6, 3), 2), ("bitwise_left_shift", (1, 4), 16),
        ("round", (3,), 3), ("clip", (7, 1, 4), 4), ("clip", (7, None, 9), 7), ("less", (1, 2), True),
        ("minimum", (2.5, 1.5), 1.5), ("floor", (2.5,), 2.0), ("round", (2.5,), 2.0), ("divide", (1, 2), 0.5),
        ("logical_and", (True, False), False),
    ]:  # fmt: skip
        found = getattr(xp, name)(*given)
        assert found == expected and type(found) is type(expected), name
    assert xp.maximum(float("nan"), 1.0) != xp.maximum(float("nan"), 1.0)
    for wrong in (
        lambda: xp.add("a", 1),
        lambda: xp.sqrt(4),
        lambda: xp.minimum(True, 2),
        lambda: xp.bitwise_and(1.0, 2),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_python_numbers_among_arguments(device: str) -> None:
    """An int that a compiled function makes a shape of is a part of the program."""

    @tg.jit
    def f(x: Any, k: int) -> Any:
        return xp.ones((xp.minimum(k, x.shape[0]), 2)) * x[0]

    x = xp.asarray([1.0, 2.0, 3.0])
    assert f(x, 2).shape == (2, 2) and f(x, 9).shape == (3, 2)


def test_shapes_are_ints(device: str) -> None:
    assert xp.zeros((np.int64(2), 3)).shape == (2, 3)
    for wrong in (2.0, (2, 1.5), "ab", None):
        with pytest.raises(TypeError, match="expected a shape, an int or a tuple of ints"):
            xp.zeros(wrong)  # type: ignore[arg-type]


def test_masks_multiply(device: str) -> None:
    """Beyond the standard, which leaves booleans and numbers open."""
    x = xp.asarray([1.5, 2.5])
    assert np.asarray(x * xp.asarray([True, False])).tolist() == [1.5, 0.0]
    assert (xp.asarray([True, False]) * xp.asarray([3, 4])).dtype == xp.int64
    with pytest.raises(TypeError):
        x + xp.asarray([True, False])


# ---- filter_eval_shape -----------------------------------------------------------------------------------------------


def test_shapes_of_programs_on_the_hub(device: str) -> None:
    def f(x: Any, w: Any, *, n: int) -> Any:
        y = xp.zeros((n, 10**9)) if n > 3 else x @ w
        return {"y": y, "s": xp.linalg.svd(x)[1], "r": tg.random.normal(tg.random.key(0), (10**7, 10**6)), "n": n}

    like = ShapeDtype((5, 3), f64), ShapeDtype((3, 2), f64)
    found = filter_eval_shape(f, *like, n=2)
    assert found == {
        "y": ShapeDtype((5, 2), f64), "s": ShapeDtype((3,), f64), "r": ShapeDtype((10**7, 10**6), f64), "n": 2,
    }  # fmt: skip
    assert filter_eval_shape(f, *like, n=4)["y"] == ShapeDtype((4, 10**9), f64)
    with pytest.raises(ValueError, match="expected the last axis of the first"):
        filter_eval_shape(lambda x, w: w @ x, *like)


def test_shapes_through_transforms(device: str) -> None:
    x = ShapeDtype((3, 4), f32)
    cases: list[tuple[Callable[..., Any], Any]] = [
        (tg.grad(lambda x: xp.sum(xp.sin(x) * x)), x),
        (tg.vmap(lambda x: xp.sum(x)), ShapeDtype((3,), f32)),
        (tg.jit(lambda x: x.T), ShapeDtype((4, 3), f32)),
        (lambda x: tg.transforms.fori_loop(0, 10**9, lambda i, s: s * 2, x), x),
        (lambda x: tg.transforms.cond(xp.sum(x) > 0, lambda y: y, lambda y: -y, x), x),
        (lambda x: tg.transforms.scan(lambda c, r: (c + xp.sum(r), r * 2), xp.zeros((), dtype=xp.float32), x)[1], x),
        (lambda x: tg.transforms.error_if(x, xp.any(x > 0), "no"), x),
        (lambda x: xp.fft.rfft(x), ShapeDtype((3, 3), np.dtype("complex64"))),
        (lambda x: xp.take(xp.sort(x), xp.asarray([0, 2]), axis=1), ShapeDtype((3, 2), f32)),
    ]
    for fn, expected in cases:
        assert filter_eval_shape(fn, x) == expected


def test_nothing_is_written(device: str) -> None:
    a = xp.ones((3,))

    def f(x: Any) -> Any:
        x[0] = 5
        a[...] = x
        return a

    b = xp.zeros((3,))
    assert filter_eval_shape(f, b) == ShapeDtype((3,), f64)
    assert np.asarray(a).tolist() == [1, 1, 1] and np.asarray(b).tolist() == [0, 0, 0]


def test_shapes_of_jax_functions() -> None:
    jax = pytest.importorskip("jax")
    eqx = pytest.importorskip("equinox")
    mlp = eqx.nn.MLP(3, 2, 8, 2, key=jax.random.key(0))
    assert filter_eval_shape(mlp, ShapeDtype((3,), f32)) == ShapeDtype((2,), f32)
    x = jax.ShapeDtypeStruct((3, 4), "float32")
    assert filter_eval_shape(lambda x, n: (x @ x.T, n, "a"), x, 3) == (ShapeDtype((3, 3), f32), 3, "a")


def test_shapes_of_torch_functions() -> None:
    torch = pytest.importorskip("torch")
    assert filter_eval_shape(torch.nn.Linear(3, 4), ShapeDtype((5, 3), f32)) == ShapeDtype((5, 4), f32)
    x = torch.ones(3)
    assert filter_eval_shape(lambda x: {"a": x.mul_(2).sum(), "b": "s"}, x) == {"a": ShapeDtype((), f32), "b": "s"}
    assert x.tolist() == [1, 1, 1]
    for wrong in (lambda x: torch.zeros(int(x.sum())), lambda x: x[x > 0]):
        with pytest.raises(tg.ShapeError, match=r"test_shapes.py:\d+: `for wrong in .* needs values of tensors now"):
            filter_eval_shape(wrong, x)
    with pytest.raises(tg.TracedValueError, match="Inside filter_eval_shape a tensor has no value yet"):
        filter_eval_shape(lambda x: x if x.sum() > 0 else -x, x)
    with pytest.raises(ValueError, match="expected arrays of one framework"):
        filter_eval_shape(lambda x, y: x, x, xp.ones(3))


def test_shapes_of_tensorflow_functions() -> None:
    tf = pytest.importorskip("tensorflow")
    found = filter_eval_shape(lambda x: {"a": tf.reduce_sum(x, 0), "b": (1, "s")}, tf.ones((3, 2)))
    assert found == {"a": ShapeDtype((2,), f32), "b": (1, "s")}
    found = filter_eval_shape(lambda x, y: x @ y, tf.TensorSpec((None, 2)), tf.ones((2, 3)))
    assert found.shape == (None, 3)
