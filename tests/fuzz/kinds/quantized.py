"""Quantised arrays through views, copies, writes and products, beside the dense arrays that they stand for.

The generator is that of `tests/quantization/chains.py`. The reference is the dense twin, which is rounded again after
each write into it, as the scheme rounds; `w...` are equal to the bit, products `p...` as far as sums are.
"""

from __future__ import annotations

import random
import re
from typing import Any, ClassVar

import numpy as np
import torch
from tests.fuzz.program import REFERENCE, Kind, Outcome, Program
from tests.quantization import chains
from tests.quantization.chains import Seeded, made, other_dense, other_quantised

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.quantization import Scheme

OPERAND = re.compile(r"\bw\b")
WRITABLE = ("index", "permute", "new axis", "squeeze", "unbind", "unstack", "flip", "diagonal", "chunk")


class Quantized(Kind):
    name = "quantized"
    shares: ClassVar[dict[str, int]] = {"numpy": 1, "jax": 1, "torch": 1, "tensorflow": 1}
    length = (3, 10)
    raising = 0.0

    def reference(self, subject: str) -> str:
        return f"{REFERENCE} {subject}"  # on the same backend: scales are means of it

    def names(self, subject: str) -> dict[str, Any]:
        dense = subject.startswith(REFERENCE)
        backend = subject.removeprefix(REFERENCE).strip() or "numpy"

        def root(scheme: Scheme, shape: tuple[int, ...], seed: int, front: str, dtype: str) -> Any:
            q = other_quantised(scheme, shape, seed, front, dtype, backend)
            return tg.dequantize(q) if dense else q

        def write(view: Any, root: Any, scheme: Scheme, value: Any) -> None:
            view[...] = value
            if dense:
                root[...] = tg.dequantize(tg.quantize(root, scheme))

        def other(*args: Any) -> Any:
            return other_dense(*args, backend) if dense else other_quantised(*args, backend)

        def values(shape: tuple[int, ...], seed: int, front: str) -> Any:
            return made(chains.array_of(shape, seed), front, "float32", backend)

        return {
            "torch": torch,
            "xp": xp,
            "Scheme": Scheme,
            "root": root,
            "write": write,
            "other": other,
            "values": values,
        }

    def statement(self, rng: random.Random, names: dict[str, Any]) -> str:
        draw = Seeded(rng)
        live = [n for n in names if n[0] == "w" and n[1:].isdigit()]
        new = 1 + max((int(n[1:]) for n in names if n[0] in "wp" and n[1:].isdigit()), default=-1)
        if not live:
            front = rng.choice(["array_api", "torch"])
            scheme, shape = chains.draw_scheme(draw)
            names["_front"], names["_dtype"], names["_writable"] = front, chains.draw_dtype(draw, front), ["w0"]
            return f"scheme = {scheme!r}; w0 = root(scheme, {shape}, {rng.randrange(1000)}, {front!r}, {names['_dtype']!r})"
        front, scheme = names["_front"], names["scheme"]
        n = rng.choice(live[-3:])
        shape = tuple(names[n].shape)
        kind = rng.choice(["view"] * 5 + ["copy", "copy", "write", "write", "product", "product"])
        if kind == "write":
            n = rng.choice(names["_writable"])
            shape = tuple(names[n].shape)
            return f"write({n}, w0, scheme, values({shape}, {rng.randrange(1000)}, {front!r}))"
        if kind == "product" and shape and names["_dtype"] == "float32":
            if rng.random() < 0.5:
                left = (*shape[:-2], 3, shape[-2]) if len(shape) > 1 else shape
                return f"p{new} = values({left}, {rng.randrange(1000)}, {front!r}) @ {n}"
            return f"p{new} = {n} @ values({(*shape[:-2], shape[-1], 3)}, {rng.randrange(1000)}, {front!r})"
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

    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
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
            if ours[:2] != (dtype, shape):
                lines.append(f"{n}: {ours[:2]}, expected {(dtype, shape)}")
            elif (n[0] == "w" and not np.array_equal(ours[2], values)) or (
                n[0] == "p" and not np.allclose(ours[2], values, 1e-4, 1e-5 * max(1, np.abs(values).max(initial=0)))
            ):
                lines.append(f"{n}: {ours[2].ravel()[:4]}, expected {values.ravel()[:4]}")
        return lines


KIND = Quantized()
