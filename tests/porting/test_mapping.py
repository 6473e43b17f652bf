"""Mappings: saved, applied to checkpoints, and written as a program."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tensorgraft.porting.expressions import Concatenation, Constant, Sum, View
from tensorgraft.porting.mapping import Entry, Mapping

SOURCE = Path(__file__).parents[2] / "src"


def view(source, shape):
    return View(source, shape, shape, tuple((0, n, 1) for n in shape), tuple(range(len(shape))), (), shape)


def transposed(source, shape):
    order = tuple(range(len(shape)))[::-1]
    return View(source, shape, shape, tuple((0, n, 1) for n in shape), order, (), shape[::-1])


def a_mapping(**changes):
    joined = Concatenation((transposed("q", (4, 3)), transposed("k", (4, 3))), 1, (3, 8))
    entries = {
        "qk": Entry("qk", (3, 8), joined),
        "b": Entry("b", (4,), Sum((view("b", (4,)), Constant(1.0, (4,))))),
        "table": Entry("table", (5, 3), view("table", (5, 3)), "a note"),
    }
    return Mapping(entries, ["unused"], ["counter"], {"head": "table"}, {"lm_head": "table"}, "Src", "Tgt", **changes)


def arrays(dtype="f4"):
    rng = np.random.default_rng(0)
    shapes = {"q": (4, 3), "k": (4, 3), "b": (4,), "table": (5, 3), "counter": ()}
    return {n: rng.standard_normal(s).astype(dtype) for n, s in shapes.items()}


def expected(a):
    return {"qk": np.concatenate([a["q"].T, a["k"].T], 1), "b": a["b"] + np.float32(1), "table": a["table"]}


def same(found, a):
    wanted = expected(a)
    for name, x in wanted.items():
        np.testing.assert_array_equal(found[name], x)
        assert found[name].dtype == a["q"].dtype


def test_saved_and_loaded(tmp_path):
    a_mapping().save(tmp_path / "m.json")
    assert Mapping.load(tmp_path / "m.json") == a_mapping()
    for text in ("{}", "[]", "nothing", '{"format": 99}'):
        (tmp_path / "m.json").write_text(text)
        with pytest.raises(ValueError, match="is no mapping of tensorgraft"):
            Mapping.load(tmp_path / "m.json")


def test_a_table():
    text = str(a_mapping())
    assert "np.concatenate([q.T, k.T], 1)" in text and "# a note" in text and "not used of Src: unused" in text


@pytest.mark.parametrize("kind", ["arrays", "tensors", "file", "folder", "pytorch"])
def test_checkpoints(tmp_path, kind):
    a = arrays()
    source = a
    if kind == "tensors":
        source = {n: torch.from_numpy(np.array(x)) for n, x in a.items()}
    elif kind == "file":
        save_file(a, source := tmp_path / "x.safetensors")
    elif kind == "folder":
        source = tmp_path / "shards"
        source.mkdir()
        save_file({n: a[n] for n in ("q", "b")}, source / "1.safetensors")
        save_file({n: a[n] for n in ("k", "table", "counter")}, source / "2.safetensors")
    elif kind == "pytorch":
        torch.save({n: torch.from_numpy(np.array(x)) for n, x in a.items()}, source := tmp_path / "x.pt")
    found = a_mapping().convert(source)
    same(found, a)
    np.testing.assert_array_equal(found["lm_head"], a["table"])
    assert a_mapping().convert(source, tmp_path / "out.safetensors") is None
    same(load_file(tmp_path / "out.safetensors"), a)


def test_names_of_ties():
    a = arrays()
    a["head"] = a.pop("table")
    np.testing.assert_array_equal(a_mapping().convert(a)["table"], a["head"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("k"), "the checkpoint lacks k, which Tgt needs"),
        (lambda a: a.update(more=np.ones(2)), "has more, of which Src has none"),
        (lambda a: a.update(q=np.ones((3, 4), "f4")), r"q has shape \(3, 4\) in the checkpoint, and \(4, 3\)"),
        (lambda a: a.update(b=np.ones(5, "f4")), r"b has shape \(5,\)"),
    ],
)
def test_checkpoints_of_other_networks(tmp_path, change, message):
    a, path = arrays(), tmp_path / "out.safetensors"
    path.write_bytes(b"old")
    change(a)
    with pytest.raises(ValueError, match=message):
        a_mapping().convert(a)
    with pytest.raises(ValueError, match=message):
        a_mapping().convert(a, path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_dtypes():
    a = arrays("f8")
    with pytest.raises(ValueError, match="would lose digits: the checkpoint has float64, not float32"):
        a_mapping().convert(a, dtype="f4")
    with pytest.raises(ValueError, match="would lose digits"):
        a_mapping().convert(arrays("f4"), dtype="f2")
    assert a_mapping().convert(arrays("f2"), dtype="f4")["qk"].dtype == np.float32


def test_unmatched_parameters_are_not_converted(tmp_path):
    mapping = a_mapping()
    mapping.entries["z"] = Entry("z", (2,), None, "2 of 2 elements unknown")
    assert mapping.unmatched == ["z"] and "(unmatched)" in str(mapping)
    for call in (lambda: mapping.convert(arrays()), mapping.source):
        with pytest.raises(ValueError, match="no array of Src is known for z of Tgt: give hints"):
            call()


def test_the_program_needs_numpy_alone(tmp_path):
    save_file(arrays(), tmp_path / "in.safetensors")
    (tmp_path / "convert.py").write_text(a_mapping().source())
    blocked = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'jax', 'tensorflow', 'tensorgraft', 'ml_dtypes')));"
    )
    run = "import runpy; sys.argv[1:] = ['in.safetensors', 'out.safetensors'];"
    run += "runpy.run_path('convert.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", blocked + run], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "out.safetensors")
    same(found, arrays())
    np.testing.assert_array_equal(found["lm_head"], arrays()["table"])
    ruff = subprocess.run([sys.executable, "-m", "ruff", "check", "--isolated", "convert.py"], cwd=tmp_path)
    assert ruff.returncode == 0


MEMORY = """
import json, resource, sys
import numpy as np
from tensorgraft.porting.mapping import Mapping

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

mapping = Mapping.load("m.json")
before = peak()
mapping.convert("in.safetensors", "out.safetensors")
print(peak() - before)
"""


@pytest.mark.parametrize("many", [False, True])
def test_memory(tmp_path, many):
    """At most 1.2 times the largest array, transposes included."""
    import json

    shape = (4096, 16384)  # 256 MB
    if many:
        mappings = {f"w{k}": transposed(f"w{k}", (4096, 4096)) for k in range(6)}
    else:
        mappings = {"w": transposed("w", shape), "b": view("b", (7,))}
    Mapping({n: Entry(n, e.shape, e) for n, e in mappings.items()}).save(tmp_path / "m.json")
    header, at = {}, 0
    for e in mappings.values():
        size = 4 * int(np.prod(e.source_shape))
        header[e.source] = {"dtype": "F32", "shape": e.source_shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(tmp_path / "in.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", MEMORY], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    largest = max(4 * int(np.prod(e.shape)) for e in mappings.values())
    assert int(done.stdout) <= 1.2 * largest, int(done.stdout) / largest
    assert (tmp_path / "out.safetensors").stat().st_size > at
