"""Formats that are read: a small valid file of each, what reads it, and which errors the reader may raise."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.hostile import mutations
from tests.hostile.mutations import Mutation
from tests.hostile.onnx_models import load_onnx, load_operators, make_onnx, make_operators, of_onnx
from tests.hostile.program_files import (
    inspect_files,
    load_litert,
    load_pt2,
    load_stablehlo,
    make_inspected,
    make_litert,
    make_pt2,
    make_stablehlo,
    of_litert,
    of_program,
    of_pt2,
    of_stablehlo,
)

DEVICE = "graft:1"  # NumPy: nothing compiles, and JAX is not imported
SHOWN = 1 << 20  # elements of a result that are compared; more are strides of 0


@dataclass(frozen=True)
class Format:
    name: str
    reads: str  # whose code goes through the bytes first
    make: Callable[[Path], None]  # valid files in a folder
    load: Callable[[Path], Any]  # what is in them: arrays, numbers and containers
    mutate: Callable[[str], Mutation | None]  # of a file, by its name; None: it is left as it is
    errors: tuple[type[BaseException], ...]
    named: bool = False  # errors name the file
    share: float = 1.0  # of all mutants, relative to the others
    checked: bool = False  # by a checksum: no other values come of it


def digest(x: Any) -> str:
    """What is in a tree of arrays, as a short text."""
    said = hashlib.blake2b(digest_size=12)

    def add(x: Any) -> None:
        if isinstance(x, dict):
            for key in sorted(x, key=repr):
                said.update(repr(key).encode())
                add(x[key])
        elif isinstance(x, list | tuple):
            said.update(b"(%d" % len(x))
            for v in x:
                add(v)
        elif hasattr(x, "untyped_storage"):  # a tensor
            said.update(f"{x.dtype}{tuple(x.shape)}{x.requires_grad}{x.device}".encode())
            if 0 < x.numel() <= SHOWN:
                said.update(repr(x.detach().cpu().tolist()).encode())
        elif isinstance(x, np.ndarray):
            said.update(f"{x.dtype}{x.shape}".encode())
            said.update(np.ascontiguousarray(x).tobytes())
        else:
            said.update(repr(x)[:1000].encode())

    add(x)
    return said.hexdigest()


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "w": rng.normal(size=(3, 4)).astype(np.float32),
        "b": rng.normal(size=4),
        "n": rng.integers(0, 9, (2, 2)),
        "mask": np.array([True, False]),
        "empty": np.zeros((0, 3), np.float32),
    }


# ---- programs and functions of tensorgraft ---------------------------------------------------------------------------


def _by_name(name: str) -> Mutation:
    return mutations.of_json if name.endswith(".json") else mutations.of_zip(lambda _: mutations.of_npy)


def make_function(folder: Path) -> None:
    """A function with weights, constants, two signatures, a loop and random numbers."""
    from tensorgraft.hub import dtypes, registry
    from tensorgraft.hub.abstract import ShapeDtype
    from tensorgraft.hub.recorded import record
    from tensorgraft.hub.recorded.function import CallSignature, Function, Recorded

    w = values()["w"]
    programs = {}
    for rows, seeded in ((2, False), (5, True)):
        specs = [ShapeDtype((3, 4), dtypes.float32), ShapeDtype((rows, 3), dtypes.float32)]
        drawn = [ShapeDtype((2,), dtypes.uint32)] * seeded

        def fn(xp: Any, w: Any, x: Any, *key: Any) -> Any:
            h = xp.softmax(xp.matmul(x, w), -1)
            ramp = xp.asarray(np.arange(4, dtype=np.float32))
            total, _ = xp.scan(lambda c, row: (xp.add(c, xp.multiply(row, ramp)), c), xp.zeros((4,), dtypes.float32), h,
                               length=xp.shape(h)[0], reverse=False)  # fmt: skip
            return [xp.add(h, xp.normal(key[0], (4,), dtypes.float32)) if key else xp.concat([h, h], 0), total]

        arguments = ("tuple", ("tuple", ("array",)), ("dict", (("eps", ("float", "0.5")),)))
        results = ("dict", (("h", ("array",)), ("total", ("array",))))
        programs[CallSignature(arguments, tuple(specs[1:]), seeded)] = Recorded(record(fn, [*specs, *drawn]), results)
    Function(registry.get("numpy"), "model", {"layer.w": w}, programs).save(folder)


def load_function(folder: Path) -> Any:
    import tensorgraft as tg

    f = tg.load(folder)
    return f.__name__, f.weights, [(str(s), str(r.program), r.results) for s, r in f.programs.items()]


def make_program(folder: Path) -> None:
    from tensorgraft.hub import dtypes
    from tensorgraft.hub.abstract import ShapeDtype
    from tensorgraft.hub.recorded import encoding, record

    def fn(xp: Any, x: Any) -> Any:
        one = xp.asarray(np.ones((2, 2), dtypes.bfloat16))
        chosen = xp.cond(xp.greater(xp.sum(x), 0), lambda a: (xp.sin(a),), lambda a: (xp.cos(a),), x)[0]
        parts = xp.split(xp.concat([chosen, chosen], 0), [1, 1])
        return [xp.add(xp.astype(x, dtypes.bfloat16), one), *parts, xp.full((3,), float("inf"), dtypes.float32),
                xp.while_loop(lambda s: xp.less(s[0], 9), lambda s: (xp.add(s[0], 2),),
                              (xp.zeros((), dtypes.int64),))[0],
                xp.gather(x, (xp.zeros((2,), dtypes.int64),)), xp.pad(x, 0, [(1, 0, 0), (0, 1, 0)])]  # fmt: skip

    encoding.save(record(fn, [ShapeDtype((2, 2), dtypes.float32)]), folder)


def load_program(folder: Path) -> Any:
    from tensorgraft.hub.recorded import encoding

    program = encoding.load(folder)
    return str(program), [v.known() for v in program.constants]


# ---- safetensors -----------------------------------------------------------------------------------------------------


def tree() -> Any:
    held = values()
    return {
        "layers": [held["w"], held["b"]],
        "n": held["n"],
        "c": held["b"].astype(np.complex128),
        "step": 3,
        "empty": held["empty"],
    }


def make_tree(folder: Path) -> None:
    from tensorgraft.transforms.serialisation import tree_serialise_leaves

    tree_serialise_leaves(folder / "tree.safetensors", tree())


def load_tree(folder: Path) -> Any:
    from tensorgraft.transforms.serialisation import tree_deserialise_leaves

    return tree_deserialise_leaves(folder / "tree.safetensors", tree())


def make_safetensors(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file(values(), folder / "model.safetensors", {"format": "pt"})


def load_safetensors(folder: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors", device=DEVICE)


def make_sharded(folder: Path) -> None:
    """Hugging Face's form: an index, and files that have parts of the weights."""
    from safetensors.numpy import save_file

    held = values()
    place = {name: f"model-0000{k % 2 + 1}-of-00002.safetensors" for k, name in enumerate(held)}
    for file in sorted(set(place.values())):
        save_file({name: x for name, x in held.items() if place[name] == file}, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def load_sharded(folder: Path) -> Any:
    from safetensors.torch import load_file

    state: dict[str, Any] = {}
    for file in sorted(path for path in folder.iterdir() if path.suffix == ".safetensors"):
        state |= load_file(file, device=DEVICE)
    return state


# ---- PyTorch's files -------------------------------------------------------------------------------------------------


def state(device: str = DEVICE) -> dict[str, Any]:
    import torch

    tensors = {name: torch.from_numpy(x).to(device) for name, x in values().items()}
    return {**tensors, "view": tensors["w"].t()[1:], "tied": tensors["w"], "epoch": 3, "host": torch.arange(3)}


def make_torch(folder: Path) -> None:
    import torch

    torch.save(state(), folder / "model.pt")


def make_legacy(folder: Path) -> None:
    import torch

    torch.save(state(), folder / "model.pt", _use_new_zipfile_serialization=False)


def load_torch(folder: Path) -> Any:
    import torch

    return torch.load(folder / "model.pt", weights_only=True)


def load_mapped(folder: Path) -> Any:
    import torch

    return torch.load(folder / "model.pt", weights_only=True, map_location=DEVICE)


def quantised_state() -> dict[str, Any]:
    import torch

    import tensorgraft as tg

    w = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)).to(DEVICE)
    return {name: tg.quantize(w, name) for name in ("int8_per_channel", "uint4_asymmetric_per_group_16", "nf4")} | {
        "bias": torch.zeros(4, device=DEVICE)
    }


