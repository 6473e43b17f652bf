"""Recorded programs: values on every backend, source, files, and what cannot be recorded."""

from __future__ import annotations

import gc
import json
import linecache
import random
import weakref

import numpy as np
import optree
import pytest
from tests.hub.cases import CASES
from tests.hub.composite_cases import COMPOSITES
from tests.hub.draw import Draw

from tensorgraft.errors import TracedValueError
from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.recorded import encoding, record

F32 = dtypes.float32
SPECS = [ShapeDtype((2, 3), F32), ShapeDtype((3, 4), F32)]


def example(xp, x, w):
    """Composites, constants, several results, and control flow that uses arrays from around it."""
    ramp = xp.asarray(np.arange(4, dtype=np.float32))
    h = xp.add(xp.softmax(xp.matmul(x, w), -1), ramp)
    xp.exp(h)  # nobody uses it

    def step(carry, row):
        total, count = carry
        total = xp.add(total, xp.multiply(row, ramp))
        return (total, xp.add(count, 1)), {"sum": xp.sum(total), "row": [total]}

    carry, ys = xp.scan(step, (xp.zeros((4,), F32), xp.full((), 3, dtypes.int64)), h, length=2, reverse=True)
    total, count = xp.while_loop(lambda s: xp.less(s[1], 9), lambda s: (xp.add(s[0], ramp), xp.add(s[1], 1)), carry)
    chosen = xp.cond(xp.greater(count, 5), lambda a: (xp.sin(a),), lambda a: (xp.add(a, ramp),), total)[0]
    parts = xp.split(h, [1, 1])
    key = xp.asarray(np.array([1, 2], np.uint32))
    normal = xp.normal(key, (3,), F32)
    bounded = xp.clip(chosen, 0.5, float("inf"))
    best = xp.argmax(h, axis=1)
    mapped = xp.map(lambda row: xp.sum(row), h, length=2)
    half = xp.astype(h, dtypes.bfloat16)
    return [h, ys["sum"], ys["row"][0], count, parts[1], normal, bounded, best, mapped, half]


@pytest.fixture(scope="module")
def program():
    return record(example, SPECS)


def inputs():
    rng = np.random.default_rng(0)
    return [rng.normal(size=s.shape).astype(s.dtype) for s in SPECS]


def run(fn, name):
    xp = registry.get(name)
    with xp.scope():
        return [xp.to_numpy(a) for a in fn(xp, *map(xp.asarray, inputs()))]


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_runs_and_compiles_on_every_backend(program, name):
    if name not in registry.backends():
        pytest.skip(f"{name} is not installed")
    xp = registry.get(name)
    expected = run(example, name)
    for actual in (run(program, name), run(lambda xp, *a: xp.compile(lambda *a: program(xp, *a))(*a), name)):
        for a, b, spec in zip(actual, expected, program.outputs, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype) == (spec.shape, spec.dtype)
            np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=1e-5, atol=1e-6)
    assert xp in program._on  # constants are moved once


def test_source(program):
    text = str(program)
    assert text.startswith("def program(xp, constants, x0, x1):")
    assert "xp.softmax(x2, -1)  # float32[2, 4]" in text
    assert "xp.exp" not in text
    assert "xp.normal(c" in text


def test_equal_constants_are_one():
    def fn(xp, x):
        one, other = (xp.asarray(np.ones(3, F32)) for _ in range(2))
        return [xp.add(xp.add(x, one), other)]

    program = record(fn, [ShapeDtype((3,), F32)])
    assert len(program.constants) == 1


def test_arrays_are_dropped_after_their_last_use():
    class Array:
        pass

    alive, most = weakref.WeakSet(), []

    class Watching:
        def add(self, x, y):
            made = Array()
            alive.add(made)
            most.append(len(alive))
            return made

    def chain(xp, x):
        for _ in range(6):
            x = xp.add(x, 1)
        return [x]

    program = record(chain, [ShapeDtype((3,), F32)])
    program._run(Watching(), [], Array())
    assert most == [1, 2, 2, 2, 2, 2]


