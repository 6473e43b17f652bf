"""Files of `torch.export`, `jax.export` and LiteRT, and what `tensorgraft inspect` says of them."""

from __future__ import annotations

import atexit
import dataclasses
import io
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.hostile import mutations
from tests.hostile.mutations import Mutation

PT2, STABLEHLO, LITERT = "model.pt2", "model.stablehlo", "model.tflite"


def make_pt2(folder: Path) -> None:
    """A module with parameters, a buffer that it writes, a branch, and an open size."""
    import torch
    from torch.export import Dim, export, save

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)
            self.register_buffer("count", torch.zeros(()))
            self.table = torch.arange(3.0)

        def forward(self, x: Any, options: dict[str, Any]) -> Any:
            self.count.add_(1)
            y = self.linear(x)[: x.shape[0] - 1].reshape(-1, 3) * self.table
            chosen = torch.cond(y.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (y,))
            return {"y": chosen, "scaled": y * options["scale"]}

    torch.manual_seed(0)
    arguments = torch.ones(5, 4), {"scale": torch.ones(3)}
    sizes = {"x": {0: Dim("rows", min=3, max=64)}, "options": {"scale": None}}
    save(export(Net(), arguments, dynamic_shapes=sizes), folder / PT2)


def load_pt2(folder: Path) -> Any:
    """Return the state and the operators of the program, which is not run."""
    from tensorgraft.transforms.program_files import program_of_file

    module = program_of_file(folder / PT2)
    return dict(module.state_dict()), [f"{node.target}{node.args}" for node in module.graph.nodes]


def _of_member(name: str) -> Mutation:
    if name.endswith(".json"):
        return mutations.of_json
    return mutations.of_zip(_of_tensors) if name.endswith(".pt") else mutations.of_bytes


def _of_tensors(name: str) -> Mutation:
    return mutations.of_pickle if name.endswith("data.pkl") else mutations.of_bytes


_IN_MEMBERS = mutations.of_zip(_of_member)
# harmless texts of kinds that a reader may look up, evaluate or import, none of which a program needs
_CODE = (
    "torch.os.getpid", "torch.is_tensor", "torch.version.git_version", "_operator.methodcaller", "_operator.attrgetter",
    "a b", "a, b", "*a", "1",
    "math.factorial", "__import__('os').getpid()", "s0.__class__", "9**9", "(" * 100, "lambda: 0",
    '[1, {"type": "collections.defaultdict", "context": "{\\"default_factory_module\\": \\"collections\\", '
    '\\"default_factory_name\\": \\"OrderedDict\\", \\"dict_context\\": []}", "children_spec": []}]',
)  # fmt: skip


def of_pt2(rng: Random, data: bytes) -> bytes:
    """Members are others, or a text in the program is code."""
    if rng.random() < 0.8:
        return _IN_MEMBERS(rng, data)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as archive:
        for name in source.namelist():
            content = source.read(name)
            archive.writestr(name, mutations.with_texts(rng, content, _CODE) if "models/" in name else content)
    return out.getvalue()


def make_stablehlo(folder: Path) -> None:
    """A function of products, a loop, a branch, random numbers and sorting, with open sizes, for two platforms."""
    import jax
    import jax.numpy as jnp
    from jax import export, lax

    w = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)

    def fn(x: Any, *, n: Any) -> Any:
        y = jnp.tanh(x @ w)
        y = lax.fori_loop(0, 3, lambda i, c: c + i, y)
        y = lax.cond(n > 0, lambda a: a * 2, lambda a: a - 1, y)
        return {"y": jnp.sort(y, 0), "top": lax.top_k(y, 2)[0], "noise": jax.random.normal(jax.random.key(0), (2,))}

    x = jax.ShapeDtypeStruct(export.symbolic_shape("b, 4"), jnp.float32)
    exported = export.export(jax.jit(fn), platforms=("cpu", "cuda"))(x, n=jax.ShapeDtypeStruct((), jnp.int32))
    (folder / STABLEHLO).write_bytes(exported.serialize())


# a process that runs a script in a fork of its own for each module, because a start for each takes a second
SERVER = """
import os, resource, struct, sys, traceback
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo
resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
ours, theirs = sys.stdin.buffer, sys.stdout.buffer
while size := ours.read(8):
    files = [os.memfd_create(name) for name in ("in", "out", "err")]
    os.write(files[0], ours.read(int.from_bytes(size, "little")))
    os.lseek(files[0], 0, 0)
    child = os.fork()
    if not child:
        for k, file in enumerate(files):
            os.dup2(file, k)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
        try:
            exec(sys.argv[1], {})
            code = 0
        except Exception:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = [os.pread(file, os.fstat(file).st_size, 0) for file in files[1:]]
    for file in files:
        os.close(file)
    theirs.write(struct.pack("<iQQ", code, *map(len, texts)) + b"".join(texts))
    theirs.flush()
"""


