"""Recorded programs in files: JSON for the calls, `.npz` for the arrays; no pickle.

`program.json` is `{"format": "tensorgraft program", "version": 1, "program": ...}`, and a program

    {"parameters": [["float32", [2, 3]], ...],          dtypes and shapes; of bodies, lists of them
     "calls": [["matmul", [{"x": 0}, {"c": 0}], {}, ["float32", [2, 4]]], ...],
     "result": [{"x": 2}]}

A call is a method of the hub, its arguments, its keyword arguments, and what it gives. `{"x": n}` is array n
(parameters and results are numbered as they come, those of bodies included), `{"c": n}` constant n, which is `c<n>` in
`constants.npz`; other arguments are themselves, or `{"tuple": [...]}`, `{"dict": {...}}`, `{"dtype": "float32"}`,
`{"float": "inf"}`, `{"complex": ["1.0", "nan"]}`, `{"body": <program>}`. Arrays of dtypes that NumPy lacks are stored
as their bytes. What is saved over another program has `constants-<token>.npz`, which `"files"` names.

Files may come from strangers: no array is made before its size is known to be that of its bytes in the file, which are
not compressed, and whatever is wrong with a program is a ValueError that names the file.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tensorgraft import files
from tensorgraft.hub import dtypes
from tensorgraft.hub.recorded.block import Block, Call, Tree, Var
from tensorgraft.hub.recorded.program import Program
from tensorgraft.hub.recorded.tracing import CONTROL_FLOW, OPERATIONS

FORMAT, VERSION = "tensorgraft program", 1
DTYPES = {dtype.name: dtype for dtype in (*dtypes.ALL, *dtypes.FLOAT8)}


# ---- arrays --------------------------------------------------------------------------------------------------------


def write_arrays(file: Path | BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Names may be any string that is not empty."""
    plain = {name: a if a.dtype.type.__module__ == "numpy" else a.view(f"u{a.itemsize}") for name, a in arrays.items()}
    with zipfile.ZipFile(file, "w") as archive:  # like numpy.savez, whose names are keyword arguments
        for name, a in plain.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(a), allow_pickle=False)


def read_arrays(file: Path, specs: Mapping[str, tuple[str, list[int]]]) -> dict[str, np.ndarray]:
    """Return the arrays, of these dtypes and shapes. Raises ValueError if the file has others, or another format."""
    with naming_file(file), zipfile.ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise ValueError("two arrays have the same name")
        return {name: _read_array(archive, members, name, spec) for name, spec in specs.items()}


def _read_array(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str, spec: Any) -> np.ndarray:
    info = members.get(f"{name}.npy")
    if info is None:
        raise ValueError(f"it lacks the array {name!r}")
    dtype, shape = dtype_named(spec[0]), tuple(_natural(n) for n in spec[1])
    stored = dtype if dtype.type.__module__ == "numpy" else np.dtype(f"u{dtype.itemsize}")
    size = math.prod(shape) * dtype.itemsize
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"the array {name!r} is compressed")
    with archive.open(info) as member:
        head = member.read(10)
        text = member.read(int.from_bytes(head[8:], "little"))
        match = _HEADER.fullmatch(text)
        if head[:8] != b"\x93NUMPY\x01\x00" or match is None:
            raise ValueError(f"the array {name!r} does not have the header that was written")
        stored_shape = tuple(int(n) for n in match["shape"].replace(b",", b" ").split())
        if (stored_dtype := match["descr"].decode()) != stored.str or stored_shape != shape:
            with contextlib.suppress(TypeError):
                stored_dtype = np.dtype(stored_dtype).name
            raise ValueError(f"the array {name!r} is {stored_dtype}{list(stored_shape)}, not {dtype}{list(shape)}")
        if info.file_size - member.tell() != size:
            raise ValueError(f"the array {name!r} has {info.file_size - member.tell()} bytes, not {size}")
        data = member.read(size)  # as much as exists
    if len(data) != size:
        raise ValueError(f"the array {name!r} ends after {len(data)} of {size} bytes")
    fortran = match["fortran"] == b"True"
    a = np.frombuffer(data, dtype).reshape(shape[::-1] if fortran else shape)
    return a.T if fortran else a


# the header of NumPy's format, version 1.0, as NumPy writes it
_HEADER = re.compile(
    rb"\{'descr': '(?P<descr>[<>|=a-z0-9]+)', 'fortran_order': (?P<fortran>True|False),"
    rb" 'shape': \((?P<shape>[0-9, ]*)\), \} *\n"
)


