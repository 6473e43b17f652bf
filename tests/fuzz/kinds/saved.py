"""Modules of PyTorch as functions of NumPy arrays, written to files, read again and run on a backend; CPU PyTorch judges.

`v...` are arguments and values, `b...` buffers, `s...` copies that are written through views of them; `r...` are random,
and compared with what the function gave before it was written.
"""

from __future__ import annotations

import random
import re
import tempfile
from typing import Any, ClassVar

import jax
import numpy as np
import torch
from tests.fuzz.kinds.array_api import Retry
from tests.fuzz.kinds.jax import Drawing as JaxDrawing
from tests.fuzz.kinds.jax import host, moved, templates
from tests.fuzz.kinds.tensorflow.called import data
from tests.fuzz.kinds.tensorflow.drawing import fits
from tests.fuzz.kinds.tensorflow.forms import ANY, FULL, ROWS
from tests.fuzz.program import REFERENCE, Outcome, Program
from tests.fuzz.shaken import Shaken

import tensorgraft as tg

DTYPES = ["float32"] * 6 + ["float64", "int64", "int64", "int32", "bool"]
SHAPES = [(), (2,), (3,), (2, 3), (3, 3), (1, 3), (2, 2, 3), (0, 2)]
GIVEN = re.compile(r"([vb]\d+) = data(\(.*\))")
TARGET = re.compile(r"^([vrs]\d+)(?= = )", re.M)
F = torch.nn.functional


class Drawing(JaxDrawing):
    def __init__(self, rng: random.Random, names: dict[str, Any]) -> None:
        super().__init__(rng, {})
        for n, x in names.items():
            if n[0] in "vbs" and n[1:].isdigit() and isinstance(x, torch.Tensor):
                self.arrays[n] = jax.ShapeDtypeStruct(tuple(x.shape), np.dtype(str(x.dtype).removeprefix("torch.")))
        self.next = 1 + max((int(n[1:]) for n in names if n[0] in "vbsr" and n[1:].isdigit()), default=-1)


