"""What strangers do to files: bytes, zip archives, headers in JSON, pickles, protocol buffers.

Every mutation is a function of a `random.Random` and of bytes. Those of a structure fall back on bytes where a file,
which may have been changed before, no longer has it.
"""

from __future__ import annotations

import copy
import functools
import io
import json
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

Mutation = Callable[[Random, bytes], bytes]

LENGTHS = (0, 1, 2, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
NAMES = (
    "/etc/passwd",
    "../outside",
    "../../../../../tmp/outside",
    "a/../../outside",
    "C:\\outside",
    "",
    ".",
    "..",
    "\0",
    "x" * 300,
)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def flip_bits(rng: Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def cut_out(rng: Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 4, 8, rng.randrange(len(data) + 1))) :]


def splice(rng: Random, data: bytes) -> bytes:
    """A piece of the file again, elsewhere."""
    start, size, at = rng.randrange(len(data) + 1), rng.choice((1, 4, 16, 64, 256)), rng.randrange(len(data) + 1)
    piece = data[start : start + size]
    return data[:at] + piece + data[at + (len(piece) if rng.random() < 0.5 else 0) :]


def noise(rng: Random, data: bytes) -> bytes:
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 32))
    return data[:at] + rng.randbytes(size) + data[at + size :]


def length_field(rng: Random, data: bytes) -> bytes:
    """An integer of 1 to 8 bytes somewhere, as a length or an offset is written."""
    size = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(1, len(data) - size))
    value = rng.choice(LENGTHS) & (2 ** (8 * size) - 1)
    return data[:at] + value.to_bytes(size, rng.choice(("little", "little", "big"))) + data[at + size :]


def grow(rng: Random, data: bytes) -> bytes:
    return data + (bytes(rng.choice((1, 64, 4096))) if rng.random() < 0.5 else data)


BYTES: tuple[Mutation, ...] = (flip_bits, flip_bits, truncate, cut_out, splice, noise, length_field, length_field, grow)


def of_bytes(rng: Random, data: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(BYTES)(rng, data)
    return data


# ---- JSON ------------------------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 10**30, 1e308, -0.5, "", "x", "float32", "int8", "F64",
    "BOOL", "__class__", "../../outside", "/etc/passwd", "os.system", [], {}, [[]], [1, 2], {"x": 0}, {"c": 0},
    {"dtype": "float64"},
    {"tuple": []}, {"float": "nan"}, {"body": {}}, "inf", "graft:77", "cuda:0", "cpu", "meta",
)  # fmt: skip


_DEEP = "lists in lists, deeper than Python reads them"


