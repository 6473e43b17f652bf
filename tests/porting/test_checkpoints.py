"""Checkpoints, read and written."""

import json

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from tensorgraft.porting.checkpoints import Checkpoint, write

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "bool"]


def arrays():
    rng = np.random.default_rng(0)
    found = {f"x.{d}": (rng.standard_normal((3, 5)) * 9).astype(d) for d in DTYPES}
    return {**found, "scalar": np.array(2.5, "f4"), "empty": np.zeros((0, 4), "f4"), "é/ü": np.ones(3, "f4")}


def written(path, values):
    entries = [(name, x.dtype, x.shape) for name, x in values.items()]
    write(path, entries, lambda name: iter([values[name]]))


def test_the_library_reads_what_is_written(tmp_path):
    values = arrays()
    written(tmp_path / "x.safetensors", values)
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == values.keys()
    for name, x in values.items():
        assert found[name].dtype == x.dtype
        np.testing.assert_array_equal(found[name], x)


def test_what_the_library_writes_is_read(tmp_path):
    values = arrays()
    save_file(values, tmp_path / "x.safetensors", metadata={"format": "np"})
    found = Checkpoint(tmp_path / "x.safetensors")
    assert set(found) == set(values) and len(found) == len(values)
    for name, x in values.items():
        assert found[name]().dtype == x.dtype
        np.testing.assert_array_equal(found[name](), x)


def test_bfloat16(tmp_path):
    x = torch.randn(4, 3).bfloat16()
    save_torch({"x": x}, tmp_path / "x.safetensors")
    torch.save({"x": x}, tmp_path / "x.pt")
    for source in (tmp_path / "x.safetensors", tmp_path / "x.pt", {"x": x}):
        found = Checkpoint(source)["x"]()
        assert found.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(found.astype("f4"), x.float().numpy())
    written(tmp_path / "y.safetensors", {"x": found})
    assert torch.equal(load_torch(tmp_path / "y.safetensors")["x"], x)


def test_folders(tmp_path):
    save_file({"a": np.ones(2)}, tmp_path / "1.safetensors")
    save_file({"b": np.zeros(3)}, tmp_path / "2.safetensors")
    assert {n: x().shape for n, x in Checkpoint(tmp_path).items()} == {"a": (2,), "b": (3,)}
    (tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError, match="has no file"):
        Checkpoint(tmp_path / "none")


def file_of(header, body=b""):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return len(text).to_bytes(8, "little") + text + body


WHOLE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no safetensors file"),
        (b"abc", "is no safetensors file"),
        (b"PK\x03\x04" + b"x" * 100, "is no safetensors file"),
        (file_of(b"not JSON"), "its header is no JSON"),
        (file_of({"w": WHOLE}, b"1234"), "w in .* is not whole"),
        (file_of({"w": {**WHOLE, "shape": [3]}}, b"12345678"), "w in .* is not whole"),
        (file_of({"w": {**WHOLE, "dtype": "F3"}}, b"12345678"), "dtype F3"),
    ],
)
def test_broken_files(tmp_path, data, message):
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        Checkpoint(tmp_path / "x.safetensors")


@pytest.mark.parametrize("length", [4, 30, -1])
def test_files_that_are_cut_short(tmp_path, length):
    save_file({"w": np.ones((8, 8), "f4")}, tmp_path / "x.safetensors")
    data = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(data[:length])
    with pytest.raises(ValueError, match=r"x\.safetensors"):
        Checkpoint(tmp_path / "x.safetensors")


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"old")

    def parts(name):
        yield np.ones(2, "f4")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write(path, [("w", np.dtype("f4"), (4,))], parts)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
