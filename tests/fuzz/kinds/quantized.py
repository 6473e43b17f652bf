"""Quantised arrays through views, copies, writes and products, beside the dense arrays that they stand for.

The generator is that of `tests/quantization/chains.py`. The reference is the dense twin, which is rounded again after
each write into it, as the scheme rounds; `w...` are equal to the bit, products `p...` as far as sums are. "jit" has all
but the root as one function of it; "cpu" are ordinary tensors of PyTorch, "cpu compile" under `torch.compile`.
"""

from __future__ import annotations

import copy
import io
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from tests.fuzz.program import REFERENCE, Kind, Outcome, Program, Unfit
from tests.quantization import chains
from tests.quantization.chains import Seeded, made

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.quantization import Scheme

OPERAND = re.compile(r"\bw\b")
WRITABLE = ("index", "permute", "new axis", "squeeze", "unbind", "unstack", "flip", "diagonal", "chunk")


class Quantized(Kind):
    name = "quantized"
    shares: ClassVar[dict[str, int]] = {
        "numpy": 1,
        "jax": 1,
        "torch": 1,
        "tensorflow": 1,
        "cpu": 1,
        "numpy jit": 2,
        "torch jit": 4,
        "jax jit": 30,
        "tensorflow jit": 30,
        "cpu compile": 30,
    }
    length = (3, 10)
    raising = 0.0

    def reference(self, subject: str) -> str:
        return f"{REFERENCE} {subject.split()[0]}"  # on the same backend: scales are means of it

    def names(self, subject: str) -> dict[str, Any]:
        dense = subject.startswith(REFERENCE)
        backend = (subject.removeprefix(REFERENCE).split() or ["numpy"])[0]

        def root(scheme: Scheme, shape: tuple[int, ...], seed: int, front: str, dtype: str) -> Any:
            q = other(scheme, shape, seed, front, dtype)
            return tg.dequantize(q) if dense else q

        def change(root: Any, scheme: Scheme, written: Callable[[], Any]) -> None:
            written()
            if dense:
                root[...] = tg.dequantize(tg.quantize(root, scheme))

        def write(view: Any, root: Any, scheme: Scheme, value: Any) -> None:
            change(root, scheme, lambda: view.__setitem__(..., value))

        def other(scheme: Any, shape: tuple[int, ...], seed: int, front: str, dtype: str) -> Any:
            x = values(shape, seed, front, dtype)
            q = tg.quantize(x, tg.quantization.scheme.scheme_of(scheme))
            return tg.dequantize(q) if dense else q

        def values(shape: tuple[int, ...], seed: int, front: str, dtype: str = "float32") -> Any:
            array = chains.array_of(shape, seed)
            if backend == "cpu" and front == "torch":
                return torch.from_numpy(array).to(getattr(torch, dtype))
            return made(array, front, dtype, "numpy" if backend == "cpu" else backend)

        return {
            "torch": torch,
            "xp": xp,
            "Scheme": Scheme,
            "root": root,
            "write": write,
            "change": change,
            "other": other,
            "values": values,
            "slope": slope,
            "saved": saved,
            "copy": copy,
        }

    def play(self, program: Program, subject: str) -> Outcome:
        *_, way = subject.split()
        if way not in ("jit", "compile") or subject.startswith(REFERENCE) or len(program.statements) == 1:
            return super().play(program, subject)
        names, outcome = self.names(subject), Outcome()
        exec(program.statements[0], names)
        results = dict.fromkeys(re.findall(r"^[wp]\d+(?= = )", str(program), re.M))
        said = ["def program(w0):", *(f"    {text}" for text in program.statements[1:])]
        said.append(f"    return {{{', '.join(f'{r!r}: {r}' for r in results)}}}")
        exec("\n".join(said), names)
        f = names["program"]
        try:
            torch._dynamo.reset()  # beyond eight recompilations it would compile nothing
            run = torch.compile(f, backend="aot_eager") if way == "compile" and "'torch'" in str(program) else tg.jit(f)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "[^`]*`.*`: program opens a file")  # `saved` in a compiled function
                outcome.observed = self.observe({**names, **run(names["w0"])})
        except Exception as error:
            # AOTAutograd takes none of a subclass; Dynamo makes no parameter of one (docs/differences.md)
            if "aliased inputs that are mutated" in str(error) or "storage that is not resizable" in str(error):
                raise Unfit from error
            outcome.raised[0] = type(error).__name__
        return outcome

    def statement(self, rng: random.Random, names: dict[str, Any]) -> str:
        draw = Seeded(rng)
        live = [n for n in names if n[0] == "w" and n[1:].isdigit()]
        new = 1 + max((int(n[1:]) for n in names if n[0] in "wp" and n[1:].isdigit()), default=-1)
        if not live:
            front = rng.choice(["array_api", "torch"])
            scheme, shape = draw_scheme(draw)
            names["_front"], names["_dtype"], names["_writable"] = front, chains.draw_dtype(draw, front), ["w0"]
            return f"scheme = {scheme!r}; w0 = root(scheme, {shape}, {rng.randrange(1000)}, {front!r}, {names['_dtype']!r})"
        front, scheme = names["_front"], names["scheme"]
        n = rng.choice(live[-3:])
        shape = tuple(names[n].shape)
        dtype = names["_dtype"]
        tensors = front == "torch"
        kind = rng.choice(["view"] * 5 + ["copy", "copy", "write", "write"] + ["product"] * 3 + ["number", "kept"])

        def made_here(to: tuple[int, ...]) -> str:
            return f"values({to}, {rng.randrange(1000)}, {front!r}, {dtype!r})"

        if kind == "write":
            n = rng.choice(names["_writable"])
            shape = tuple(names[n].shape)
            if tensors and rng.random() < 0.5:
                written = rng.choice(INTO)
                into = made_here(rng.choice([shape, shape, shape[-1:], ()]))
                return f"change(w0, scheme, lambda: {n}.{written.format(v=into)})"
            return f"write({n}, w0, scheme, {made_here(shape)})"
        if kind == "product" and shape and scheme.activation is None:
            rows, columns = (shape[-2] if len(shape) > 1 else 1), shape[-1]
            left = made_here((*shape[:-2], 3, rows) if len(shape) > 1 else shape)
            right = made_here((*shape[:-2], columns, 3))
            forms = [
                f"{left} @ {n}",
                f"{n} @ {right}",
                f"slope(lambda x: x @ {n}, {left})",
                f"slope(lambda x: {n} @ x, {right})",
            ]
            if len(shape) > 1:
                forms += [
                    f"{made_here((rows,))} @ {n}" if len(shape) == 2 else forms[0],
                    f"{n} @ {made_here((columns,))}",
                ]
            if len(shape) == 2 and tensors:
                forms += [
                    f"torch.nn.functional.linear({made_here((2, 2, columns))}, {n}, {made_here((rows,))})",
                    f"torch.nn.functional.embedding(torch.zeros(3, dtype=torch.int64, device={n}.device), {n})"
                    if rows
                    else forms[0],
                    f"torch.addmm({made_here((3,))}, {n}, {right})",
                    f"torch.einsum('ij,bj->bi', {n}, {made_here((2, columns))})",
                    f"slope(lambda x: torch.nn.functional.linear(x, {n}), {made_here((2, columns))})",
                    f"torch.mm({left}, {n})",
                    f"torch.mv({n}, {made_here((columns,))})",
                ]
            elif len(shape) == 3 and tensors:
                forms += [
                    f"torch.bmm({n}, {right})",
                    f"torch.einsum('bij,bkj->bik', {n}, {made_here((shape[0], 2, columns))})",
                ]
            elif not tensors:
                forms += [
                    f"xp.tensordot({n}, {made_here((columns, 2))}, axes=1)",
                    f"xp.vecdot({n}, {made_here(shape)})",
                    f"xp.tensordot({made_here((2, shape[0]))}, {n}, axes=1)",
                ]
            return f"p{new} = {rng.choice(forms)}"
        if kind == "number":
            value = made_here(shape)
            forms = [
                f"{n} * 2",
                f"{n} + {value}",
                f"{value} - {n}",
                f"-{n}",
                f"{n} > 0",
                f"{n}.mT" if len(shape) > 1 else n,
                f"abs({n})",
                f"{n} == {n}",
            ]
            if tensors:
                forms += [
                    f"{n}.sum()",
                    f"{n}.double()",
                    f"torch.where({n} > 0, {n}, {value})",
                    f"slope(lambda x: x * {n}, {value})",
                    f"[{n}.tolist(), {n} * 1][1]",
                    f"torch.relu({n})",
                    f"{n}.reshape(-1).sort().values",
                    f"slope(lambda x: torch.where({n} > 0, x, {n}), {value})",
                ]
            else:
                forms += [
                    f"xp.sum({n})",
                    f"xp.where({n} > 0, {n}, {value})",
                    f"slope(lambda x: x * {n}, {value})",
                    f"xp.astype({n}, xp.float64)",
                    f"xp.sort(xp.reshape({n}, (-1,)))",
                    f"xp.maximum({n}, {value})",
                ]
            return f"p{new} = {rng.choice(forms)}"
        if kind == "kept":
            forms = [f"copy.deepcopy({n})", f"copy.copy({n})"]
            if tensors:
                forms += [
                    f"{n}.detach()",
                    f"saved({n})",
                    f"{n}.contiguous()",
                    f"{n}.clone(memory_format=torch.contiguous_format)",
                    f"{n}.to({n}.device)",
                    f"{n}.cpu().to({n}.device)",
                    f"torch.nn.Parameter({n}, requires_grad=False)",
                    f"{n}.view({n}.shape)",
                    f"{n}.view_as({n})",
                    f"{n}.T if {n}.ndim == 2 else {n}.movedim(0, -1) if {n}.ndim else {n}",
                ]
            else:
                forms += [
                    f"{n}.T if {n}.ndim == 2 else {n}",
                    f"xp.moveaxis({n}, 0, -1) if {n}.ndim else {n}",
                    f"{n}.to_device({n}.device)",
                ]
            return f"w{new} = {rng.choice(forms)}"
        if kind == "copy" and shape and 0 not in shape and np.prod(shape) < 300:
            _, text = chains.draw_copy(draw, shape, scheme, front, names["_dtype"])
        else:
            how, text = chains.draw_view(draw, shape, front)
            if n in names["_writable"] and how in WRITABLE:
                names["_writable"].append(f"w{new}")
        return f"w{new} = {OPERAND.sub(n, text)}"

    def observe(self, names: dict[str, Any]) -> dict[str, Any]:
        return {
            n: (str(x.dtype), tuple(x.shape), chains.numbers(x))
            for n, x in names.items()
            if n[0] in "wp" and n[1:].isdigit()
        }

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        if found.raised.get(0) in ("TracedValueError", "ShapeError") and subject.endswith("jit"):
            return "values that decide"
        if re.search("encoding='u?int1'", program.statements[0]) and not self.differences(
            expected, found, program, 1e-6
        ):
            return "scales of one bit are means, and sums are rounded"
        return None

    def differences(self, expected: Outcome, found: Outcome, program: Program, means: float = 0) -> list[str]:
        if 0 in found.raised and not found.observed:  # of a whole program
            return [] if expected.raised else [f"{found.raised[0]}, expected none"]
        lines = [
            f"statement {i}: {found.raised.get(i, 'no exception')}, expected {expected.raised.get(i, 'none')}"
            for i in sorted(expected.raised | found.raised)
            if expected.raised.get(i) != found.raised.get(i)
        ]
        for n, (dtype, shape, values) in expected.observed.items():
            if n not in found.observed:
                lines.append(f"{n}: missing")
                continue
            ours = found.observed[n]
            off = means if n[0] == "w" else OFF.get(dtype.split(".")[-1], 1e-5)
            if ours[:2] != (dtype, shape):
                lines.append(f"{n}: {ours[:2]}, expected {(dtype, shape)}")
            elif not np.allclose(ours[2], values, off, off * max(1, np.abs(values).max(initial=0)), equal_nan=True):
                lines.append(f"{n}: {ours[2].ravel()[:4]}, expected {values.ravel()[:4]}")
        return lines


