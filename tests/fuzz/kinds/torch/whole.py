"""Programs as one function: compiled, through Dynamo, and transformed by `torch.func`.

A program's first statements make its inputs; the others are the body of a function of these, which returns the tensors
that it has made. What raises on the CPU is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.fuzz.kinds.torch import observed
from tests.fuzz.program import REFERENCE, Outcome, Program

import tensorgraft as tg
import torch

Tensor = torch.Tensor
WAYS = ("jit", "dynamo", "grad", "vmap", "jvp")
REFUSED = "the reference refuses it"
_INPUT = re.compile(r"v\d+ = T\(|[mo] = (prepared|torch\.optim)")
_MODULE = re.compile(r"[mo] = (prepared|torch\.optim)")
_HISTORY = re.compile(r"grad|backward|hook|detach|inference|autocast|\.data\b|\bm\b|\bo\b|checkpoint|torch\.func")


def play(kind: Any, program: Program, backend: str, way: str) -> Outcome:
    eager = kind.play(program, REFERENCE)
    statements = [s for i, s in enumerate(program.statements) if i not in eager.raised]
    made = [s for s in statements if _MODULE.match(s)]  # outside of the function, as programs do
    statements = made + [s for s in statements if s not in made]
    count = next((i for i, s in enumerate(statements) if not _INPUT.match(s)), len(statements))
    outcome = Outcome()
    functional = way in ("grad", "vmap", "jvp")
    if count == len(statements) or (functional and any(_HISTORY.search(s) for s in statements)):
        return outcome
    names = kind.names(f"{backend} {way}" if backend != REFERENCE else REFERENCE)
    for text in statements[:count]:
        exec(text, names)
    inputs = {n: v for n, v in names.items() if n[0] == "v" and n[1:].isdigit()}
    fn = _function(statements[count:], inputs, names)
    transformed = _transformed(fn, list(inputs.values()), backend, way)
    judged = backend == REFERENCE
    try:
        result = transformed()
    except Exception as error:
        if type(error).__name__ in ("TracedValueError", "ShapeError"):  # says that values are needed, and so it is
            kind.excused["a program that needs values, in a compiled function"] += 1
            return kind.play(program, f"{REFERENCE} {way}")
        outcome.raised[0] = type(error).__name__ if not judged else REFUSED
        return outcome
    names.update(result if isinstance(result, dict) else {"v0": result})
    seen = _values(observed.observe(names))  # a leaf made inside comes back without its gradient: documented
    outcome.observed = {n: s for n, s in seen.items() if ".grad" not in n or n.removesuffix(".grad") in inputs}
    return outcome


def _function(body: list[str], inputs: dict[str, Any], names: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    made = sorted({m for text in body for m in re.findall(r"\b(v\d+) = ", text)} - {*inputs})
    lines = [f"def program({', '.join(inputs)}):", *(f"    {text}" for text in body)]
    lines.append(f"    return {{{', '.join(f'{n!r}: {n}' for n in [*inputs, *made])}}}")
    exec("\n".join(lines), names)
    fn: Callable[..., dict[str, Any]] = names.pop("program")
    return fn


def _transformed(fn: Callable[..., Any], inputs: list[Any], backend: str, way: str) -> Callable[[], Any]:
    if way in ("jit", "dynamo"):
        if backend == REFERENCE:
            return lambda: fn(*inputs)
        if way == "jit":
            return lambda: tg.jit(fn, compile="first")(*inputs)
        torch._dynamo.reset()
        return lambda: torch.compile(fn, backend="tensorgraft")(*inputs)

    def floats(*args: Any) -> list[Tensor]:
        made = [t for _, t in observed.leaves("v", list(fn(*[a.clone() for a in args]).values()))]
        return [t for t in made if t.is_floating_point()]

    def total(*args: Any) -> Tensor:
        return sum(
            (t.double().sum() for t in floats(*args)), torch.zeros((), dtype=torch.float64, device=inputs[0].device)
        )

    at = tuple([i for i, t in enumerate(inputs) if t.is_floating_point()])
    if way == "grad":
        return lambda: torch.func.grad(total, argnums=at)(*inputs)
    if way == "vmap":
        return lambda: torch.func.vmap(floats)(*[torch.stack([t, t.flip(0) if t.ndim else t]) for t in inputs])

    def among(*some: Tensor) -> list[Tensor]:
        args = list(inputs)
        for i, t in zip(at, some, strict=True):
            args[i] = t
        return floats(*args)

    primals = tuple([inputs[i] for i in at])
    return lambda: torch.func.jvp(among, primals, tuple([torch.ones_like(t) for t in primals]))


def _values(seen: dict[str, Any]) -> dict[str, Any]:
    """Of a function's results: values, dtypes and shapes (what differs of memory and histories is documented)."""
    for entry in seen.values():
        if entry is not None:
            entry.exact = {key: entry.exact[key] for key in ("dtype", "shape")}
    return seen