def make_quantised(folder: Path) -> None:
    import torch

    torch.save(quantised_state(), folder / "model.pt")


def make_flattened(folder: Path) -> None:
    from safetensors.torch import save_file

    from tensorgraft.frontends.torch.quantized.state import flatten_tensor_state_dict

    tensors, metadata = flatten_tensor_state_dict({k: v for k, v in quantised_state().items() if k != "bias"})
    save_file(tensors, folder / "model.safetensors", metadata)


def load_flattened(folder: Path) -> Any:
    from safetensors import safe_open
    from safetensors.torch import load_file

    from tensorgraft.frontends.torch.quantized.state import unflatten_tensor_state_dict

    with safe_open(folder / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    return unflatten_tensor_state_dict(load_file(folder / "model.safetensors"), metadata)


def make_checkpoint(folder: Path) -> None:
    import warnings

    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state("cpu"), checkpoint_id=folder)
    for file in folder.glob("*.distcp"):
        file.unlink()


def load_checkpoint(folder: Path) -> Any:
    from tensorgraft.frontends.torch.device.checkpoint_files import _files_of

    return sorted(_files_of(folder / ".metadata"))


def make_shards(folder: Path) -> None:
    """A checkpoint of tensors alone: of anything else PyTorch's planner runs the pickle."""
    import warnings

    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(_tensors("cpu"), checkpoint_id=folder)


