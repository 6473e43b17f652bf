"""Every primitive on every backend: values against a reference in double precision, shapes and dtypes against the
abstract rule. The operations are rows of `cases.CASES`."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hub.cases import CASES, ELSEWHERE, Case, operation, units
from tests.hub.checks import (
    ABSTRACT,
    BACKENDS,
    assert_close,
    backend,
    one_of_each_kind,
    shapes,
    to_backend,
    to_host,
    wide,
)
from tests.hub.draw import Draw

from tensorgraft.hub.backend import Backend
from tensorgraft.hub.operations.elementwise import BINARY, COMPARISONS, COMPOSITES
from tensorgraft.hub.primitive import primitives

EXAMPLES = 10
COMPILED_EXAMPLES = 2  # where every new shape is compiled anew


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is not test_primitive:
        return
    whole = metafunc.config.getoption("--conformance") == "full"
    rows = [
        pytest.param(name, key, dtype, id=f"{name}-{key}-{dtype}")
        for name in BACKENDS
        for key, case in CASES.items()
        for dtype in (case.dtypes if whole else one_of_each_kind(f"{name} {key}", case.dtypes))
    ]
    metafunc.parametrize(("name", "key", "dtype"), rows)


integers = functools.cache(st.integers)
quick = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def compare(xp: Backend, key: str, case: Case, d: Draw) -> None:
    arguments = case.arguments(d)
    with xp.scope():
        results = to_host(xp, getattr(xp, operation(key))(*to_backend(xp, arguments)))
    if key != "nonzero":  # whose shape depends on values
        rule = getattr(ABSTRACT, operation(key))(*shapes(arguments))
        assert shapes(results) == rule
    with np.errstate(all="ignore"):
        if case.verify is not None:
            case.verify(arguments, results)
            return
        wanted = case.reference(*(wide(arguments) if case.wide else arguments))
    many = isinstance(results, tuple)
    for found, value in zip(results if many else [results], wanted if many else [wanted], strict=True):
        assert_close(found, value, units(case, d.dtype))


def test_primitive(name: str, key: str, dtype: np.dtype) -> None:
    xp, case = backend(name), CASES[key]
    if xp.compiles:
        for seed in range(COMPILED_EXAMPLES):
            compare(xp, key, case, Draw(random.Random(f"{key} {seed}").randint, dtype))
        return

    @quick
    @given(st.data())
    def run(data: st.DataObject) -> None:
        compare(xp, key, case, Draw(lambda low, high: data.draw(integers(low, high)), dtype))

    run()


def test_every_primitive_has_a_row() -> None:
    assert {operation(key) for key in CASES} | ELSEWHERE == set(primitives(Backend))


@pytest.mark.parametrize("key", [name for name in (*BINARY, *COMPARISONS) if name not in COMPOSITES])
@pytest.mark.parametrize("name", BACKENDS)
def test_python_scalars_take_the_arrays_dtype(name: str, key: str) -> None:
    xp = backend(name)
    for dtype in CASES[key].dtypes[:: 4 if xp.compiles else 1]:
        value = {"b": True, "i": 2, "u": 2, "c": 2j}.get(dtype.kind, 1.5)
        x = np.asarray([1, 2, 3], dtype)
        with xp.scope():
            found = getattr(xp, key)(xp.asarray(x), value), getattr(xp, key)(value, xp.asarray(x))
            full = xp.full((3,), value, dtype)
            wanted = getattr(xp, key)(xp.asarray(x), full), getattr(xp, key)(full, xp.asarray(x))
        for a, b in zip(to_host(xp, found), to_host(xp, wanted), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
