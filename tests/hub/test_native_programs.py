"""Recorded programs in NumPy's own words and in C++: every operation that has a word gives what the backend's method
gives, for every dtype, and loops are those of the program."""

from __future__ import annotations

import random

import numpy as np
import optree
import pytest
from tests.hub.cases import CASES, units
from tests.hub.checks import assert_close
from tests.hub.composite_cases import COMPOSITES
from tests.hub.draw import Draw
from tests.hub.test_programs import example, inputs, split

from tensorgraft.hub import cpp, registry
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.recorded import c_program, record
from tensorgraft.hub.recorded.c_source import CSource, NoWordError
from tensorgraft.hub.recorded.native import Dialect, NativeProgram
from tensorgraft.hub.recorded.simplification import simplified

TABLES = (CASES, COMPOSITES)
KEYS = [key for table in TABLES for key in table if key != "nonzero"]


def cases(key):
    """Yield (the case, its dtype, a function of the backend and of arrays, these) for several draws."""
    for table in TABLES:
        if key not in table:
            continue
        case = table[key]
        for dtype in case.dtypes:
            for seed in range(3):
                arguments = case.arguments(Draw(random.Random(f"{key} {dtype} {seed}").randint, dtype))
                arrays, filled = split(arguments)

                def fn(xp, *arrays, filled=filled):
                    return optree.tree_leaves(getattr(xp, key.partition(" ")[0])(*filled(arrays)))

                yield case, dtype, fn, arrays


def check(found, wanted, case, dtype):
    for x, y in zip(found, wanted, strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        assert_close(np.asarray(x), y, units(case, dtype))


@pytest.mark.parametrize("key", KEYS)
def test_every_operation_in_words_of_numpy(key):
    xp = registry.get("numpy")
    for case, dtype, fn, arrays in cases(key):
        program = NativeProgram(record(fn, arrays), xp)
        with xp.scope():
            check(program(*map(xp.copy, arrays)), fn(xp, *map(xp.copy, arrays)), case, dtype)


def has_words(program):
    block = simplified(program.block)
    try:
        CSource(block, program.constants)
    except NoWordError:
        return False
    return True


@pytest.mark.skipif(cpp.compiler() is None, reason="no C++ compiler")
def test_every_operation_in_words_of_c(monkeypatch):
    """Many of them in one program, which is compiled quickly."""
    monkeypatch.setattr(c_program, "_LONGEST", 1 << 20)
    monkeypatch.setattr(cpp, "_OPTIONS", tuple("-O0" if o == "-O3" else o for o in cpp._OPTIONS))
    xp = registry.get("numpy")
    chosen = []
    for key in KEYS:
        chosen += [(key, *found) for found in cases(key) if has_words(record(found[2], found[3]))]
    assert len({key for key, *_ in chosen}) > 90
    for first in range(0, len(chosen), 400):
        part = chosen[first : first + 400]

        def everything(xp, *arrays, part=part):
            rest = iter(arrays)
            return [x for _, _, _, fn, own in part for x in fn(xp, *[next(rest) for _ in own])]

        arrays = [x for *_, own in part for x in own]
        found = iter(c_program.CProgram(record(everything, arrays))(*arrays))
        for key, case, dtype, fn, own in part:
            with xp.scope():
                wanted = fn(xp, *map(xp.copy, own))
            try:
                check([next(found) for _ in wanted], wanted, case, dtype)
            except AssertionError as error:
                raise AssertionError(f"{key} of {dtype}") from error


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("dialect", [None, Dialect])
def test_control_flow(name, dialect, monkeypatch):
    xp = registry.get(name)
    if dialect is not None:
        monkeypatch.setattr(type(xp), "dialect", lambda self: dialect())
    program = NativeProgram(record(example, [ShapeDtype(x.shape, x.dtype) for x in inputs()]), xp)
    with xp.scope():
        arrays = [xp.asarray(x) for x in inputs()]
        for x, y in zip(program(*arrays), example(xp, *arrays), strict=True):
            np.testing.assert_allclose(xp.to_numpy(x).astype(float), xp.to_numpy(y).astype(float), rtol=1e-5)


def test_simplification():
    """What a loop does not change is computed before it, once; transposes, broadcasts and elements are taken apart."""
    f32 = np.dtype("float32")

    def fn(xp, x, w):
        def step(carry, _):
            h = xp.dot_general(carry[0], w, ((1,), (1,)), ((), ()), f32)
            row = xp.broadcast_to(xp.reshape(xp.exp(x), (1, 3)), (2, 3))
            corner = xp.reshape(xp.slice(h, (0, 0), (1, 1), (1, 1)), ())
            return [xp.add(h, xp.add(row, xp.broadcast_to(xp.reshape(xp.exp(x), (1, 3)), (2, 3))))], [corner]

        carry, ys = xp.scan(step, [xp.zeros((2, 3), f32)], (), length=5)
        return [*carry, *ys]

    program = record(fn, [ShapeDtype((3,), f32), ShapeDtype((3, 3), f32)])
    calls = simplified(program.block).calls
    assert sorted(c.method for c in calls[:-1]) == ["add", "broadcast_to", "exp", "permute_dims", "reshape", "zeros"]
    assert [c.method for c in calls[-1].args[0].calls if c.method != "slice"] == ["dot_general", "element", "add"]


def test_arrays_of_other_shapes_are_refused():
    if cpp.compiler() is None:
        pytest.skip("no C++ compiler")
    program = c_program.CProgram(record(lambda xp, x: [xp.add(x, x)], [ShapeDtype((3,), np.dtype("float32"))]))
    with pytest.raises(ValueError, match=r"float32 array of shape \(2,\) was given to a program of float32\[3\]"):
        program(np.ones(2, np.float32))
