"""Every operation of the hub and every word in each target: the text that is written for a call is run by the
framework, and compared with what the operation means. The operations are the rows of `tests/hub`."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import pytest
from tests.hub.cases import CASES, Case, operation, units
from tests.hub.checks import ABSTRACT, assert_close, backend, one_of_each_kind, shapes, wide
from tests.hub.composite_cases import COMPOSITES
from tests.hub.draw import Draw
from tests.source import word_cases
from tests.source.writer import leaves, program

from tensorgraft.hub import dtypes
from tensorgraft.hub.recorded.block import Var
from tensorgraft.source.targets import Target, target
from tensorgraft.source.words import WORDS

TARGETS = ("jax", "numpy", "torch", "tensorflow", "array_api")
BACKEND = {"array_api": "numpy"}  # whose arrays a target's file takes
ROWS = {**CASES, **COMPOSITES}
EXAMPLES = 4


def lacking(name: str, key: str, dtype: np.dtype) -> str | None:
    """Why a target has no such operation, or not of this dtype."""
    unsigned = dtype.kind == "u" and dtype.itemsize > 1
    if name == "torch" and unsigned:
        return "PyTorch has few kernels for unsigned integers of more than 8 bits: a file that needs one raises"
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dtype" not in metafunc.fixturenames:
        return
    whole = metafunc.config.getoption("--slow")
    rows = []
    for name in TARGETS:
        for key, case in ROWS.items():
            some = one_of_each_kind(f"{name} {key}", case.dtypes)
            if not whole:
                some = some[zlib.crc32(key.encode()) % len(some) :][:1]
            for dtype in case.dtypes if whole else some:
                rows.append(pytest.param(name, key, dtype, id=f"{name}-{key}-{dtype}"))
    metafunc.parametrize(("name", "key", "dtype"), rows)


def as_vars(tree: Any) -> Any:
    if isinstance(tree, tuple | list):
        return type(tree)(as_vars(x) for x in tree)
    return Var(tree.shape, tree.dtype) if isinstance(tree, np.ndarray) else tree


def run(of: Target, text: str, arrays: list[np.ndarray]) -> Any:
    """What the function in the text gives of these arrays, on the host."""
    space: dict[str, Any] = {}
    if of.helpers is not None:
        space.update(vars(of.helpers))
    for statement in of.imports.values():
        exec(statement, space)
    exec(text, space)
    xp = backend(BACKEND.get(of.name, of.name))
    with xp.scope(), np.errstate(all="ignore"):
        out = space["program"](*(xp.copy(xp.asarray(x)) for x in arrays))
        return host(xp, out)


def host(xp: Any, tree: Any) -> Any:
    if isinstance(tree, tuple | list):
        return tuple(host(xp, x) for x in tree)
    assert xp.is_array(tree) or isinstance(tree, np.generic), f"a {type(tree)} is no array"
    return xp.to_numpy(tree) if xp.is_array(tree) else np.asarray(tree)


def compare(of: Target, key: str, case: Case, d: Draw) -> None:
    arguments = case.arguments(d)
    method = operation(key)
    variables = as_vars(arguments)
    text, parameters = program(of, method, variables, {})
    by_var = dict(zip(map(id, leaves(list(variables))), leaves(list(arguments)), strict=True))
    results = leaves(run(of, text, [by_var[id(v)] for v in parameters]))
    try:
        if method != "nonzero":  # whose shape depends on values
            assert shapes(results) == leaves(getattr(ABSTRACT, method)(*shapes(arguments)))
        with np.errstate(all="ignore"):
            if case.verify is not None:
                case.verify(arguments, results)
                return
            assert case.reference is not None
            wanted = leaves(case.reference(*(wide(arguments) if case.wide else arguments)))
        for found, value in zip(results, wanted, strict=True):
            assert_close(found, value, units(case, d.dtype))
    except AssertionError as error:
        error.add_note(text)
        raise


def test_operation(name: str, key: str, dtype: np.dtype) -> None:
    if (why := lacking(name, key, dtype)) is not None:
        pytest.skip(why)
    for seed in range(EXAMPLES):
        compare(target(name), key, ROWS[key], Draw(random.Random(f"{key} {seed}").randint, dtype))


@pytest.mark.parametrize("key", word_cases.CASES)
@pytest.mark.parametrize("name", TARGETS)
def test_word(name: str, key: str, request: pytest.FixtureRequest) -> None:
    xp, of, word = backend("numpy"), target(name), operation(key)
    whole = request.config.getoption("--slow")
    for dtype in (dtypes.float32, dtypes.float64, dtypes.bfloat16) if whole else (dtypes.float32,):
        for seed in range(EXAMPLES if whole else 2):
            arguments = word_cases.CASES[key](Draw(random.Random(f"{key} {seed}").randint, dtype))
            with np.errstate(all="ignore"):
                wanted = list(map(np.asarray, leaves(WORDS[word](xp, *arguments))))
            variables = as_vars(arguments)
            text, parameters = program(of, word, variables, {})
            by_var = dict(zip(map(id, leaves(list(variables))), leaves(list(arguments)), strict=True))
            found = leaves(run(of, text, [by_var[id(v)] for v in parameters]))
            try:
                assert shapes(found) == shapes(wanted)
                for ours, theirs in zip(found, wanted, strict=True):
                    assert_close(ours, theirs, 64)
            except AssertionError as error:
                error.add_note(text)
                raise


def test_every_word_has_operands() -> None:
    assert {operation(key) for key in word_cases.CASES} | word_cases.ELSEWHERE == set(WORDS)
