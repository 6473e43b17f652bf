"""`tg.jit(fn, compile="background")` of functions of arrays."""

import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp


@pytest.fixture(params=["jax", "tensorflow", "torch", "numpy"])
def device(request):
    pytest.importorskip(request.param)
    return request.param


def background(fn, at=3, **options):
    return tg.jit(fn, compile="background", at=at, **options)


def cold_calls(f, *calls):
    """Return which calls ran the function itself."""
    said = []
    for args in calls:
        before = f.report.cold if hasattr(f, "report") else 0
        f(*args)
        said.append(f.report.cold > before)
    return said


@pytest.mark.parametrize("at", [2, 4, "ready"])
def test_writes_numbers_containers_and_counters(device, at):
    state, log, counts = xp.zeros(3, device=device), [], {"calls": 0}

    def step(x, scale, options):
        state[:] = state * 0.5 + x * scale
        log.append(xp.sum(state))
        counts["calls"] += 1
        return {"state": state + 1, "n": options["n"]}

    run, right = background(step, at), [0.0] * 3
    for n in range(7):
        out = run(xp.asarray([1.0, 2.0, 3.0], device=device), n * 0.5, {"n": 4})
        right = [r * 0.5 + x * n * 0.5 for r, x in zip(right, (1.0, 2.0, 3.0), strict=True)]
        assert state.tolist() == right and out["state"].tolist() == [r + 1 for r in right] and out["n"] == 4
        assert counts == {"calls": n + 1} and len(log) == n + 1 and float(log[-1]) == sum(right)


def test_the_switch_is_at_the_same_call():
    f, x, y = background(lambda x: xp.sin(x) + 1, 4), xp.ones(3, device="jax"), xp.ones(2, device="jax")
    assert cold_calls(f, *[(x,)] * 4, (y,), (y,), (x,), (y,), (y,)) == [True] * 3 + [
        False,
        True,
        True,
        False,
        True,
        False,
    ]
    assert (f.report.switched, f.report.traces) == ([4, 9], 2)


def test_a_number_that_the_function_looks_at_is_a_signature():
    f = background(lambda x, n: x * 2 if n > 2 else x * n, 3)
    x = xp.ones(2, device="jax")
    assert cold_calls(f, (x, 1), (x, 1), (x, 1), (x, 3), (x, 3), (x, 3), (x, 1)) == [True, True, False] * 2 + [False]
    assert [f(x, n).tolist()[0] for n in (1, 3, 5, 5, 5, 5)] == [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]


def test_other_numbers_are_not():
    f = background(lambda x, scale: x * scale, 3)
    x = xp.ones(2, device="jax")
    assert cold_calls(f, *((x, n * 0.5) for n in range(5))) == [True, True, False, False, False]
    assert f(x, 7.5).tolist() == [7.5, 7.5]


def test_more_signatures_than_are_compiled_run_as_eager_code():
    f = background(lambda x, n: x * (n if n else 1), 2)
    x = xp.ones(2, device="jax")
    for n in range(1, 35):
        for _ in range(2):
            assert f(x, n).tolist() == [n, n]
    assert f.report.traces == 32


def test_what_it_prints_is_printed_once_a_call(capsys):
    f = background(lambda x: (print("called"), x + 1)[1])
    for _ in range(5):
        f(xp.ones(1, device="jax"))
        assert capsys.readouterr().out == "called\n"


def test_errors_of_the_trace_are_raised_by_the_call_that_traces():
    f = background(lambda x: x if float(x) > 0 else -x)
    x = xp.asarray(2.0, device="jax")
    f(x)
    for _ in range(2):
        with pytest.raises(tg.TracedValueError):
            f(x)


def test_checks_and_derivatives_inside():
    def loss(x):
        x = tg.transforms.error_if(x, xp.any(x < 0), "negative")
        return xp.sum(x * x)

    f = background(lambda x: tg.grad(loss)(x))
    for _ in range(5):
        assert f(xp.asarray([1.0, 2.0], device="jax")).tolist() == [2.0, 4.0]
        with pytest.raises(Exception, match="negative"):
            f(xp.asarray([-1.0, 2.0], device="jax"))


def test_traces_that_are_compared():
    f = background(lambda x: x + 1, check="second")
    assert [f(xp.ones(1, device="jax")).tolist() for _ in range(5)] == [[2.0]] * 5