def load_shards(folder: Path) -> Any:
    import warnings

    import torch.distributed.checkpoint as dcp

    held = _tensors(DEVICE)
    for x in held.values():
        x.zero_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(held, checkpoint_id=folder)
    except dcp.api.CheckpointException as error:  # no Exception: what each process met
        raise error.failures[0][0] from None
    return held


def _tensors(device: str) -> dict[str, Any]:
    import torch

    return {name: x for name, x in state(device).items() if isinstance(x, torch.Tensor) and name != "host"}


def make_script(folder: Path) -> None:
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)
            self.register_buffer("scale", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) * self.scale
            return y + torch.zeros(3, device=y.device)

    torch.manual_seed(0)
    module = Scaled().to(DEVICE)
    torch.jit.save(torch.jit.trace(module, torch.ones(2, 4, device=DEVICE)), folder / "model.pt")


def load_script(folder: Path) -> Any:
    """What it holds; what it would compute is a program of the file's, and not run."""
    import torch

    return dict(torch.jit.load(folder / "model.pt").state_dict())


# ---- compiled programs that are kept ---------------------------------------------------------------------------------


def run_kept(folder: Path) -> Any:
    """Two programs, as a process that starts has them: whatever became of their entries, they are computed."""
    import jax

    import tensorgraft as tg
    import tensorgraft.array_api as xp

    tg.set_compile_cache(folder)
    jax.clear_caches()
    x = xp.asarray(np.arange(6.0), device=tg.device("jax"))
    return [np.asarray(tg.jit(f)(x)) for f in (lambda x: xp.sin(x) * 2 + x, lambda x: xp.cos(x) * 2 + x)]


def make_kept(folder: Path) -> None:
    run_kept(folder)
    (folder / ".pruned").unlink()


_ENTRY = "program"


def make_entry(folder: Path) -> None:
    from tensorgraft.backends.jax.compilation.cache_entries import Entries

    for name in (_ENTRY, "another"):
        Entries(str(folder)).put(name, np.random.default_rng(len(name)).bytes(2000))


def load_entry(folder: Path) -> Any:
    """What the cache believes of an entry, without JAX. Raises FileNotFoundError where it is none for it."""
    from tensorgraft.backends.jax.compilation.cache_entries import Entries

    found = Entries(str(folder)).get(_ENTRY)
    if found is None:
        raise FileNotFoundError(folder)
    return found


# ---- TensorFlow ------------------------------------------------------------------------------------------------------


def make_saved(folder: Path) -> None:
    import tensorflow as tf

    m = tf.Module()
    m.w = tf.Variable(values()["w"])
    m.call = tf.function(lambda x: tf.nn.relu(x @ m.w), input_signature=[tf.TensorSpec((2, 3), tf.float32)])
    tf.saved_model.save(m, str(folder), signatures={"serving_default": m.call})


def load_saved(folder: Path) -> Any:
    import tensorgraft as tg

    f = tg.graft(str(folder), onto="numpy")
    return dict(f["serving_default"](np.ones((2, 3), np.float32)))


def make_frozen(folder: Path) -> None:
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    w = tf.constant(values()["w"])
    fn = tf.function(lambda x: tf.nn.relu(x @ w + 1.0), input_signature=[tf.TensorSpec((2, 3), tf.float32, name="x")])
    graph = convert_variables_to_constants_v2(fn.get_concrete_function()).graph.as_graph_def()
    (folder / "frozen.pb").write_bytes(graph.SerializeToString())


def load_frozen(folder: Path) -> Any:
    import tensorgraft as tg

    f = tg.graft(str(folder / "frozen.pb"), onto="numpy")
    return dict(f["graph"](np.ones((2, 3), np.float32)))


