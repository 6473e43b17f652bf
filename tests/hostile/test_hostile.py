"""A sample of mutated files, and what the harness has found: files say anything, and nothing of it is believed."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import warnings
import zipfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from tests.hostile import child
from tests.hostile.formats import (
    DEVICE,
    digest,
    formats,
    load_checkpoint,
    make_checkpoint,
    make_function,
    mutant,
    read_folder,
)

import tensorgraft as tg
from tensorgraft import files
from tensorgraft.frontends.torch.device import checkpoint_files
from tensorgraft.frontends.torch.quantized.files import rebuild
from tensorgraft.hub.recorded import encoding
from tensorgraft.transforms.serialisation import tree_deserialise_leaves, tree_serialise_leaves

GOOD = {"equal", "other values", "error"}
# not what starts TensorFlow, clears JAX's caches, runs 1,900 models, or has ended the process: PyTorch's reader of
# TorchScript, in C++; nor what Dynamo exports, which does not read functions that pytest has rewritten
# (`make hostile-files` has a process for each)
APART = {"compile cache of a start", "torch.jit.load onto the device", "ONNX operators, run", ".pt2", "inspect",
         "LiteRT model"}  # fmt: skip
CHEAP = [form for form in formats().values() if form.reads != "TensorFlow" and form.name not in APART]
BOMBS_OF_PYTORCH = {"memory"}  # it asks for what a file declares: docs/hostile_files.md


@pytest.mark.parametrize("form", CHEAP, ids=lambda form: form.name)
def test_a_sample(form, tmp_path):
    """Here without the limit of memory, which `make hostile-files` sets."""
    torch.ones(1, device=DEVICE)
    (tmp_path / "valid").mkdir()
    form.make(tmp_path / "valid")
    held = read_folder(tmp_path / "valid")
    shutil.copytree(tmp_path / "valid", tmp_path / "file")
    valid = digest(form.load(tmp_path / "file"))
    # the cache takes away what is no entry
    watch = child.Watch(tmp_path, "compile cache" in form.name, form.name == ".pt2")
    seed = os.urandom(4).hex()
    for index in range(40 if form.reads == "PyTorch" else 120):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            changed = mutant(form, held, Random(f"{seed}/{form.name}/{index}"))
            for name, content in changed.items():
                (tmp_path / "file" / name).write_bytes(content)
            kind, said = child.outcome(form, tmp_path / "file", valid, watch)
        allowed = GOOD | BOMBS_OF_PYTORCH if form.reads == "PyTorch" else GOOD
        assert kind in allowed, f"{form.name}, seed {seed}, mutant {index}: {kind}: {said}"


# ---- functions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def function(tmp_path):
    make_function(tmp_path)
    return tmp_path


def edited(folder, change):
    data = json.loads((folder / "function.json").read_text())
    change(data)
    (folder / "function.json").write_text(json.dumps(data))


def results_without_an_array(data):
    """`map` ends where an iterator does: a template with more places than there are arrays was believed."""
    data["signatures"][0]["results"] = ["tuple", ["array"], ["array"], ["array"]]


@pytest.mark.parametrize(
    "change",
    [
        results_without_an_array,
        lambda d: d["signatures"][0].update(arguments=["tuple", ["dict", []], ["dict", []]]),
        lambda d: d.pop("name"),
        lambda d: d.update(files={"weights": "../weights.npz"}),
        lambda d: d.update(files={"weights": "constants.npz"}),
        lambda d: d["weights"].update({"layer.w": ["float32", [3, 10**30]]}),
        lambda d: d["weights"].update({"layer.w": ["float32", [-3, -4]]}),
    ],
)
def test_a_function_is_not_believed(function, change):
    edited(function, change)
    with pytest.raises(ValueError, match=r"function\.json|weights\.npz"):
        tg.load(function)


def test_lists_within_lists(function):
    (function / "function.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"function\.json"):
        tg.load(function)


def test_arrays_are_not_compressed(function):
    """128 MiB of zeros are 127 kB of a file."""
    content = zipfile.ZipFile(function / "weights.npz").read("layer.w.npy")
    with zipfile.ZipFile(function / "weights.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("layer.w.npy", content)
    with pytest.raises(ValueError, match=r"weights.npz is broken: the array 'layer.w' is compressed"):
        tg.load(function)


def test_headers_of_arrays_are_not_expressions(function):
    with zipfile.ZipFile(function / "weights.npz", "w") as archive:
        archive.writestr(
            "layer.w.npy", b"\x93NUMPY\x01\x00" + (28).to_bytes(2, "little") + b"__import__('os').getpid()   \n"
        )
    with pytest.raises(ValueError, match="does not have the header that was written"):
        tg.load(function)


# ---- PyTorch's files -------------------------------------------------------------------------------------------------


def parts():
    return [torch.zeros((4, 8), dtype=torch.int8), torch.ones((4, 1))]


SCHEME = ("int8", "channel", 32, (), 0, True, None, False, ())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", (4, 9)), ("size", (10**12,)), ("offset", 33), ("offset", -1), ("stride", (8,)),
        ("base", (10**9, 10**9)), ("base", (-4, -8)), ("names", ["torch.nn", "torch.float32"]), ("names", ["float32"]),
        ("scheme", SCHEME[:2]),
        ("parts", [torch.zeros((4, 8)), torch.ones((4, 1))]), ("parts", [parts()[0], torch.ones((3, 1))]),
        ("parts", [1, 2]), ("parts", parts()[:1]),
    ],
)  # fmt: skip
def test_a_quantised_tensor_is_not_believed(name, value):
    given = {"device": "cpu", "parts": parts(), "base": (4, 8), "scheme": SCHEME, "names": ["torch.float32"] * 2,
             "size": (4, 8), "stride": (8, 1), "offset": 0, "requires_grad": False}  # fmt: skip
    assert rebuild(**given).dequantize().shape == (4, 8)
    with pytest.raises(ValueError, match=r"a quantised tensor of a file is broken: ."):
        rebuild(**{**given, name: value})


@pytest.mark.parametrize("record", [b"[]", b"{", b'{"0": 1}', b"[" * 50_000])
def test_a_record_of_devices_is_not_believed(record, tmp_path):
    torch.save({"x": torch.ones(2, device=DEVICE)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as source, zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        for name in source.namelist():
            archive.writestr(name, record if ".tensorgraft" in name else source.read(name))
    with pytest.raises(RuntimeError, match=r"\.tensorgraft/locations"):
        torch.load(tmp_path / "b.pt", weights_only=True)


def test_metadata_of_a_checkpoint_run_nothing(tmp_path):
    (tmp_path / ".metadata").write_bytes(b"cos\nsystem\n(S'echo called'\ntR.")
    with pytest.raises(ValueError, match=r"\.metadata is broken.*contains os\.system"):
        load_checkpoint(tmp_path)


def test_metadata_of_a_checkpoint_name_no_files_elsewhere(tmp_path):
    make_checkpoint(tmp_path)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    first = next(iter(metadata.storage_data.values()))
    first.relative_path = "../outside"
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert checkpoint_files._files_of(tmp_path / ".metadata") <= {"__0_0.distcp"}


def test_metadata_of_python_3_13_names_paths_otherwise(tmp_path):
    written = b"cpathlib._local\nPosixPath\n(V/tmp\ntR."
    assert checkpoint_files._Metadata(io.BytesIO(written)).load() == Path("/tmp")


# ---- saving ----------------------------------------------------------------------------------------------------------


def failing(*args, **kwargs):
    raise OSError("No space left on device")


def test_a_function_that_cannot_be_saved_leaves_the_one_before(function, monkeypatch):
    before, f = read_folder(function), tg.load(function)
    for owner, name in ((encoding, "write_arrays"), (files, "write"), (os, "fsync"), (os, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            with pytest.raises(OSError, match="No space"):
                f.save(function)
        assert read_folder(function) == before, name
    f.save(function)
    f.save(function)
    assert sorted(name.partition("-")[0].partition(".")[0] for name in read_folder(function)) == [
        "constants",
        "function",
        "weights",
    ]
    assert np.array_equal(tg.load(function).weights["layer.w"], f.weights["layer.w"])


def test_a_file_that_cannot_be_written_is_the_one_before(tmp_path, monkeypatch):
    path, tree = tmp_path / "tree.safetensors", {"x": np.ones(3)}
    tree_serialise_leaves(path, tree)
    before = read_folder(tmp_path)
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            with pytest.raises(OSError, match="No space"):
                tree_serialise_leaves(path, {"x": np.zeros(3)})
        assert read_folder(tmp_path) == before
    path.chmod(0o640)
    tree_serialise_leaves(path, {"x": np.zeros(3)})
    assert path.stat().st_mode & 0o777 == 0o640
    assert tree_deserialise_leaves(path, tree)["x"].sum() == 0
