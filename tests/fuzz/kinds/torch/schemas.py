"""Calls of PyTorch's operators, drawn by their schemas: an argument by its type and name, on the values that there are."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tensorgraft.frontends.torch.core.operator import OUT_OF_BOUNDS

Tensor = torch.Tensor

# a part of a name between underscores, a name, or one with its overload -> why it is not drawn
_WHY = {
    "unspecified values": "empty resize new_empty resize_as_",
    "internal": "powsum stats backward native slow thnn convolution batch_norm_ wrapper conv_tbc int_repr alias_copy lift glu_jvp log_sigmoid_forward",
    "layouts": "sparse coo csr csc bsr bsc mkldnn nested padded smm hspmm sspaddmm crow ccol col row values indices coalesce "
    "to_dense dense_dim sparse_dim to_padded_tensor to_mkldnn",
    "dtypes": "quantize quantized fake dequantize q qscheme chalf choose segment_reduce histogramdd dequantize_self",
    "devices": "cudnn miopen cuda fbgemm pin fused cpu record_stream",
    "named tensors": "rename names align refine",
    "random": "dropout rrelu lobpcg lowrank bernoulli multinomial poisson binomial normal fractional",
    "drawn as modules": "lstm gru rnn layer_norm_cell",
    "signs, phases and orders are open": "eig eigh svd eigvals lstsq geqrf orgqr ormqr householder ldl qr",
    "drawn elsewhere": "linspace logspace set_ set data as_strided requires retain detach",
    "nothing to compare": "_assert gradient is_set_to",
    "wrong on the CPU": "matrix_exp",
    # where `out` is what it reads; where pivots are none (it reads beside them)
    "PyTorch crashes": "_foreach_copy linalg_eigvalsh.out lu_unpack",
    "on the CPU no version says that it has written": "kron.out",
    "open": "mode embedding_bag unique grid bucketize searchsorted",
    "lengths": "ctc_loss stft istft",
}
LEFT_OUT = {part: why for why, parts in _WHY.items() for part in parts.split()}
# what `dim` says nothing about is that elements differ: of equal ones any may be taken
TIES = ("topk", "kthvalue", "sort", "argsort", "median", "nanmedian", "msort", "aminmax", "quantile", "nanquantile",
    "max_pool", "adaptive_max", "fractional")  # fmt: skip
LIMITED = ("Tensor", "int", "bool", "number", "float", "str", "List[int]", "List[Tensor]", "List[Optional[Tensor]]",
    "List[float]", "List[number]")  # fmt: skip
DTYPES = ("float32",) * 10 + ("float64", "float64", "float16", "bfloat16", "bfloat16", "int64", "int64", "int32", "int16",
    "int8", "uint8", "bool", "bool", "complex64", "complex64", "complex128")  # fmt: skip
SCALARS = ("0", "1", "2", "-1", "3", "0.5", "-1.5", "2.0", "0.25", "True", "1e-3", "2.5", "-2", "1.0")
FLOATS = ("0.1", "0.5", "1.0", "1e-5", "2.0", "0.01", "-0.5", "3.0")
STRINGS = {
    "reduce": ("sum", "mean", "amax", "amin", "prod"), "rounding_mode": ("floor", "trunc"),
    "interpolation": ("linear", "lower", "higher", "midpoint", "nearest"), "indexing": ("ij", "xy"),
    "norm": ("forward", "backward", "ortho"), "approximate": ("none", "tanh"), "UPLO": ("L", "U"),
    "side": ("left", "right"), "padding": ("same", "valid"), "ord": ("fro", "nuc"), "driver": ("gels", "gelsd"),
    "mode": ("constant", "reflect", "replicate", "circular"), "equation": ("ij,jk->ik", "ij->ji", "i,i", "...i->...", "ij->j"),
}  # fmt: skip


@dataclass(frozen=True)
class Operator:
    name: str  # as PyTorch's namespaces have it: add, add_, linalg_inv
    overload: str
    arguments: tuple[tuple[str, str, bool, bool], ...]  # (name, type, by keyword alone, has a default)
    outs: tuple[str, ...]
    writes: bool  # its first argument
    prefix: str  # how a program calls it


@functools.cache
def operators() -> dict[str, list[Operator]]:
    """By name, those that are drawn."""
    found: dict[str, list[Operator]] = {}
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        name = schema.name[6:]
        made = _operator(name, schema)
        if made is not None:
            found.setdefault(name, []).append(made)
    for overloads in found.values():
        overloads.sort(key=lambda op: op.overload)
    return dict(sorted(found.items()))


def _operator(name: str, schema: Any) -> Operator | None:
    said = f"{name}.{schema.overload_name}"
    if said in OUT_OF_BOUNDS or said in LEFT_OUT or schema.overload_name.startswith("prim_"):  # TorchScript's
        return None
    if (
        name in LEFT_OUT
        or not LEFT_OUT.keys().isdisjoint(name.split("_"))
        or (name.startswith("_") and not name.startswith("_foreach"))
    ):
        return None
    returns = [str(r.type) for r in schema.returns]
    if any(t not in ("Tensor", "List[Tensor]") for t in returns):
        return None
    outs, arguments = [], []
    for a in schema.arguments:
        kind = str(a.type)
        if a.is_out:
            outs.append(a.name)
        elif a.name not in ("device", "layout", "pin_memory", "generator", "names", "dimname"):
            arguments.append((a.name, kind, a.kwarg_only, a.has_default_value()))
            plain = kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional") else kind
            if plain not in LIMITED and not a.has_default_value():
                return None
        elif a.name == "generator":
            return None
    if not arguments or arguments[0][1] not in ("Tensor", "List[Tensor]", "Optional[Tensor]"):
        return None
    try:
        overload = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")
    except AttributeError:
        return None
    if torch.Tag.nondeterministic_seeded in overload.tags or torch.Tag.generated in overload.tags:
        return None  # random; or made for PyTorch itself alone
    writes = name.endswith("_") and not outs and not name.endswith("__")
    prefix = f"torch.ops.aten.{name}.{schema.overload_name or 'default'}"
    return Operator(name, schema.overload_name, tuple(arguments), tuple(outs), writes, prefix)


class Pool:
    """The tensors of a program, as expressions."""

    def __init__(self, rng: random.Random, tensors: dict[str, Tensor]) -> None:
        self.rng, self.tensors = rng, tensors
        self.names = list(tensors)

    def any(self) -> str:
        """One of those that there are; rather a late one."""
        i = max(self.rng.randrange(len(self.names)), self.rng.randrange(len(self.names)))
        return self.names[i]

    def floating(self) -> str | None:
        those = [n for n in self.names if self.tensors[n].is_floating_point()]
        return self.rng.choice(those) if those else None

    def seed(self) -> int:
        return self.rng.randrange(1, 100)

    def dtype(self, but: str = "") -> str:
        chosen = self.rng.choice(DTYPES)
        return chosen if chosen != but else "int8"

    def fresh(self, shape: Any, dtype: str | None = None) -> str:
        seed = self.seed()
        if seed % 16 == 0 and self.rng.random() < 0.7:  # special values seldom
            seed += 1
        layout = self.rng.choice("cccctsleo")
        said = f"T({tuple(shape)}, torch.{dtype or self.dtype()}, {seed}"
        return said + (f", {layout!r})" if layout != "c" else ")")

    def beside(self, name: str) -> str:
        """An operand for another one: often one that broadcasts with it, of its dtype."""
        t, rng = self.tensors[name], self.rng
        if rng.random() < 0.4:
            those = [n for n in self.names if _broadcast(self.tensors[n].shape, t.shape)]
            if those:
                return rng.choice(those)
        if rng.random() < 0.1:
            return self.any()
        shape = [1 if rng.random() < 0.15 else n for n in t.shape]
        if rng.random() < 0.2:
            shape = shape[rng.randrange(len(shape) + 1) :]
        dtype = str(t.dtype)[6:] if rng.random() < 0.7 else None
        return self.fresh(shape, dtype)

    def shape(self, most: int = 4) -> tuple[int, ...]:
        rng = self.rng
        return tuple(
            [rng.choice((1, 2, 2, 3, 3, 4, 5, 0 if rng.random() < 0.3 else 2)) for _ in range(rng.randint(0, most))]
        )


def _broadcast(a: Any, b: Any) -> bool:
    return all(m == n or m == 1 or n == 1 for m, n in zip(reversed(a), reversed(b), strict=False))


def call(op: Operator, pool: Pool, this: str) -> str:
    """A call of an operator whose first tensor is `this`."""
    rng, t = pool.rng, pool.tensors.get(this)
    positional: list[str] = []
    keywords: list[str] = []
    named = False
    for i, (name, kind, by_keyword, has_default) in enumerate(op.arguments):
        if has_default and (rng.random() < 0.5 or kind in ("Optional[Generator]", "Storage")):
            named = True
            continue
        if i == 0:
            text = this if kind != "List[Tensor]" else _several(pool, this)
        else:
            text = argument(name, kind, pool, this, t)
        if by_keyword or named:
            keywords.append(f"{name}={text}")
        else:
            positional.append(text)
    for out in op.outs:
        keywords.append(f"{out}={_out(pool, this)}")
    return _said(op, positional, keywords, rng)


def _said(op: Operator, positional: list[str], keywords: list[str], rng: random.Random) -> str:
    name, way = op.name, rng.random()
    if not op.outs and way < 0.4 and op.arguments[0][1] == "Tensor" and hasattr(Tensor, name):
        first, *positional = positional
        return f"{first}.{name}({', '.join(positional + keywords)})"
    if way < 0.8 and (hasattr(torch, name) or hasattr(torch._C._nn, name)):
        keywords = keywords if len(op.outs) < 2 else _as_tuple(op.outs, keywords)
        if len(op.outs) == 1:
            keywords = [
                k.replace(f"{op.outs[0]}=", "out=", 1) if k.startswith(f"{op.outs[0]}=") else k for k in keywords
            ]
        where = "torch" if hasattr(torch, name) else "torch._C._nn"
        return f"{where}.{name}({', '.join(positional + keywords)})"
    return f"{op.prefix}({', '.join(positional + keywords)})"


def _as_tuple(outs: tuple[str, ...], keywords: list[str]) -> list[str]:
    those = [k.partition("=")[2] for k in keywords if k.partition("=")[0] in outs]
    return [k for k in keywords if k.partition("=")[0] not in outs] + [f"out=({', '.join(those)})"]


def _out(pool: Pool, this: str) -> str:
    rng = pool.rng
    way = rng.random()
    if way < 0.3:
        return pool.any()
    dtype = (
        str(pool.tensors[this].dtype)[6:] if rng.random() < 0.7 else rng.choice(("int64", "bool", "float32", "float64"))
    )
    if way < 0.5:
        return f"T((0,), torch.{dtype})"
    shape = pool.tensors[this].shape if rng.random() < 0.7 else pool.tensors[pool.any()].shape
    return pool.fresh(shape, dtype)


def _several(pool: Pool, this: str) -> str:
    return f"[{', '.join([this, *(pool.beside(this) for _ in range(pool.rng.randint(0, 2)))])}]"


def argument(name: str, kind: str, pool: Pool, this: str, t: Tensor | None) -> str:
    rng = pool.rng
    rank = t.ndim if t is not None else 2
    if kind.startswith("Optional["):
        if rng.random() < 0.25:
            return "None"
        kind = kind[9:-1]
    if name == "dtype" and (t is None or t.dtype is torch.bool):  # bytes that are no truths are in no bool
        return "torch.bool"
    if name in ("dtype", "out_dtype"):
        return f"torch.{pool.dtype()}"
    if name == "memory_format":
        return rng.choice(("torch.contiguous_format", "torch.preserve_format", "torch.channels_last"))
    if kind == "Tensor":
        return _tensor(name, pool, this) + (".cpu()" if name == "scalars" else "")  # of lists: never on a device
    if kind == "List[Tensor]":
        return _several(pool, this)
    if kind == "List[Optional[Tensor]]":
        n = t.shape[0] if t is not None and rank else 1
        return rng.choice(
            (f"[I((2,), {n}, {pool.seed()})]", f"[None, I((3,), 2, {pool.seed()})]", f"[{pool.any()} > 0]")
        )
    if kind == "bool":
        chosen = rng.choice(("True", "False"))
        return "False" if name == "sparse_grad" else chosen  # a layout
    if kind == "int":
        return _int(name, rank, rng)
    if kind == "number":
        return rng.choice(SCALARS)
    if kind == "float":
        return rng.choice(("1e-5", "1e-3", "0.1")) if name == "eps" else rng.choice(FLOATS)
    if kind == "str":
        return repr(rng.choice(STRINGS.get(name, ("sum",))))
    if kind == "List[int]":
        return _ints(name, rank, t, rng)
    if kind in ("List[float]", "List[number]"):
        return f"[{', '.join(rng.choice(FLOATS) for _ in range(rng.randint(1, 3)))}]"
    raise NotImplementedError(kind)


def _tensor(name: str, pool: Pool, this: str) -> str:
    rng, t = pool.rng, pool.tensors[this]
    if name in ("index", "indices", "target", "repeats", "indices_or_sections") and rng.random() < 0.85:
        n = rng.choice([*t.shape, 2]) if t.ndim else 1
        shape = [min(n, rng.choice((n, 2))) for n in t.shape] if rng.random() < 0.6 else [rng.randint(1, 3)]
        return f"I({tuple(shape)}, {n}, {pool.seed()})"
    if name in ("mask", "condition") and rng.random() < 0.8:
        return pool.fresh(t.shape if rng.random() < 0.7 else t.shape[1:], "bool")
    if name in ("mat2", "other", "vec2", "mat1", "batch2", "vec", "B", "tensor2") and t.ndim and rng.random() < 0.25:
        n = t.shape[-1]
        shape = rng.choice(((n,), (n, 2), (*t.shape[:-2], n, 3)))
        return pool.fresh(shape, str(t.dtype)[6:])
    return pool.beside(this)


def _int(name: str, rank: int, rng: random.Random) -> str:
    if "dim" in name or name == "axis":
        return str(rng.randint(-rank, rank - 1) if rank else rng.choice((0, -1)))
    if name == "reduction":
        return str(rng.randrange(3))
    return str(rng.choice((0, 1, 1, 2, 2, 3, -1)))


def _ints(name: str, rank: int, t: Tensor | None, rng: random.Random) -> str:
    if "dim" in name or name in ("axes", "axis"):
        dims = list(range(rank))
        rng.shuffle(dims)
        if name != "dims" or rng.random() < 0.3:
            dims = dims[: rng.randint(0, rank)]
        return str([d - rank if rng.random() < 0.2 else d for d in dims])
    if name in ("size", "shape", "repeats", "sizes") and t is not None:
        return str(rng.choice(([*t.shape], [-1], [2, *t.shape], [*t.shape[1:], *t.shape[:1]], [t.numel()], [1, -1])))
    if name in ("split_sizes", "sizes") and t is not None and rank:
        n = rng.randint(0, t.shape[0])
        return str([n, t.shape[0] - n])
    count = rng.choice((1, 2, max(rank - 2, 1), rank))
    low = 0 if name in ("padding", "output_padding") else 1
    return str([rng.randint(low, 3) if rng.random() < 0.9 else -1 for _ in range(count)])


def drawn(rng: random.Random, keep: Callable[[Operator], bool]) -> Iterator[Operator]:
    """Operators for ever: each name as often as the others."""
    table, names = operators(), list(operators())
    while True:
        those = [op for op in table[rng.choice(names)] if keep(op)]
        if those:
            yield rng.choice(those)
