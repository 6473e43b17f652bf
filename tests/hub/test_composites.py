"""Every composite against a reference, its shape and dtype on the abstract backend, and every override of a backend
against the composite that it replaces. The operations are rows of `composite_cases.COMPOSITES`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.hub.cases import units
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
from tests.hub.composite_cases import COMPOSITES, ELSEWHERE
from tests.hub.draw import Draw

from tensorgraft.hub.backend import Backend
from tensorgraft.hub.primitive import composites

EXAMPLES = 20
COMPILED_EXAMPLES = 1  # a composite compiles several operations


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dtype" not in metafunc.fixturenames:
        return
    whole = metafunc.config.getoption("--slow")
    rows = [
        pytest.param(name, key, dtype, id=f"{name}-{key}-{dtype}")
        for name in BACKENDS
        for key, case in COMPOSITES.items()
        if metafunc.function is test_composite or overridden(type(backend(name)), key)
        for some in [case.dtypes[: 2 if type(backend(name)).compiles else None]]
        for dtype in (some if whole else one_of_each_kind(f"{name} {key}", some))
    ]
    metafunc.parametrize(("name", "key", "dtype"), rows)


def draws(xp: Backend, key: str, dtype: np.dtype) -> list[Any]:
    n = COMPILED_EXAMPLES if xp.compiles else EXAMPLES
    return [COMPOSITES[key].arguments(Draw(random.Random(f"{key} {seed}").randint, dtype)) for seed in range(n)]


def leaves(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def test_composite(name: str, key: str, dtype: np.dtype) -> None:
    xp, case = backend(name), COMPOSITES[key]
    for arguments in draws(xp, key, dtype):
        with xp.scope():
            results = leaves(to_host(xp, getattr(xp, key)(*to_backend(xp, arguments))))
        assert shapes(results) == leaves(getattr(ABSTRACT, key)(*shapes(arguments)))
        with np.errstate(all="ignore"):
            wanted = leaves(case.reference(*wide(arguments)))
        for found, value in zip(results, wanted, strict=True):
            assert_close(found, value, units(case, dtype))


def overridden(cls: type[Backend], key: str) -> bool:
    return getattr(cls, key) is not getattr(Backend, key)


def test_override_agrees_with_its_composite(name: str, key: str, dtype: np.dtype) -> None:
    xp = backend(name)
    for arguments in draws(xp, key, dtype):
        with xp.scope():
            found = leaves(to_host(xp, getattr(xp, key)(*to_backend(xp, arguments))))
            wanted = leaves(to_host(xp, getattr(Backend, key)(xp, *to_backend(xp, arguments))))
        for a, b in zip(found, wanted, strict=True):
            assert a.dtype == b.dtype
            assert_close(a, wide(b), units(COMPOSITES[key], dtype))


def test_every_composite_has_a_row() -> None:
    assert set(COMPOSITES) | ELSEWHERE == set(composites(Backend)) - {"device_count"}
