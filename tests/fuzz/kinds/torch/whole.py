"""Programs as one function: compiled, through Dynamo, and transformed by `torch.func`.

A program's first statements make its inputs; the others are the body of a function of these, which returns the tensors
that it has made. What raises on the CPU is left out, and of transformed functions what PyTorch does not transform. A
module is called by `functional_call` then, and its numbers are an input.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.kinds.torch import observed
from tests.fuzz.program import REFERENCE, Outcome, Program, Unfit

import tensorgraft as tg
import torch
from torch.utils._pytree import tree_leaves, tree_map

Tensor = torch.Tensor
TRANSFORMS = ("grad", "vmap", "jvp", "vmap grad", "jvp grad")  # derivatives of each of a batch; second derivatives
WAYS = ("jit", "dynamo", *TRANSFORMS)
_INPUT = re.compile(r"v\d+ = T\(|[mo] = (prepared|torch\.optim)")
_MODULE = re.compile(r"[mo] = (prepared|torch\.optim)")
# in inference mode AOTAutograd fails, and leaves its dispatcher on: every later operator fails; what may grow, or look
# beyond itself, is documented
_NOT_IN_GRAPHS = re.compile(r"inference_mode|\bout=|as_strided")
_HISTORY = re.compile(r"requires_grad|backward|autograd|\.grad\b|retain_grad|hook|inference|\.data\b|\bo\b|deepcopy")


def play(kind: Any, program: Program, backend: str, way: str) -> Outcome:
    given, body = _parts(kind, program, way)
    outcome = Outcome()
    call, names, inputs = _prepared(kind, given, body, backend, way)
    try:
        result = call()
    except Exception as error:
        if type(error).__name__ in ("TracedValueError", "ShapeError"):  # says that values are needed, and so it is
            raise Unfit from error
        outcome.raised[0] = type(error).__name__
        return outcome
    result = tree_map(lambda t: t if not isinstance(t, Tensor) or observed.valid(t) else t.detach(), result)
    names.update(result if way not in TRANSFORMS else {"v0": tree_leaves(result)})
    seen = _values(observed.observe(names))  # a leaf made inside comes back without its gradient: documented
    outcome.observed = {n: s for n, s in seen.items() if ".grad" not in n or n.removesuffix(".grad") in inputs}
    return outcome


def raised(kind: Any, program: Program, backend: str, way: str) -> Exception:
    """What the call raises."""
    given, body = _parts(kind, program, way)
    try:
        _prepared(kind, given, body, backend, way)[0]()
    except Exception as error:
        return error
    raise AssertionError("it raises in one run, and not in another")


@functools.lru_cache(8)
def _parts(kind: Any, program: Program, way: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The statements that make inputs, and those of the function: what the reference plays in this way."""
    eager = kind.play(program, REFERENCE)
    statements = [s for i, s in enumerate(program.statements) if i not in eager.raised]
    made = [s for s in statements if _MODULE.match(s)]  # outside of the function, as programs do
    statements = made + [s for s in statements if s not in made]
    count = next((i for i, s in enumerate(statements) if not _INPUT.match(s)), len(statements))
    given, body = tuple(statements[:count]), statements[count:]
    if way in TRANSFORMS:
        body = [s for s in body if not _HISTORY.search(s)]
    if way == "dynamo":
        body = [s for s in body if not _NOT_IN_GRAPHS.search(s)]
    while body:
        try:
            _prepared(kind, given, tuple(body), REFERENCE, way)[0]()
            return given, tuple(body)
        except Exception as error:
            lines = [
                frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<program>"
            ]
            if not lines or lines[0] is None:
                break
            del body[lines[0] - _HEAD]
    raise Unfit


def _prepared(
    kind: Any, given: tuple[str, ...], body: tuple[str, ...], backend: str, way: str
) -> tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]:
    """(the call, the names that a program has, its inputs)"""
    names = kind.names(f"{backend} {way}" if backend != REFERENCE else REFERENCE)
    for text in given:
        exec(text, names)
    inputs = {n: v for n, v in names.items() if n[0] == "v" and n[1:].isdigit()}
    module = names.get("m")
    if way in TRANSFORMS and module is not None:
        numbers = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        inputs["numbers"] = {n: t.detach() for n, t in numbers.items() if t.is_floating_point()}
        names["bound"] = lambda numbers: lambda *args: torch.func.functional_call(module, numbers, args)
    return _transformed(_function(body, inputs, names), list(inputs.values()), backend, way), names, inputs


_HEAD = 3  # the line of a function's first statement