@contextmanager
def naming_file(file: Path) -> Iterator[None]:
    """Context that raises whatever is wrong with a file as a ValueError with its name, except that it is missing or may
    not be read."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        message = str(error) or type(error).__name__
        raise ValueError(message if str(file) in message else f"{file} is broken: {message}") from error


def dtype_named(name: Any) -> np.dtype:
    if name not in DTYPES:
        raise ValueError(f"{name!r} is not a dtype")
    return DTYPES[name]


# ---- writing -------------------------------------------------------------------------------------------------------


def encode(program: Program, constants: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return a program as JSON takes it. Its constants are added to `constants`, under names that are still free."""
    return _Encoder(program, constants).block(program.block)


class _Encoder:
    def __init__(self, program: Program, constants: dict[str, np.ndarray]) -> None:
        self.names: dict[Var, dict[str, int]] = {}
        self.count = 0
        for v in program.constants:
            self.names[v] = {"c": len(constants)}
            constants[f"c{len(constants)}"] = v.known()

    def number(self, tree: Tree) -> Any:
        """Dtypes and shapes of new arrays, which get their numbers."""
        if type(tree) in (tuple, list):
            return [self.number(x) for x in tree]
        self.names[tree] = {"x": self.count}
        self.count += 1
        return [tree.dtype.name, list(tree.shape)]

    def block(self, block: Block) -> dict[str, Any]:
        parameters = [self.number(tree) for tree in block.parameters]
        calls = []
        for call in block.calls:
            args = [self.value(a) for a in call.args]
            kwargs = {name: self.value(a) for name, a in call.kwargs.items()}
            calls.append([call.method, args, kwargs, self.number(call.results)])
        return {"parameters": parameters, "calls": calls, "result": self.value(block.result)}

    def value(self, x: Any) -> Any:
        if type(x) is Var:
            return self.names[x]
        if type(x) is Block:
            return {"body": self.block(x)}
        if type(x) is tuple:
            return {"tuple": [self.value(v) for v in x]}
        if type(x) is list:
            return [self.value(v) for v in x]
        if type(x) is dict:
            return {"dict": {name: self.value(v) for name, v in x.items()}}
        if isinstance(x, np.dtype):
            return {"dtype": x.name}
        if type(x) is float and not math.isfinite(x):
            return {"float": repr(x)}
        if type(x) is complex:
            return {"complex": [repr(x.real), repr(x.imag)]}
        return x


def text_of(data: dict[str, Any]) -> str:
    """JSON, of which each call is a line."""
    if not isinstance(data.get("calls"), list):
        items = [f"{json.dumps(k)}: {text_of(v) if isinstance(v, dict) else _inline(v)}" for k, v in data.items()]
        return "{" + ",\n".join(items) + "}"
    calls = ",\n  ".join(_inline(call) for call in data["calls"])
    rest = {k: v for k, v in data.items() if k != "calls"}
    return f'{_inline(rest)[:-1]}, "calls": [\n  {calls}]}}'


def _inline(x: Any) -> str:
    if isinstance(x, list) and any(isinstance(v, dict) and ("calls" in v or "program" in v) for v in x):
        return "[" + ",\n".join(text_of(v) if isinstance(v, dict) else _inline(v) for v in x) + "]"
    return json.dumps(x, allow_nan=False, ensure_ascii=False)


def save(program: Program, directory: Path) -> None:
    constants: dict[str, np.ndarray] = {}
    data = {"format": FORMAT, "version": VERSION, "program": encode(program, constants)}
    data["constants"] = specs_of(constants)
    save_with_arrays(directory / "program.json", data, {"constants": constants})