OFF = {"bfloat16": 2e-2, "float16": 2e-3}  # of products
INTO = ["mul_(2)", "copy_({v})", "fill_(0.5)", "add_({v})", "zero_()", "neg_()", "sub_({v}, alpha=2)", "clamp_(-1, 1)", "relu_()", "div_(2)", "masked_fill_({v} > 0, 1)", "abs_()"]  # fmt: skip
TABLES = [(-1.0, 0.0, 1.0), (-1.0, -0.5, 0.25, 2.0), (0.0, 1.0)]


def draw_scheme(draw: Seeded) -> tuple[Scheme, tuple[int, ...]]:
    """As chains have it, also of small floats, tables, zero points that are numbers, and rounded activations."""
    scheme, shape = chains.draw_scheme(draw)
    kind = draw.integer(0, 9)
    if kind == 0:
        return replace(scheme, encoding=draw.one(["float6_e3m2", "float6_e2m3", "float4_e2m1"]), symmetric=True), shape
    if kind == 1:
        return replace(scheme, encoding="table", symmetric=True, table=draw.one(TABLES)), shape
    if kind == 2 and not scheme.symmetric:
        return replace(scheme, offset=True), shape
    if kind == 3 and scheme.granularity in ("tensor", "channel"):
        return replace(scheme, encoding="int8", symmetric=True, activation="int8"), shape
    return scheme, shape


def slope(f: Callable[[Any], Any], x: Any) -> Any:
    """Of the sum of the squares of f(x)."""
    if isinstance(x, torch.Tensor):
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad((f(x) ** 2).sum(), x)
        return found
    return tg.grad(lambda x: xp.sum(f(x) ** 2))(x)


def saved(x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


KIND = Quantized()