FORMS = [
    (3, templates("f", ANY, *(f"torch.{f}({{n}})" for f in ["sin", "tanh", "exp", "sigmoid", "relu", "floor", "round", "sign", "sqrt", "log1p", "erf", "lgamma", "isnan", "frac", "softmax({n}.reshape(-1), 0) if False else torch.cos"]), "F.gelu({n})", "F.silu({n})", "F.elu({n})", "F.softplus({n})", "F.leaky_relu({n})", "torch.clamp({n}, -1, {c})", "{n} // {c}", "{n} % {c}", "torch.nan_to_num({n} / 0)", "F.dropout({n}, 0.5, False)", "torch.lerp({n}, {m}, 0.5)", "torch.addcmul({n}, {m}, {m})")),
    (1.5, templates("i", ANY, "{n} // {c}", "{n} % {c}", "{n} & 3", "{n} ^ {m}", "{n} << 1", "~{n}", "{n} > {c}", "F.one_hot({n}.abs() % 3, 3) if {n}.dtype == torch.int64 else {n}", "torch.bincount({n}.reshape(-1).abs() % 4, minlength=4)")),
    (2, templates("fib", ANY, "{n}.to(torch.float64)", "{n}.long()", "{n}.float()", "torch.zeros_like({n})", "{n}.shape[0] * {n} if {n}.ndim else {n}", "torch.full((2,), {n}.numel(), device={n}.device)", "{n}.expand(2, *{n}.shape)", "torch.where({n} == {m}, {n}, {m})", "torch.arange({n}.numel(), dtype={n}.dtype, device={n}.device) if {n}.dtype != torch.bool else {n}", "{n}.new_ones(2)", "{n}.clone()", "{n}.flatten()", "{n}[None]", "{n} == {m}")),
    (3, templates("fi", FULL, *(f"{{n}}.{f}" for f in ["sum()", "sum({a})", "mean({a}, dtype=torch.float32)", "cumsum({a})", "amax({a})", "argmax({a})", "sort({a}).values", "sort({a}, descending=True)[1]", "prod({a})", "max({a}).indices", "topk(1, {a}).values", "flip({a})", "roll({k}, {a})", "std({a}, correction=0) if {n}.dtype.is_floating_point else {n}", "unsqueeze({a})", "transpose(0, {a})", "narrow({a}, 0, 1)", "select({a}, 0)", "unbind({a})[0]", "chunk(2, {a})[0]", "index_select({a}, torch.tensor([0, 0], device={n}.device))", "gather({a}, torch.zeros_like({n}, dtype=torch.int64))", "movedim({a}, 0)", "diff(dim={a})", "repeat_interleave(2, {a})", "unfold({a}, 1, 1)", "scatter({a}, torch.zeros_like({n}, dtype=torch.int64), {n})", "index_add({a}, torch.tensor([0], device={n}.device), {m}.narrow({a}, 0, 1))", "logsumexp({a}) if {n}.dtype.is_floating_point else {n}"]), "torch.cat([{n}, {m}], {a})", "torch.stack([{n}, {m}], {a})", "{n}[..., ::2]", "{n}[-1]", "{n}[[0, 0]]", "torch.searchsorted({n}.flatten().sort().values, {m}.flatten())", "F.pad({n}, (1, 0))", "torch.tril({n}) if {n}.ndim > 1 else {n}", "torch.einsum('...i,...i->...', {n}, {m})", "torch.index_put({n}, (torch.tensor([0, 0], device={n}.device),), {m}[:1], accumulate=True)")),
    (1.5, templates("f", ROWS, "{n} @ {m}.mT", "F.linear({n}, {m}.reshape(-1, {n}.shape[-1]))", "F.layer_norm({n}, {n}.shape[-1:])", "F.softmax({n}, {a})", "F.log_softmax({n}, -1)", "F.normalize({n})", "F.scaled_dot_product_attention({n}, {m}, {m})", "F.conv1d({n}, {n}[:, :1].reshape(1, -1, 1)[:, :{n}.shape[-2]]) if {n}.ndim == 2 else {n}", "F.max_pool1d({n}, 2, 1) if {n}.shape[-1] > 1 else {n}", "F.mse_loss({n}, {m})", "F.cross_entropy({n}, torch.zeros({n}.shape[0], dtype=torch.int64, device={n}.device)) if {n}.ndim == 2 else {n}", "torch.baddbmm({n}, {n}, {m}.mT @ {m}) if {n}.ndim == 3 else {n}", "F.interpolate({n}[None], scale_factor=2) if {n}.ndim == 2 else {n}", "torch.linalg.norm({n})", "torch.linalg.solve({n} @ {n}.mT + 5 * torch.eye({n}.shape[-2], dtype={n}.dtype, device={n}.device), {m})")),
    (2, templates("f", FULL, "torch.func.grad(lambda q: (q.sin() * q).sum())({n})", "torch.func.grad(lambda q: (q[0] * {m}).sum())({n})", "torch.func.vmap(lambda q: q * 2 + q.sum())({n})", "torch.func.jvp(lambda q: q.tanh() * q, ({n},), ({m},))[1]", "torch.func.vmap(torch.func.grad(lambda q: (q * q).sum()))({n})", "torch.func.vjp(lambda q: q.cumsum(0), {n})[1]({m})[0]", "torch.func.jacrev(lambda q: q * q.sum())({n})", "torch.func.grad(lambda q: torch.func.grad(lambda p: (p ** 3).sum())(q).sum())({n})", "torch.func.grad(lambda q: q.sort(-1).values[..., 0].sum())({n})", "torch.cond({n}.sum() > 0, lambda q: q.sin() * 1, lambda q: q + 2, ({n},))", "torch._higher_order_ops.while_loop(lambda i, q: i < 3, lambda i, q: (i + 1, q * {k}), (torch.tensor(0, device={n}.device), {n}))[1]")),
]  # fmt: skip
WRITES = templates(
    "fi", FULL, "{n}.add_(1)", "{n}[0] = {k}", "{n}[1:].mul_({k})", "{n}.copy_({m})", "{n}[..., 0] += {m}[..., 0]", "{n}.t().add_(2) if {n}.ndim == 2 else {n}.neg_()", "{n}.view(-1)[::2].fill_({k})", "{n}.index_add_(0, torch.tensor([0, 0], device={n}.device), torch.stack([{m}[0], {m}[0]]))", "{n}.masked_fill_({n} > 1, {k})", "{n}[{n} > 0] = {k}", "{n}.scatter_(0, torch.zeros_like({n}, dtype=torch.int64), {m})", "{n}.flatten()[0].zero_()", "{n}.unsqueeze(0)[0, 0] = {m}[0]", "{n}.index_put_((torch.tensor([0], device={n}.device),), {m}[:1])", "{n}[[0, -1]] *= 2", "{n}.clamp_(-1, {k})", "torch.mul({n}, 2, out={n})", "{n}.diagonal().add_(1) if {n}.ndim == 2 else {n}.sub_(1)", "{n}.cumsum_(0)", "{n}.transpose(0, {a}).copy_({m}.transpose(0, {a}))", "{n}.data.add_(1)", "{n}.set_({m}.clone()) if False else {n}.abs_()",
)  # fmt: skip
RANDOM = ["torch.rand_like({v})", "torch.randn(3, device={v}.device)", "F.dropout({v}, 0.5)", "torch.randint(0, 9, (3,), device={v}.device)", "torch.bernoulli({v}.new_full((4,), 0.5))", "torch.randperm(5, device={v}.device)", "torch.normal(0.0, 1.0, (2,), device={v}.device)", "{v}.new_empty(3).uniform_(1, 2)", "torch.multinomial({v}.new_ones(4), 2)", "{v}.new_empty(2).exponential_()"]  # fmt: skip


