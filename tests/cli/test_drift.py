"""`tensorgraft doctor --drift` against snapshots that are made up."""

import copy
import gzip
import json

import pytest

from tensorgraft.cli import drift
from tensorgraft.cli.drift import differences, numpy


@pytest.fixture
def numpy_alone(monkeypatch):
    """NumPy, asked in this process."""
    monkeypatch.setattr(drift, "FRAMEWORKS", ("numpy",))
    monkeypatch.setattr(drift, "inventory", drift.collected)
    monkeypatch.setenv("COLUMNS", "200")


def older(path, change):
    """The snapshot of a version that had other things."""
    data = {"numpy": {"version": "2.0.0", "kinds": copy.deepcopy(numpy.kinds())}}
    change(data["numpy"]["kinds"])
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    return path


def test_nothing_differs_from_what_is_here(numpy_alone, tmp_path, capsys):
    assert drift.print_drift(older(tmp_path / "s.gz", lambda kinds: None)) == 0
    said = capsys.readouterr().out
    assert "no drift" in said and "2.0.0" in said


def test_what_is_new_gone_and_changed_is_named(numpy_alone, tmp_path, capsys):
    def change(kinds):
        del kinds["ufuncs"]["add"]
        kinds["ufuncs"]["subtract"] = "00000000"
        kinds["names"]["once_there"] = ""

    assert drift.print_drift(older(tmp_path / "s.gz", change)) == 1
    said = capsys.readouterr().out
    assert "numpy, ufuncs, new: add" in said and "numpy, ufuncs, changed: subtract" in said
    assert "numpy, names, gone: once_there" in said


def test_private_names_that_are_missing_are_drift(numpy_alone, monkeypatch, tmp_path, capsys):
    path = older(tmp_path / "s.gz", lambda kinds: None)
    here = {**drift.collected("numpy"), "missing": ["numpy._core._gone"]}
    monkeypatch.setattr(drift, "inventory", lambda name: here)
    assert drift.print_drift(path) == 1
    assert "numpy, private names, gone: numpy._core._gone" in capsys.readouterr().out


def test_a_framework_that_cannot_be_asked_is_a_row(numpy_alone, monkeypatch, tmp_path, capsys):
    def fails(name):
        raise RuntimeError("ImportError: it is broken")

    monkeypatch.setattr(drift, "inventory", fails)
    assert drift.print_drift(older(tmp_path / "s.gz", lambda kinds: None)) == 1
    assert "ImportError: it is broken" in capsys.readouterr().out


def test_kinds_are_compared_by_name():
    tested, here = {"a": {"x": "1", "y": "2"}, "old": {"z": ""}}, {"a": {"y": "3", "w": "4"}, "young": {"v": ""}}
    (row,) = differences(tested, here)
    assert (row.kind, row.new, row.gone, row.changed) == ("a", ["w"], ["x"], ["y"])


def test_the_snapshot_is_whole_and_of_tested_versions():
    snapshot = drift.read_snapshot()
    assert set(snapshot) == set(drift.FRAMEWORKS)
    assert {kind for row in snapshot.values() for kind in row["kinds"]} == {
        "operators", "decompositions", "meta functions", "autocast", "primitives", "raw operations", "ufuncs", "names",
    }  # fmt: skip
    assert all(len(names) > 100 for row in snapshot.values() for names in row["kinds"].values())


def test_tensorflow_tells_of_its_operations():
    pytest.importorskip("tensorflow")
    from tensorgraft.cli.drift import tensorflow

    (operations,) = tensorflow.kinds().values()
    assert "AddV2" in operations and not [name for name in operations if name.startswith("_")]


def test_a_process_tells_of_a_framework(tensorgraft):
    assert drift.inventory("numpy") == drift.collected("numpy")


@pytest.mark.slow
def test_the_installed_frameworks_are_those_that_were_tested(tensorgraft):
    result = tensorgraft("doctor", "--drift", COLUMNS="200")
    assert (result.returncode, "no drift" in result.stdout) == (0, True), result.stdout