def save_with_arrays(file: Path, data: dict[str, Any], arrays: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write a JSON file, and its arrays to `<name>.npz`, or, if that exists, to a file of another name that the JSON
    contains. The previous arrays are removed when the new JSON file has replaced the previous one."""
    directory = file.parent
    directory.mkdir(parents=True, exist_ok=True)
    named = {key: f"{key}.npz" for key in arrays}
    if any((directory / name).exists() for name in named.values()):
        named = {key: f"{key}-{secrets.token_hex(4)}.npz" for key in arrays}
        data = {**data, "files": named}
    try:
        for key, name in named.items():
            with files.replacing(directory / name) as archive:
                write_arrays(archive, arrays[key])
        files.write(file, text_of(data).encode())
    except BaseException:
        for name in named.values():
            (directory / name).unlink(missing_ok=True)
        raise
    for path in directory.iterdir():
        if (match := _ARRAYS.fullmatch(path.name)) and match[1] in named and path.name != named[match[1]]:
            path.unlink(missing_ok=True)


def arrays_beside(file: Path, data: Mapping[str, Any], key: str) -> dict[str, np.ndarray]:
    """Return the arrays that `save_with_arrays` wrote under that name. Raises ValueError for another file's name."""
    named = data.get("files", {}).get(key, f"{key}.npz")
    match = _ARRAYS.fullmatch(named)
    if match is None or match[1] != key:
        raise ValueError(f"{named!r} is not among its {key}")
    return read_arrays(file.parent / named, data[key])


_ARRAYS = re.compile(r"(weights|constants)(?:-[0-9a-f]{8})?\.npz")


def specs_of(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[str, list[int]]]:
    return {name: (a.dtype.name, list(a.shape)) for name, a in arrays.items()}


# ---- reading -------------------------------------------------------------------------------------------------------


def read_json(file: Path, format: str, version: int) -> dict[str, Any]:
    """Read a file. Raises ValueError for another format or version, FileNotFoundError if there is none."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, a number of too many digits, lists within lists
        raise ValueError(f"{file} is not a {format}: {error}") from None
    if not isinstance(data, dict) or data.get("format") != format:
        raise ValueError(f"{file} is not a {format}")
    if data.get("version") != version:
        other = str(data.get("version"))[:80]
        raise ValueError(f"{file} is a {format} of version {other}; this tensorgraft reads {version}")
    return data


def load(directory: Path) -> Program:
    file = directory / "program.json"
    data = read_json(file, FORMAT, VERSION)
    with naming_file(file):
        return decode(data["program"], arrays_beside(file, data, "constants"))


def decode(data: Any, constants: Mapping[str, np.ndarray]) -> Program:
    """Return the program, checked call by call. Raises an exception of some kind for a broken one."""
    program = Program(_Decoder(constants).block(data))
    program.check()
    return program


class _Decoder:
    def __init__(self, constants: Mapping[str, np.ndarray]) -> None:
        self.constants = {name: Var(a.shape, a.dtype, a) for name, a in constants.items()}
        for a in constants.values():
            a.setflags(write=False)
        self.made: list[Var] = []

    def new(self, data: Any) -> Tree:
        if isinstance(data, list) and len(data) == 2 and isinstance(data[0], str):
            shape = tuple(_natural(n) for n in data[1])
            self.made.append(Var(shape, dtype_named(data[0])))
            return self.made[-1]
        return tuple(self.new(x) for x in _list(data))

    def block(self, data: Any) -> Block:
        parameters = tuple(self.new(tree) for tree in _list(data["parameters"]))
        calls = []
        for method, args, kwargs, result in _list(data["calls"]):
            if method not in OPERATIONS:
                raise ValueError(f"{method!r} is not an operation")
            if not all(isinstance(name, str) and name.isidentifier() for name in kwargs):
                raise ValueError(f"{method}: {sorted(kwargs)} are not names of arguments")
            operands = tuple(self.value(a, method) for a in _list(args))
            named = {name: self.value(a, method) for name, a in kwargs.items()}
            calls.append(Call(method, operands, named, self.new(result)))
        return Block(parameters, calls, self.value(data["result"], ""))

    def value(self, x: Any, method: str) -> Any:
        if isinstance(x, list):
            return [self.value(v, method) for v in x]
        if not isinstance(x, dict):
            return x
        ((kind, v),) = x.items()
        if kind == "x":
            return self.made[_natural(v)]
        if kind == "c":
            return self.constants[f"c{_natural(v)}"]
        if kind == "body" and method in CONTROL_FLOW:
            return self.block(v)
        if kind == "tuple":
            return tuple(self.value(a, method) for a in _list(v))
        if kind == "dict":
            return {name: self.value(a, method) for name, a in v.items()}
        if kind == "dtype":
            return dtype_named(v)
        if kind == "float":
            return float(v)
        if kind == "complex":
            return complex(*map(float, v))
        raise ValueError(f"{method}: {kind!r} is not a kind of argument")


def _list(x: Any) -> list[Any]:
    if not isinstance(x, list):
        raise ValueError(f"expected a list, got {x!r}")
    return x


def _natural(x: Any) -> int:
    if type(x) is not int or x < 0:
        raise ValueError(f"{x!r} is neither the number of an array nor an extent")
    return x