class Saved(Shaken):
    name = "saved"
    shares: ClassVar[dict[str, int]] = {"numpy": 1, "torch": 2, "jax": 10, "tensorflow": 4}

    def names(self, subject: str) -> dict[str, Any]:
        return {"torch": torch, "F": F, "data": lambda *args: torch.from_numpy(data(*args))}

    def drawn(self, rng: random.Random, names: dict[str, Any]) -> str:
        d = Drawing(rng, names)
        new = f'data("{d.rng.choice(DTYPES)}", {d.rng.choice(SHAPES)}, {d.rng.randrange(10**5)})'
        if len(d.arrays) < 2:
            return f"v{d.next} = {new}"
        copies = {n: x for n, x in d.arrays.items() if n[0] == "s"}
        what = d.rng.choices(["new", "copy", "view", "write", "binary", "form", "random"], [2, 2, 2, 4, 3, 14, 0.7])[0]
        if what == "new":
            return f"{d.one('v', 'v', 'b')}{d.next} = {new}"
        if what == "copy":
            return f"s{d.next} = {d.find('fi')}.clone()"
        if what in ("view", "write"):
            if not copies:
                raise Retry
            d.arrays = copies
            n = d.find("fi", FULL)
            views = [
                "[1:]",
                ".t()" if len(copies[n].shape) < 3 else ".mT",
                "[..., 0]",
                ".view(-1)",
                "[::2]",
                "[None]",
                ".detach()",
            ]
            return WRITES(d) if what == "write" else f"s{d.next} = {n}{d.rng.choice(views)}"
        if what == "random":
            return f"r{d.next} = {d.rng.choice(RANDOM).format(v=d.find('f'))}"
        if what == "binary":
            n = d.find("fi")
            x = d.arrays[n]
            m = d.find("fib", lambda y: fits(x, y)) if d.maybe(0.7) else d.num(x.dtype.kind)
            return f"v{d.next} = {n} {d.one('+', '-', '*', '/', '<', '!=', '**')} {m}"
        return f"v{d.next} = {d.rng.choices([f for _, f in FORMS], [w for w, _ in FORMS])[0](d)}"

    def module(self, program: Program, rng: np.random.Generator | None = None) -> tuple[Any, list[np.ndarray]]:
        """(the program as a module, its arguments), shaken by the generator."""
        given: dict[str, np.ndarray] = {}
        body = []
        for text in program.statements:
            if known := GIVEN.fullmatch(text):
                x = data(*eval(known[2]))
                given[known[1]] = x if rng is None else np.asarray(moved(x, rng))
            else:
                body.append(f"    {text}")
        inputs = [n for n in given if n[0] == "v"]
        results = dict.fromkeys(TARGET.findall("\n".join(map(str.strip, body))))
        said = [
            f"def forward(self, {', '.join(inputs)}):",
            *(f"    {n} = self.{n}" for n in given if n[0] == "b"),
            *body,
            f"    return {{{', '.join(f'{r!r}: {r}' for r in results)}}}",
        ]
        names: dict[str, Any] = {"torch": torch, "F": F}
        exec("\n".join(said), names)
        module = type("Drawn", (torch.nn.Module,), {"forward": names["forward"]})()
        for n in given:
            if n[0] == "b":
                module.register_buffer(n, torch.from_numpy(given[n]))
        return module, [given[n] for n in inputs]

    def play(self, program: Program, subject: str) -> Outcome:
        outcome = Outcome()
        try:
            if subject == REFERENCE:
                outcome.observed = self.shaken(lambda rng: self.by_pytorch(program, rng))
                return outcome
            module, given = self.module(program)
            f = tg.graft(module.eval(), onto="numpy")
            said = {"seed": 7} if re.search(r"^r\d", str(program), re.M) else {}
            before = f(*given, **said)
            with tempfile.TemporaryDirectory() as directory:
                f.save(f"{directory}/f")
                found = tg.load(f"{directory}/f", onto=subject)(*given, **said)
            outcome.observed = {n: host(x) for n, x in found.items() if n[0] != "r"}
            for n, x in before.items():
                if n[0] == "r":
                    np.testing.assert_allclose(host(found[n]), host(x), 1e-5, 1e-6)  # logarithms of the same bits
        except Exception as error:
            outcome.raised[0] = type(error).__name__
        return outcome

    def by_pytorch(self, program: Program, rng: np.random.Generator | None) -> dict[str, np.ndarray]:
        module, given = self.module(program, rng)
        return {n: host(x) for n, x in module(*map(torch.from_numpy, given)).items() if n[0] != "r"}

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        if found.raised.get(0) in ("TracedValueError", "ShapeError"):
            return "values that decide"
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
            if not self.differences(self.play(program, REFERENCE), found, program):
                return "PyTorch has it so without oneDNN"  # GELU of numbers near the largest
        return super().excuse(program, subject, expected, found)


KIND = Saved()
