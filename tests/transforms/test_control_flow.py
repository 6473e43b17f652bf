"""Loops and branches of pytrees of arrays: eager, compiled, batched, differentiated, on every backend."""

import warnings

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry
from tensorgraft.transforms import cond, fori_loop, scan, while_loop

BACKENDS = [name for name in ("numpy", "jax", "torch", "tensorflow") if name in registry.backends()]


@pytest.fixture(autouse=True)
def graphs_run_as_they_are(monkeypatch):
    monkeypatch.setattr("tensorgraft.backends.torch.program.compiler", lambda: "none")


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def array(a, backend):
    return xp.asarray(np.asarray(a), device=backend, copy=True)


def close(ours, right):
    np.testing.assert_allclose(np.asarray(ours), right, rtol=1e-12, atol=1e-14)


def doubled(x):
    """(how often, the number) when it has been doubled beyond 100"""
    out = while_loop(lambda s: s["x"] < 100.0, lambda s: {"x": s["x"] * 2, "n": s["n"] + 1}, {"x": x, "n": 0})
    return out["n"], out["x"]


def test_while(backend):
    x = array(3.0, backend)
    for f in (doubled, tg.jit(doubled)):
        n, out = f(x)
        assert int(n) == 6 and float(out) == 192.0
    assert float(x) == 3.0
    n, out = tg.vmap(doubled)(array([3.0, 60.0, 500.0], backend))
    close(n, [6, 1, 0])
    close(out, [192, 120, 500])


def test_scan_and_its_gradient(backend):
    xs = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]])
    w = np.array([0.5, 2.0])

    def run(w, xs, reverse=False):
        return scan(lambda c, x: (xp.tanh(c * w + x), {"y": c * x}), xp.zeros_like(w), xs, reverse=reverse)

    def right(reverse):
        c, ys = np.zeros(2), []
        for x in xs[::-1] if reverse else xs:
            ys.append(c * x)
            c = np.tanh(c * w + x)
        return c, np.array(ys[::-1] if reverse else ys)

    for reverse in (False, True):
        for f in (run, tg.jit(run)):
            carry, ys = f(array(w, backend), array(xs, backend), reverse)
            close(carry, right(reverse)[0])
            close(ys["y"], right(reverse)[1])

    def loss(w, xs):
        carry, ys = run(w, xs)
        return xp.sum(carry) + xp.sum(ys["y"] ** 2)

    step = 1e-6
    numeric = []
    for k in range(2):
        there, back = w.copy(), w.copy()
        there[k] += step
        back[k] -= step
        pair = [float(loss(array(v, "numpy"), array(xs, "numpy"))) for v in (there, back)]
        numeric.append((pair[0] - pair[1]) / (2 * step))
    eager = tg.grad(loss)(array(w, backend), array(xs, backend))
    np.testing.assert_allclose(np.asarray(eager), numeric, rtol=1e-7)
    close(tg.jit(tg.grad(loss))(array(w, backend), array(xs, backend)), np.asarray(eager))


def test_scan_of_nothing(backend):
    carry, ys = scan(lambda c, x: (c + x, c * 2), array(1.0, backend), xp.zeros(0, device=backend))
    assert float(carry) == 1.0 and ys.shape == (0,)
    carry, _ = scan(lambda c, _: (c + 1, ()), array(1.0, backend), (), length=4)
    assert float(carry) == 5.0


def test_cond(backend):
    def f(x):
        return cond(xp.sum(x) > 0, lambda v: {"a": xp.sin(v)}, lambda v: {"a": v * 3}, x)["a"]

    for x in ([1.0, 2.0], [-1.0, -2.0]):
        right = np.sin(x) if x[0] > 0 else np.array(x) * 3
        slope = np.cos(x) if x[0] > 0 else np.full(2, 3.0)
        for g in (f, tg.jit(f)):
            close(g(array(x, backend)), right)
        gradient = tg.grad(lambda x: xp.sum(f(x)))
        close(gradient(array(x, backend)), slope)
        close(tg.jit(gradient)(array(x, backend)), slope)


def test_fori(backend):
    def power(x, n):
        return fori_loop(0, n, lambda i, s: s * x + xp.astype(i, s.dtype), xp.ones_like(x))

    for f in (power, tg.jit(power)):
        assert float(f(array(2.0, backend), 4)) == 27.0
        assert float(f(array(2.0, backend), array(4, backend))) == 27.0
    assert float(tg.jit(tg.grad(lambda x: power(x, 4)))(array(2.0, backend))) == 38.0


def test_a_body_that_writes_its_counter(backend):
    def step(i, s):
        out = s + xp.astype(i, s.dtype)
        i[...] = 100
        return out

    def total(x):
        return fori_loop(1, 5, step, x)

    for f in (total, tg.jit(total)):
        assert float(f(array(2.0, backend))) == 12.0
    if backend != "numpy":  # there the function itself runs
        with pytest.raises(TypeError, match=r"fori_loop: a step must return .* PyTreeSpec\(\*\) of float64\[\], got"):
            tg.jit(lambda x: fori_loop(0, 3, lambda i, s: (s, s), x))(array(2.0, backend))


@pytest.mark.parametrize("bounds", [(0.5, 3), (0, 2.0), (0, "three")], ids=str)
def test_bounds_of_fori_are_integers(bounds):
    with pytest.raises(TypeError, match="fori_loop: bounds must be ints"):
        fori_loop(*bounds, lambda i, s: s, xp.ones(2))


def test_a_loop_over_an_argument_is_one(backend):
    @tg.jit
    def program(x):
        def step(i, x):
            x[i * 2] = x[i] + 1
            return x

        x[...] = fori_loop(0, 5, step, x)

    x = array([float(i) for i in range(10)], backend)
    program(x)
    assert x.tolist() == [1, 1, 2, 3, 3, 5, 4, 7, 4, 9]


def test_what_the_body_of_a_loop_keeps_outside_has_values(backend):
    steps = []

    @tg.jit
    def program(x):
        def step(i, s):
            steps.append(i)
            return s + x[i]

        return fori_loop(0, 5, step, xp.zeros((), device=x.device))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.transforms.UncompiledWarning)
        assert float(program(array([1.0, 2, 3, 4, 5], backend))) == 15
    assert [int(i) for i in steps] == [0, 1, 2, 3, 4]


def test_errors(backend):
    x = array([1.0, 2.0], backend)
    with pytest.raises(TypeError, match=r"a condition must be a 0-dimensional bool array, got bool\[2\]"):
        while_loop(lambda s: s < 3, lambda s: s + 1, x)
    with pytest.raises(
        TypeError, match=r"the structure, shapes and dtypes of its state, \S+ of float64\[2\], got \S+ of float64\[4\]"
    ):
        while_loop(lambda s: xp.sum(s) < 10, lambda s: xp.concat([s, s]), x)
    with pytest.raises(ValueError, match=r"scan: expected arrays in xs .*length=3\), got shapes \(2,\)"):
        scan(lambda c, x: (c, x), 0.0, x, length=3)
    with pytest.raises(TypeError, match=r"a step must return a pair \(carry, y\), got a Array"):
        scan(lambda c, x: c, x, x)
    if backend != "numpy":

        def leaks(x):
            kept = xp.zeros_like(x)

            def step(s):
                kept[...] = s
                return s * 2

            return while_loop(lambda s: xp.sum(s) < 10, step, x) + kept

        with pytest.raises(ValueError, match="a step or a branch writes an array from outside"):
            tg.jit(leaks)(x)