def _places(tree: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        found.append((tree, key))
        _places(value, found)
    return found


def edit_json(rng: Random, tree: Any) -> Any:
    """A value in it is another one, gone, twice there, elsewhere, deep within lists or larger than all memory."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = _places(tree, [])
        if not places:
            return copy.deepcopy(rng.choice(VALUES))
        holder, key = rng.choice(places)
        before = holder[key]
        kind = rng.randrange(10)
        if kind < 3:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 3 and isinstance(before, int):
            holder[key] = rng.choice((before + 1, before - 1, -before, before * 2**40, before * 10**20, float(before)))
        elif kind == 4:
            del holder[key]
        elif kind == 5:
            other, place = rng.choice(places)
            try:
                holder[key] = json.loads(json.dumps(other[place]))
            except (IndexError, KeyError):
                holder[key] = 0
        elif kind == 6:
            holder[key] = rng.choice(([before], [[[before]]], _DEEP))
        elif kind == 7 and isinstance(holder, dict):
            holder[rng.choice((*NAMES, "shape", "x", "calls"))] = holder.pop(key)
        elif kind == 8 and isinstance(before, list):
            holder[key] = before * rng.choice((2, 3, 50))
        elif kind == 9 and isinstance(before, str):
            holder[key] = rng.choice((before + "x", before[:-1], before.upper(), before * 100))
        else:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
    return tree


def _dumped(tree: Any) -> bytes:
    return json.dumps(tree).encode().replace(b'"%s"' % _DEEP.encode(), b"[" * 3000 + b"]" * 3000)


def of_json(rng: Random, data: bytes) -> bytes:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return of_bytes(rng, data)
    text = _dumped(edit_json(rng, tree))
    if rng.random() < 0.02:
        text = text.replace(b"1", b"9" * 5000, 1)
    return text if rng.random() < 0.9 else of_bytes(rng, text)


def with_texts(rng: Random, data: bytes, texts: tuple[str, ...]) -> bytes:
    """Some of the texts in a JSON object are others, or lists of texts have one more."""
    tree = json.loads(data)
    places = _places(tree, [])
    lists = [x for x in (holder[key] for holder, key in places) if isinstance(x, list)]
    lists = [x for x in lists if all(isinstance(v, str) for v in x)]
    if lists and rng.random() < 0.3:
        rng.choice(lists).append(rng.choice(texts))
        return json.dumps(tree).encode()
    places = [(holder, key) for holder, key in places if isinstance(holder[key], str)]
    for holder, key in rng.sample(places, min(len(places), rng.choice((1, 1, 2, 5, 20)))):
        holder[key] = rng.choice(texts)
    return json.dumps(tree).encode()


# ---- safetensors -----------------------------------------------------------------------------------------------------


def of_safetensors(rng: Random, data: bytes) -> bytes:
    """The header, a JSON object after its length of eight bytes, says other things of the data."""
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size])
        rows = [row for name, row in header.items() if name != "__metadata__"]
        for _ in range(rng.choice((1, 1, 2))):
            row, kind = rng.choice(rows), rng.randrange(7)
            if kind == 0:
                row["shape"][rng.randrange(len(row["shape"]))] = rng.choice((0, -1, 2**31, 2**62, 2**64, 10**30, 1.5))
            elif kind == 1:
                row["data_offsets"][rng.randrange(2)] = rng.choice((0, -1, -8, 2**31, 2**63, 2**64, 10**30, len(data)))
            elif kind == 2:
                row["data_offsets"] = list(rng.choice(rows)["data_offsets"])
            elif kind == 3:
                row["dtype"] = rng.choice(
                    ("F64", "U8", "I64", "BF16", "F8_E4M3", "F4", "F6_E2M3", "C64", "f32", "", "BOOL")
                )
            elif kind == 4:
                row["shape"] = [*row["shape"], rng.choice((1, 2, 0, 2**33))]
            elif kind == 5:
                row["data_offsets"].reverse()
            else:
                header = edit_json(rng, header)
                break
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return of_bytes(rng, data)
    text = _dumped(header)
    told = len(text) if rng.random() < 0.9 else rng.choice(LENGTHS)
    return told.to_bytes(8, "little") + text + data[8 + size :]


# ---- zip -------------------------------------------------------------------------------------------------------------


def _members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _archive(members: list[tuple[str, bytes, bool]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content, deflated in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
            archive.writestr(info, content)
    return out.getvalue()


_ZEROS = 1 << 27


@functools.cache
def _zeros() -> bytes:
    packing = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b"".join(packing.compress(bytes(1 << 20)) for _ in range(_ZEROS >> 20)) + packing.flush()


def _bomb(rng: Random, data: bytes) -> bytes:
    """A member of 128 MiB to 4 GiB: zeros that the file has in few bytes, or only said."""
    members = _members(data)
    name = rng.choice([*members])
    if rng.random() < 0.5:
        packed = _zeros()
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for other, content in members.items():
                if other != name:
                    archive.writestr(other, content)
        rest = out.getvalue()
        return _with_member(rest, name, packed, rng.choice((_ZEROS, _ZEROS, 1 << 30, (1 << 32) - 2)), 8)
    return _with_member(_archive([(n, c, False) for n, c in members.items() if n != name]), name, members[name],
                        rng.choice((1 << 26, 1 << 30, (1 << 32) - 2)), 0)  # fmt: skip


def _with_member(archive: bytes, name: str, content: bytes, told: int, method: int) -> bytes:
    """The archive with another member at its front, whose size is what it is told to be."""
    end = archive.rindex(b"PK\x05\x06")
    count, size, start = struct.unpack("<HLL", archive[end + 10 : end + 20])
    known, crc = name.encode(), zlib.crc32(content)
    packed = len(content) if method else told
    fields = struct.pack("<HHHHLLLHH", 20, 0, method, 0, 33, crc, packed, told, len(known), 0)
    local = b"PK\x03\x04" + fields + known + content
    central = b"PK\x01\x02\x14\x00" + fields + struct.pack("<HHHLL", 0, 0, 0, 0, start) + known
    body = archive[:start] + local
    index = archive[start : start + size] + central
    tail = b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, count + 1, count + 1, len(index), len(body), 0)
    return body + index + tail


def of_zip(inner: Callable[[str], Mutation]) -> Mutation:
    """Members are changed by `inner(name)`, renamed, gone, twice there, compressed, or bombs."""

    def mutate(rng: Random, data: bytes) -> bytes:
        try:
            kind = rng.randrange(12)
            if kind < 2:
                return _bomb(rng, data)
            members = [(name, content, False) for name, content in _members(data).items()]
            k = rng.randrange(len(members))
            name, content, _ = members[k]
            if kind < 8:
                members[k] = name, inner(name)(rng, content), False
            elif kind == 8:
                members[k] = rng.choice((*NAMES[:6], f"/{name}", f"../{name}", name.upper())), content, False
            elif kind == 9:
                del members[k]
            elif kind == 10:
                members.append((name, inner(name)(rng, content), False))
            else:
                members[k] = name, content, True
            return _archive(members)
        except (zipfile.BadZipFile, ValueError, IndexError, struct.error, EOFError, NotImplementedError, zlib.error,
                OverflowError, RuntimeError, UnicodeError, KeyError):  # fmt: skip
            return of_bytes(rng, data)

    return mutate


_END = 22  # bytes of what an archive ends with


def of_archives(inner: Mutation) -> Mutation:
    """Of archives that follow each other in a file one is changed; the ones after it stay where they are, or move."""

    def mutate(rng: Random, data: bytes) -> bytes:
        ends = [match.start() + _END for match in re.finditer(b"PK\x05\x06", data)]
        k = rng.randrange(len(ends)) if ends else 0
        start, end = (ends[k - 1] if k else 0), (ends[k] if ends else len(data))
        new = inner(rng, data[start:end])
        if rng.random() < 0.7:
            new = new[: end - start].ljust(end - start, b"\0")
        return data[:start] + new + data[end:]

    return mutate


def of_npy(rng: Random, data: bytes) -> bytes:
    """The header of an array says another shape or dtype."""
    end = data.find(b"}")
    if end < 0 or rng.random() < 0.3:
        return of_bytes(rng, data)
    text = data[10 : end + 1].decode("latin1")
    key = rng.choice(("shape", "descr", "fortran_order", "all"))
    huge = rng.choice(("(1000000000000,)", "(2, -3)", "(1, 1e9)", "(10**9, 10**9)", "()", "(0,)", "'x'"))
    new = {
        "shape": "{'descr': '<f4', 'fortran_order': False, 'shape': " + huge + "}",
        "descr": text.replace(
            "<f4", rng.choice(("|O", "<f8", "|S999999999", "<M8[ns]", ">f4", "<U4", "[('a','<f4')]"))
        ),
        "fortran_order": text.replace("False", rng.choice(("True", "1", "__import__('os')"))),
        "all": rng.choice(("{}", "[" * 2000, "{'descr': __import__('os').system('x')}", "9" * 5000)),
    }[key].encode("latin1")
    length = len(new) if rng.random() < 0.8 else rng.randrange(65536)
    return data[:8] + length.to_bytes(2, "little") + new + data[end + 1 :]


# ---- pickles ---------------------------------------------------------------------------------------------------------

_CALLED = (
    ("os", "system"), ("builtins", "exec"), ("builtins", "eval"), ("subprocess", "Popen"),
    ("tests.hostile.canary", "touched"),
    ("hostile_canary", "run"), ("builtins", "open"), ("torch", "load"), ("torch.hub", "load"), ("builtins", "getattr"),
    ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter"), ("collections", "OrderedDict"),
    ("tensorgraft.frontends.torch.quantized.files", "rebuild"), ("tensorgraft.files", "write"), ("torch", "device"),
)  # fmt: skip
_ARGUMENTS: tuple[Any, ...] = (
    ("touch /tmp/hostile",), ("import hostile_canary",), ("/tmp/hostile-written", "wb"), (), (1,), ([],), (2**40,),
    ("graft:77",), ({},),
)  # fmt: skip


def _call(rng: Random) -> bytes:
    """A global and its call, as a pickle does them."""
    module, name = rng.choice(_CALLED)
    arguments = pickle.dumps(rng.choice(_ARGUMENTS), 2)[2:-1]
    how = rng.choice((b"R", b"R", b"\x81", b"b"))
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n" + arguments + how


# lists in lists, more memory than there is, another protocol, objects that are elsewhere
_WANTING = (
    b"]" * 3000, b"(" * 100000, b"\x8b" + b"\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 7 + b"\x7f",
    b"\x8a\xff" + b"\xff" * 255, b"X" + b"\xff\xff\xff\x7f", b"r\xff\xff\xff\x7f", b"j\xff\xff\xff\x7f", b"Q",
    b"i__builtin__\neval\n",
    b"\x82\x01", b"\x95" + b"\xff" * 8,
)  # fmt: skip


def of_pickle(rng: Random, data: bytes) -> bytes:
    kind = rng.randrange(8)
    head = data[:2] if data[:1] == b"\x80" else b""
    if kind == 0:
        return head + _call(rng) + b"."
    if kind == 1:
        at = rng.randrange(2, len(data) + 1) if len(data) > 2 else 0
        return data[:at] + _call(rng) + data[at:]
    if kind == 2:
        return head + rng.choice(_WANTING) + data[2:]
    if kind == 3:  # numbers within: sizes, strides and offsets of tensors
        places = [i for i, byte in enumerate(data) if byte in b"KMJ"]
        if places:
            at = rng.choice(places)
            number = rng.choice(
                (
                    b"J\xff\xff\xff\x7f",
                    b"J\x00\x00\x00\x80",
                    b"\x8a\x08" + b"\xff" * 7 + b"\x7f",
                    b"K\x00",
                    b"N",
                    b"\x88",
                )
            )
            size = {ord("K"): 2, ord("M"): 3, ord("J"): 5}[data[at]]
            return data[:at] + number + data[at + size :]
    if kind == 4:
        return data.replace(
            b"FloatStorage", rng.choice((b"DoubleStorage", b"Module", b"os", b"QInt8Storage", b"BoolStorage")), 1
        )
    if kind == 5:
        return data.replace(b"cpu", rng.choice((b"cuda:0", b"graft:77", b"meta", b"../../x", b"")), 1)
    return of_bytes(rng, data)


# ---- protocol buffers ------------------------------------------------------------------------------------------------


def of_protobuf(rng: Random, data: bytes) -> bytes:
    """Names of operations and attributes are others of the same length, so that the message can still be read."""
    if rng.random() < 0.5:
        return of_bytes(rng, data)
    names = (b"MatMul", b"AddV2", b"Relu", b"Const", b"Identity", b"ReadFile", b"PyFunc", b"shape", b"dtype", b"serve")
    old, new = rng.choice(names), rng.choice(names)
    return data.replace(old, new[: len(old)].ljust(len(old), b"X"), rng.choice((1, 3)))
