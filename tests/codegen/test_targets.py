"""Every operation of the hub and every word in each target: the text that is written for a call is run by the
framework, and compared with what the operation means. The operations are the rows of `tests/hub`."""

from __future__ import annotations

import builtins
import dis
import inspect
import itertools
import random
import types
import zlib
from typing import Any

import numpy as np
import pytest
from tests.codegen import word_cases
from tests.codegen.writer import leaves, program
from tests.hub.cases import CASES, Case, operation, units
from tests.hub.checks import ABSTRACT, assert_close, backend, one_of_each_kind, shapes, wide
from tests.hub.composite_cases import COMPOSITES
from tests.hub.draw import Draw

from tensorgraft.codegen.recorders.calls import NotExpressibleError
from tensorgraft.codegen.targets import Target, target
from tensorgraft.codegen.words import WORDS
from tensorgraft.hub import dtypes
from tensorgraft.hub.operations import operations
from tensorgraft.hub.recorded.block import Var

TARGETS = ("jax", "numpy", "torch", "tensorflow", "array_api")
BACKEND = {"array_api": "numpy"}  # whose arrays a target's file takes
ROWS = {**CASES, **COMPOSITES}
WORD_DTYPES = (dtypes.float32, dtypes.float64, dtypes.bfloat16)
EXAMPLES = 4  # of each row with --slow; else one, of every SAMPLED-th row
SAMPLED = {"jax": 8, "numpy": 3, "torch": 4, "tensorflow": 6, "array_api": 5}


def lacking(name: str, key: str, dtype: np.dtype) -> str | None:
    """Why a target has no such operation, or not of this dtype."""
    unsigned = dtype.kind == "u" and dtype.itemsize > 1
    if name == "torch" and unsigned:
        return "PyTorch has few kernels for unsigned integers of more than 8 bits: a file that needs one raises"
    if (
        name == "tensorflow"
        and "convolution" in key
        and (dtype.itemsize == 8 or dtype.kind == "c")
        and dtype.kind != "f"
    ):
        return f"TensorFlow has no convolution of {dtype}"
    if name == "array_api" and (dtypes.is_floating(dtype) and dtype.itemsize < 4):
        return f"the Array API standard has no {dtype}"
    if name == "array_api" and (operation(key) in LACKING or (operation(key), key) in LACKING):
        return f"the Array API standard has no {operation(key)}"
    return None


# What has no entry in the table of the Array API, nor is made of what has
LACKING = {
    *("erfc", "erf_inv", "lgamma", "digamma", "bessel_i0e", "bessel_i1e", "igamma", "igammac", "zeta", "polygamma"),
    *(
        "bitcast",
        "scatter",
        "put_along_axis",
        "sort",
        "eig",
        "lu",
        "triangular_solve",
        "householder_product",
        "lu_solve",
    ),
    *("index_update", "dynamic_slice", "dynamic_update_slice", "grouped_matmul"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dtype" not in metafunc.fixturenames:
        return
    whole = metafunc.config.getoption("--slow")
    of_words = metafunc.function is test_word
    rows = []
    for name, key in itertools.product(TARGETS, word_cases.CASES if of_words else ROWS):
        every = WORD_DTYPES if of_words else ROWS[key].dtypes
        some = every[:1] if of_words else one_of_each_kind(f"{name} {key}", every)
        if whole or sampled(name, key):
            for dtype in every if whole else some[zlib.crc32(key.encode()) % len(some) :][:1]:
                rows.append(pytest.param(name, key, dtype, id=f"{name}-{key}-{dtype}"))
    metafunc.parametrize(("name", "key", "dtype"), rows)


def sampled(name: str, key: str) -> bool:
    return zlib.crc32(f"{name} {key}".encode()) % SAMPLED[name] == 0


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
    space.setdefault("xp", np)
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
    try:
        text, parameters = program(of, method, variables, {})
    except NotExpressibleError as error:  # a dtype among the arguments
        if "has no" in str(error):
            pytest.skip(str(error))
        raise
    by_var = dict(zip(map(id, leaves(list(variables))), leaves(list(arguments)), strict=True))
    results = leaves(run(of, text, [by_var[id(v)] for v in parameters]))
    try:
        compare_results(key, case, d, arguments, results)
    except AssertionError as error:
        error.add_note(text)
        raise


def compare_results(key: str, case: Case, d: Draw, arguments: Any, results: list[Any]) -> None:
    method = operation(key)
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


def test_operation(name: str, key: str, dtype: np.dtype, request: pytest.FixtureRequest) -> None:
    if (why := lacking(name, key, dtype)) is not None:
        pytest.skip(why)
    for seed in range(EXAMPLES if request.config.getoption("--slow") else 1):
        compare(target(name), key, ROWS[key], Draw(random.Random(f"{key} {seed}").randint, dtype))


def test_word(name: str, key: str, dtype: np.dtype, request: pytest.FixtureRequest) -> None:
    if (why := lacking(name, key, dtype)) is not None:
        pytest.skip(why)
    for seed in range(EXAMPLES if request.config.getoption("--slow") else 1):
        compare_word(target(name), key, operation(key), Draw(random.Random(f"{key} {seed}").randint, dtype))


def compare_word(of: Target, key: str, word: str, d: Draw) -> None:
    xp = backend("numpy")
    arguments = word_cases.CASES[key](d)
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


@pytest.mark.parametrize("name", TARGETS)
def test_every_primitive_has_words(name: str) -> None:
    lacking = LACKING if name == "array_api" else set()
    missing = {key for key, fn in operations().items() if getattr(fn, "is_primitive", False)} - set(target(name).rules)
    assert missing == {key for key in lacking if key in missing}, missing


@pytest.mark.parametrize("name", TARGETS)
def test_helpers_use_what_files_import(name: str) -> None:
    """A file gets helpers and, of the target's imports, those that they name."""
    of = target(name)
    assert of.helpers is not None
    copied = {n for n, f in vars(of.helpers).items() if inspect.isfunction(f)}
    for n in copied:
        code = inspect.unwrap(vars(of.helpers)[n]).__code__
        for used in _globals(code):
            assert used in of.imports or used in copied or used in vars(builtins), f"{name}.{n} names {used}"


def _globals(code: types.CodeType) -> set[str]:
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names |= _globals(inner)
    return names