@functools.cache
def formats() -> dict[str, Format]:
    from safetensors import SafetensorError

    rust = (SafetensorError, TypeError, ValueError, RuntimeError, OSError)
    # PyTorch's and TensorFlow's own readers document none: they are counted by their types
    any_error: tuple[type[BaseException], ...] = (Exception,)

    def pickled(name: str) -> Mutation:
        return (
            mutations.of_pickle
            if name.endswith("data.pkl")
            else mutations.of_json
            if ".tensorgraft" in name
            else mutations.of_bytes
        )

    def safe(name: str) -> Mutation:
        return mutations.of_safetensors if name.endswith(".safetensors") else mutations.of_json

    def proto(name: str) -> Mutation:
        return mutations.of_protobuf

    def zipped(name: str) -> Mutation:
        return mutations.of_zip(pickled)

    def pickles(name: str) -> Mutation:
        return mutations.of_pickle

    def model(name: str) -> Mutation:
        return of_onnx if name.endswith(".onnx") else mutations.of_bytes

    own = (ValueError, FileNotFoundError)
    of_models = (*own, NotImplementedError)
    of_runs = (*of_models, TypeError, MemoryError)

    def shards(name: str) -> Mutation | None:
        return mutations.of_archives(mutations.of_zip(pickled)) if name.endswith(".distcp") else None

    def script(name: str) -> Mutation:
        return mutations.of_zip(lambda inner: mutations.of_pickle if inner.endswith(".pkl") else mutations.of_bytes)

    def entry(name: str) -> Mutation | None:
        return mutations.of_bytes if name.endswith("-cache") else None

    gone = (FileNotFoundError,)
    rows: Iterable[Format] = (
        Format("tg.load", "tensorgraft", make_function, load_function, _by_name, own, True, 10),
        Format("recorded program", "tensorgraft", make_program, load_program, _by_name, own, True, 10),
        Format("tree_deserialise_leaves", "safetensors", make_tree, load_tree, safe, (ValueError,), True, 20),
        Format("safetensors onto the device", "safetensors", make_safetensors, load_safetensors, safe, rust, True, 20),
        Format("sharded safetensors", "safetensors", make_sharded, load_sharded, safe, rust, True, 11),
        Format("flattened quantised state", "safetensors", make_flattened, load_flattened, safe, rust, share=14),
        Format("torch.load onto the device", "PyTorch", make_torch, load_torch, zipped, any_error, share=2),
        Format("torch.load with map_location", "PyTorch", make_torch, load_mapped, zipped, any_error, share=1.4),
        Format("torch.load, legacy format", "PyTorch", make_legacy, load_torch, pickles, any_error, share=2),
        Format("torch.load of quantised tensors", "PyTorch", make_quantised, load_torch, zipped, any_error, share=1.4),
        Format("torch.jit.load onto the device", "PyTorch", make_script, load_script, script, any_error, share=0.9),
        Format("checkpoint metadata", "tensorgraft", make_checkpoint, load_checkpoint, pickles, own, True, 2),
        Format("shards of a checkpoint", "PyTorch", make_shards, load_shards, shards, any_error, share=0.4),
        Format("entry of the compile cache", "tensorgraft", make_entry, load_entry, entry, gone, True, 4.5, True),
        Format("compile cache of a start", "tensorgraft", make_kept, run_kept, entry, (), share=0.1, checked=True),
        Format("ONNX model", "onnx", make_onnx, load_onnx, model, of_models, True, 10),
        Format("ONNX operators, run", "onnx", make_operators, load_operators, model, of_runs, True, 2.3),
        Format(".pt2", "PyTorch", make_pt2, load_pt2, lambda _: of_pt2, own, True, 0.4),
        Format(".stablehlo", "JAX", make_stablehlo, load_stablehlo, lambda _: of_stablehlo, of_models, True, 0.5),
        Format("LiteRT model", "tensorgraft", make_litert, load_litert, lambda _: of_litert, own, True),
        Format("inspect", "onnx, PyTorch, JAX", make_inspected, inspect_files, of_program, of_models, True, 0.4),
        Format("SavedModel", "TensorFlow", make_saved, load_saved, proto, any_error, share=0.15),
        Format("frozen graph", "TensorFlow", make_frozen, load_frozen, proto, any_error, share=0.15),
    )
    return {f.name: f for f in rows}


def mutant(form: Format, files: dict[str, bytes], rng: Random) -> dict[str, bytes]:
    """One file of a valid set changed, gone or exchanged for another."""
    out = dict(files)
    how = {name: mutate for name in sorted(files) if (mutate := form.mutate(name)) is not None}
    name = rng.choice([*how])
    if len(how) > 1 and rng.random() < 0.02:
        out[name] = files[rng.choice([*how])]
    elif rng.random() < 0.3:
        out[name] = mutations.of_bytes(rng, files[name])
    else:
        out[name] = how[name](rng, files[name])
    return out


def read_folder(folder: Path) -> dict[str, bytes]:
    paths = (Path(base, name) for base, _, names in os.walk(folder) for name in names)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
