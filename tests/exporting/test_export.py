"""The arguments of `tg.export`, and its errors."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import tensorgraft as tg
from tensorgraft.errors import CheckError
from tensorgraft.exporting import verification

X = jnp.arange(6.0).reshape(2, 3)


def test_a_file_is_called_as_the_program(tmp_path: Path) -> None:
    path = tmp_path / "f.stablehlo"
    tg.export(lambda tree, *, scale: {"y": tree["x"] * scale}, {"x": X}, scale=X[0], to="stablehlo", path=path)
    exported = jax_export.deserialize(bytearray(path.read_bytes()))
    out = exported.call({"x": jnp.ones((5, 3))}, scale=jnp.arange(3.0))
    np.testing.assert_array_equal(out["y"], np.tile([0.0, 1.0, 2.0], (5, 1)))
    assert exported.platforms == ("cpu", "cuda", "tpu")


def test_sizes_by_name(tmp_path: Path) -> None:
    path = tmp_path / "f.stablehlo"
    report = tg.export(jnp.tanh, X, to="stablehlo", path=path, dynamic={"x": {0: "rows"}}, platforms=("cpu",))
    assert report.inputs[0].shape == ["rows", 3]
    assert report.outputs[0].shape == ["rows", 3]
    report = tg.export(jnp.tanh, X, to="stablehlo", path=path, dynamic=False)
    assert report.inputs[0].shape == [2, 3]


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"y": {0: "rows"}}, "has no array 'y'; its arrays are x"),
        ({"x": {2: "rows"}}, "has no axis 2"),
        ({"x": {0: "1"}}, "'1' is no name of a size"),
        ({"x": {0: "n", 1: "n"}}, "'n' is 2 and 3 in the example"),
    ],
)
def test_unknown_sizes(dynamic: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        tg.export(jnp.tanh, X, to="stablehlo", path=tmp_path / "f", dynamic=dynamic)
    assert not [*tmp_path.iterdir()]


def test_a_size_that_the_program_fixes(tmp_path: Path) -> None:
    w = jnp.ones((3, 3))
    with pytest.raises(ValueError, match="does not run with another size of 'columns'"):
        tg.export(lambda x: x @ w, X, to="stablehlo", path=tmp_path / "f", dynamic={"x": {1: "columns"}})


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="to='tflow': expected one of 'stablehlo'"):
        tg.export(jnp.tanh, X, to="tflow", path=tmp_path / "f")
    with pytest.raises(ValueError, match="to='pt2' takes no platforms"):
        tg.export(jnp.tanh, X, to="pt2", path=tmp_path / "f", platforms=("cpu",))


def test_a_folder_of_others_is_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is a folder that is no SavedModel"):
        tg.export(jnp.tanh, X, to="saved_model", path=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.stablehlo"
    path.write_text("before")
    monkeypatch.setattr(verification, "FORWARD", float("nan"))
    with pytest.raises(CheckError, match="the file differs from the program, and was not kept"):
        tg.export(jax.nn.relu, X, to="stablehlo", path=path)
    assert path.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["f.stablehlo"]


def test_random_numbers_are_not_compared(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Dropout(0.5)).train()
    report = tg.export(module, torch.ones(2, 3), to="pt2", path=tmp_path / "f.pt2")
    assert not report.rows and "draws random numbers" in "".join(report.notes)


def test_what_a_file_cannot_express(tmp_path: Path) -> None:
    def program(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(Exception, match="callback"):
        tg.export(program, X, to="stablehlo", path=tmp_path / "f")
    assert not [*tmp_path.iterdir()]