def test_saved_and_loaded(program, tmp_path):
    encoding.save(program, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["constants.npz", "program.json"]
    loaded = encoding.load(tmp_path)
    assert str(loaded) == str(program)
    assert (loaded.inputs, loaded.outputs) == (program.inputs, program.outputs)
    for a, b in zip(run(loaded, "numpy"), run(program, "numpy"), strict=True):
        np.testing.assert_array_equal(a, b)


def test_static_arguments_survive_files(tmp_path):
    values = [1.5, -0.0, float("inf"), -float("inf"), 1 + 2j, True, 3]

    def fn(xp, x):
        return [xp.full((2,), v, dtypes.complex64) for v in values] + [xp.astype(x, dtypes.bfloat16)]

    program = record(fn, [ShapeDtype((), F32)])
    one = np.ones((2, 2), dtypes.bfloat16)
    bf16 = record(lambda xp, x: [xp.add(x, xp.asarray(one))], [ShapeDtype((2, 2), dtypes.bfloat16)])
    for one in (program, bf16):
        encoding.save(one, tmp_path)
        assert str(encoding.load(tmp_path)) == str(one)
    assert encoding.load(tmp_path).constants[0].known().dtype == dtypes.bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="x"), "is not a tensorgraft program"),
        (lambda d: d.update(version=99), "version 99; this tensorgraft reads 1"),
        (lambda d: d["program"]["calls"][0].__setitem__(0, "to_numpy"), "'to_numpy' is not an operation"),
        (lambda d: d["program"]["calls"][0].__setitem__(0, "__class__"), "is not an operation"),
        (lambda d: d["program"]["calls"][0].__setitem__(2, {"a=1)": 1}), "are not names of arguments"),
        (lambda d: d["program"]["calls"][0][1].__setitem__(0, {"x": 99}), "broken"),
        (lambda d: d["program"]["result"]["tuple"].__setitem__(0, {"x": 10}), "of another program"),
        (lambda d: d["program"]["calls"][0][1].__setitem__(0, {"c": 99}), "broken"),
        (lambda d: d["program"]["parameters"][0].__setitem__(1, [5, 5]), "contracted axes of equal extents"),
        (lambda d: d["program"]["parameters"][0].__setitem__(0, "float31"), "'float31' is not a dtype"),
        (lambda d: d["constants"].update(c0=["float64", [4]]), "is float32"),
        (lambda d: d["constants"].update(c77=["float64", [4]]), "lacks the array 'c77'"),
        (lambda d: d.pop("constants"), "broken"),
    ],
)
def test_broken_files_are_refused(program, tmp_path, change, message):
    encoding.save(program, tmp_path)
    data = json.loads((tmp_path / "program.json").read_text())
    change(data)
    (tmp_path / "program.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        encoding.load(tmp_path)


def test_text_that_is_no_json(tmp_path):
    (tmp_path / "program.json").write_text("{")
    with pytest.raises(ValueError, match="is not a tensorgraft program"):
        encoding.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        encoding.load(tmp_path / "nowhere")


def test_what_cannot_be_recorded():
    spec = [ShapeDtype((3,), F32)]
    with pytest.raises(TracedValueError, match="needed while a program is being"):
        record(lambda xp, x: [x if x else xp.add(x, 1)], spec)
    with pytest.raises(TracedValueError, match="depends on values"):
        record(lambda xp, x: xp.nonzero(xp.greater(x, 0)), spec)
    with pytest.raises(TypeError, match=r"add is being recorded, but got a builtins\.object"):
        record(lambda xp, x: [xp.add(x, object())], spec)
    with pytest.raises(TypeError, match=r"must return arrays, got a builtins\.str"):
        record(lambda xp, x: ["x"], spec)
    with pytest.raises(ValueError, match=r"add\(float32\[3\], float32\[2\]\): expected shapes that broadcast"):
        record(lambda xp, x: [xp.add(x, xp.asarray(np.zeros(2, F32)))], spec)
    with pytest.raises(TypeError, match="a state before and after a step"):
        record(lambda xp, x: [xp.while_loop(lambda s: xp.any(xp.less(s, 1)), lambda s: xp.sum(s), x)], spec)
    kept = []
    record(lambda xp, x: kept.append(xp.add(x, 1)) or [x], spec)
    with pytest.raises(ValueError, match="of another program"):
        record(lambda xp, x: [xp.add(x, kept[0])], spec)
    with pytest.raises(RuntimeError, match="nothing is being recorded"):
        from tensorgraft.hub.recorded.tracing import program_backend

        program_backend().add(kept[0], 1)


def test_known_values_are_computed_at_once():
    seen = []

    def fn(xp, x):
        with xp.eagerly():
            known = xp.add(xp.asarray(np.arange(3, dtype=np.float32)), 1)
            seen.append(xp.to_numpy(known))
        return [xp.add(x, known)]

    program = record(fn, [ShapeDtype((3,), F32)])
    np.testing.assert_array_equal(seen[0], [1, 2, 3])
    assert len(program.block.calls) == 1


def test_inputs_are_checked(program):
    xp = registry.get("numpy")
    with pytest.raises(TypeError, match="the program takes 2 arrays, got 1"):
        program.check_inputs(xp, inputs()[:1])
    with pytest.raises(ValueError, match=r"argument 0 of f is float32\[3, 4\], but was recorded as float32\[2, 3\]"):
        program.check_inputs(xp, inputs()[::-1], "f")


def split(arguments):
    """(the arrays among the arguments, a function that puts others in their place)"""
    leaves, structure = optree.tree_flatten(arguments, none_is_leaf=True)
    where = [i for i, x in enumerate(leaves) if isinstance(x, np.ndarray)]

    def filled(arrays):
        given = dict(zip(where, arrays, strict=True))
        return optree.tree_unflatten(structure, [given.get(i, x) for i, x in enumerate(leaves)])

    return [leaves[i] for i in where], filled


ROWS = [
    (key, case, dtype) for table in (CASES, COMPOSITES) for key, case in table.items() for dtype in case.dtypes[-2:]
]


@pytest.mark.parametrize(("key", "case", "dtype"), ROWS, ids=[f"{key}-{dtype}" for key, _, dtype in ROWS])
def test_every_operation_is_recorded_and_goes_through_files(key, case, dtype):
    if key == "nonzero":
        pytest.skip("the shape of its result depends on values")
    xp = registry.get("numpy")
    arguments = case.arguments(Draw(random.Random(f"{key} 0").randint, dtype))
    arrays, filled = split(arguments)
    structure = []

    def fn(xp, *arrays):
        made = getattr(xp, key.partition(" ")[0])(*filled(arrays))
        leaves, tree = optree.tree_flatten(made)
        structure.append(tree)
        return leaves

    program = record(fn, arrays)
    with xp.scope():
        wanted = fn(xp, *map(xp.copy, arrays))
        found = program(xp, *map(xp.copy, arrays))
    assert structure[0] == structure[1]
    constants = {}
    text = encoding.text_of(encoding.encode(program, constants))
    again = encoding.decode(json.loads(text), constants)
    assert str(again) == str(program)
    for a, b, spec in zip(found, wanted, program.outputs, strict=True):
        assert (np.shape(a), np.asarray(a).dtype) == (spec.shape, spec.dtype)
        np.testing.assert_array_equal(a, b)


def test_the_source_that_tracebacks_show_goes_with_the_program():
    def sources():
        return [name for name in linecache.cache if name.startswith("<tensorgraft program")]

    gc.collect()
    before = len(sources())
    made = record(example, SPECS)
    run(made, "numpy")
    assert len(sources()) == before + 1
    assert "def program" in linecache.getline(sources()[-1], 1)
    del made
    gc.collect()
    assert len(sources()) == before