class Served:
    """Takes the place of `subprocess` where modules are parsed."""

    def __init__(self, script: str) -> None:
        command = [sys.executable, "-c", SERVER, script]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        atexit.register(self.close)

    def close(self) -> None:
        for end in (self.process.stdin, self.process.stdout):
            if end is not None:
                end.close()
        self.process.wait()

    def run(self, command: Any, input: bytes, **options: Any) -> subprocess.CompletedProcess[bytes]:
        to, back = self.process.stdin, self.process.stdout
        assert to is not None and back is not None
        to.write(len(input).to_bytes(8, "little") + input)
        to.flush()
        code, *sizes = struct.unpack("<iQQ", back.read(20))
        return subprocess.CompletedProcess(command, code, *(back.read(n) for n in sizes))


def serve_modules() -> None:
    """Let one process parse the modules of all files."""
    from tensorgraft.frontends.jax.stablehlo import parser

    if not isinstance(parser.subprocess, Served):
        parser.subprocess = Served(parser.SCRIPT.format(seconds=3))  # type: ignore[misc,assignment]


def load_stablehlo(folder: Path) -> Any:
    """Return the program as it is traced."""
    import jax
    import jax.numpy as jnp

    from tensorgraft.transforms.program_files import program_of_file

    serve_modules()
    function = program_of_file(folder / STABLEHLO)
    x, n = jax.ShapeDtypeStruct((5, 4), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    try:
        return str(jax.make_jaxpr(function)(x, n=n))
    except TypeError as error:
        if "is given, expected" in str(error):
            return "takes other arguments"
        raise


def of_stablehlo(rng: Random, data: bytes) -> bytes:
    """The module of MLIR in the file, or the tables around it, are others."""
    start = data.find(b"ML\xefR")
    if start < 0 or rng.random() < 0.3:
        return mutations.of_bytes(rng, data)
    size = int.from_bytes(data[start - 4 : start], "little")
    module = mutations.of_bytes(rng, data[start : start + size])
    if rng.random() < 0.7:  # places after it remain
        module = module[:size].ljust(size, b"\0")
    return data[:start] + module + data[start + size :]


def make_litert(folder: Path) -> None:
    """A function of a product with weights, a branch and an open size."""
    import tensorflow as tf

    w = tf.constant(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((), tf.int32)])
    def fn(x: Any, n: Any) -> Any:
        y = tf.nn.relu(x @ w)
        return tf.cond(n > 0, lambda: y * 2.0, lambda: y - 1.0)

    converter = tf.lite.TFLiteConverter.from_concrete_functions([fn.get_concrete_function()], fn)
    (folder / LITERT).write_bytes(converter.convert())


def _inspected(path: Path) -> Any:
    from tensorgraft.exporting.inspection import inspect

    return {**dataclasses.asdict(inspect(path)), "path": ""}


def load_litert(folder: Path) -> Any:
    """Return the description of the model, which tensorgraft does not run."""
    return _inspected(folder / LITERT)


def make_inspected(folder: Path) -> None:
    from tests.hostile.onnx_models import make_onnx

    make_onnx(folder)
    make_pt2(folder)
    make_stablehlo(folder)


_descriptions: dict[bytes, Any] = {}


def inspect_files(folder: Path) -> Any:
    """Return the descriptions of the programs. That of a file that is as before is kept."""
    serve_modules()
    found = []
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".onnx", ".pt2", ".stablehlo")):
        content = path.read_bytes()
        if content not in _descriptions:
            described = _inspected(path)
            if len(_descriptions) >= 3:
                found.append(described)
                continue
            _descriptions[content] = described
        found.append(_descriptions[content])
    return found


def of_program(name: str) -> Mutation | None:
    from tests.hostile.onnx_models import of_onnx

    return {".onnx": of_onnx, ".pt2": of_pt2, ".stablehlo": of_stablehlo}.get(Path(name).suffix)


def of_litert(rng: Random, data: bytes) -> bytes:
    """Bytes, or one of the offsets and lengths: words of 4 bytes that are small numbers."""
    if rng.random() < 0.4:
        return mutations.of_bytes(rng, data)
    out = bytearray(data)
    words = [
        k for k in range(0, len(data) - 3, 4) if int.from_bytes(data[k : k + 4], "little", signed=True) < len(data)
    ]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.choice(words)
        value = rng.choice((*mutations.LENGTHS, rng.randrange(len(data)), rng.randrange(16), 2**32 - rng.randrange(64)))
        out[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(out)