def _function(body: tuple[str, ...], inputs: dict[str, Any], names: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    made = sorted({m for text in body for m in re.findall(r"\b(v\d+) = ", text)} - {*inputs})
    lines = [f"def program({', '.join(inputs)}):", "    m = bound(numbers)" if "numbers" in inputs else ""]
    lines += [f"    {text}" for text in body]
    lines.append(f"    return {{{', '.join(f'{n!r}: {n}' for n in [*inputs, *made])}}}")
    exec(compile("\n".join(lines), "<program>", "exec"), names)
    fn: Callable[..., dict[str, Any]] = names.pop("program")
    return fn


def _transformed(fn: Callable[..., Any], inputs: list[Any], backend: str, way: str) -> Callable[[], Any]:
    if way == "dynamo":  # AOTAutograd changes some programs: the judge of its backend is PyTorch's backend for it
        torch._dynamo.reset()
        return lambda: torch.compile(fn, backend="aot_eager" if backend == REFERENCE else "tensorgraft")(*inputs)
    if way == "jit":
        return functools.partial(fn if backend == REFERENCE else _traced_before(fn, inputs), *inputs)

    def floats(*args: Any) -> list[Tensor]:
        made = tree_leaves(fn(*tree_map(lambda t: t.clone(), args)))
        made = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in made if isinstance(t, Tensor)]
        return [t for t in made if t.is_floating_point()]

    def total(*args: Any) -> Tensor:
        return sum((t.double().sum() for t in floats(*args)), torch.zeros((), dtype=torch.float64, device=device))

    device = next(t.device for t in tree_leaves(inputs))
    at = tuple([i for i, t in enumerate(inputs) if isinstance(t, dict) or t.is_floating_point()])
    if not at:
        raise Unfit
    transform = torch.func.grad(total, argnums=at) if "grad" in way else floats
    if way == "grad":
        return lambda: transform(*inputs)
    if way.startswith("vmap"):
        several = tree_map(lambda t: torch.stack([t, t.flip(0) if t.ndim else t]), inputs)
        return lambda: torch.func.vmap(transform)(*several)

    def among(*some: Any) -> Any:
        args = list(inputs)
        for i, t in zip(at, some, strict=True):
            args[i] = t
        return transform(*args)

    primals = tuple([inputs[i] for i in at])
    return lambda: torch.func.jvp(among, primals, tree_map(torch.ones_like, primals))


def _traced_before(fn: Callable[..., Any], inputs: list[Any]) -> Callable[..., Any]:
    """`fn` compiled, and called with other values, none of which may be left in the program. Not where it registers
    hooks, which each call adds."""
    compiled = tg.jit(fn, compile="first")
    if any("hook" in name for name in fn.__code__.co_names):
        return compiled
    others = copy.deepcopy(inputs)
    with _as_before(fn.__globals__.get("m"), fn.__globals__.get("o")), contextlib.suppress(Exception):
        with torch.no_grad():
            for t in others:
                t.copy_(t.flip(0) if t.ndim else t + 1)
        made = compiled(*others)
        with torch.no_grad():
            for t in tree_leaves(made):  # which whoever gets it may write
                if isinstance(t, Tensor):
                    t.zero_()
    return compiled


@contextlib.contextmanager
def _as_before(module: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """A call is taken back that trains them."""
    if module is None:
        yield
        return
    tensors = [*module.parameters(), *module.buffers()]
    saved = [(t.detach().clone(), t.requires_grad) for t in tensors]
    modes = [(part, part.training) for part in module.modules()]
    groups = [{**group} for group in optimizer.param_groups] if optimizer is not None else []
    state = {} if optimizer is None else {p: copy.deepcopy(of) for p, of in optimizer.state.items()}
    yield
    now = [*module.parameters(), *module.buffers()]
    if len(now) != len(tensors) or any(a is not b for a, b in zip(now, tensors, strict=True)):
        raise Unfit
    with torch.no_grad():
        for t, (value, requires) in zip(tensors, saved, strict=True):
            t.requires_grad_(requires).copy_(value)
            t.grad = None
    for part, training in modes:
        part.training = training
    if optimizer is not None:
        optimizer.state.clear()
        optimizer.state.update(state)
        optimizer.param_groups[:] = groups


def _values(seen: dict[str, Any]) -> dict[str, Any]:
    """Of a function's results: values, dtypes and shapes (what differs of memory and histories is documented)."""
    for entry in seen.values():
        if entry is not None:
            entry.exact = {key: value for key, value in entry.exact.items() if key in ("dtype", "shape", "valid")}
    return seen
