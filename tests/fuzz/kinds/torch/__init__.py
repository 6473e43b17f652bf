"""PyTorch programs: on CPU PyTorch, and on the device with each backend."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from tests.fuzz.kinds.torch import data, forms, observed, undecided, whole
from tests.fuzz.kinds.torch.schemas import TIES, Operator, Pool, call, drawn
from tests.fuzz.program import REFERENCE, Kind, Outcome, Program

import tensorgraft as tg
import torch

Tensor = torch.Tensor
REGIONS = (
    "with torch.no_grad(): {}",
    "with torch.enable_grad(): {}",
    "with torch.inference_mode(): {}",
    "with torch.autocast(D.type, dtype=torch.bfloat16): {}",
    "with torch.autocast(D.type, dtype=torch.float16): {}",
    "with torch.autocast(D.type, enabled=False): {}",
)


class Torch(Kind):
    name = "torch"
    shares: ClassVar[dict[str, int]] = {
        "jax": 1,
        "numpy": 1,
        "torch": 5,
        "tensorflow": 5,
        "tensorflow compiled": 200,
        "jax compiled": 200,
        "jax lazy": 200,
        "jax jit": 200,
        "torch jit": 50,
        "tensorflow jit": 50,
        "jax dynamo": 1000,
        "jax grad": 20,
        "numpy vmap": 20,
        "numpy jvp": 20,
        "numpy vmap grad": 50,
        "numpy jvp grad": 50,
        "torch grad": 50,
        "torch vmap": 50,
    }

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)

    def names(self, subject: str) -> dict[str, Any]:
        backend, _, way = subject.partition(" ")
        device = torch.device("cpu") if backend == REFERENCE or way == "dynamo" else tg.device(backend)
        return {
            "torch": torch,
            "nn": torch.nn,
            "F": torch.nn.functional,
            "D": device,
            "T": data.maker(device),
            "I": data.indices(device),
            "prepared": data.prepared,
            "first": lambda result: result[0] if isinstance(result, tuple) else result,
        }

    def reference(self, subject: str) -> str:
        _, _, way = subject.partition(" ")
        return f"{REFERENCE} {way}" if way in whole.WAYS else REFERENCE

    # drawing

    def draw(self, seed: int) -> Program:
        with _quiet():
            return super().draw(seed)

    def statement(self, rng: random.Random, names: dict[str, Any]) -> str:
        tensors = observed.tensors(names)
        pool = Pool(rng, tensors)
        if len(tensors) < names.setdefault("_inputs", rng.randint(1, 3)):
            return f"{_new(names)} = {pool.fresh(pool.shape() if rng.random() < 0.8 else (2, 2, 3, 3))}"
        text = ""
        while not text:
            way = rng.random()
            if way < 0.16:
                text = "{new} = " + forms.view(pool, rng)
            elif way < 0.28:
                text = forms.write(pool, rng)
            elif way < 0.45:
                text = forms.history(pool, rng)
            elif way < 0.52:
                text = forms.layer(pool, rng)
            elif way < 0.58 or ("m" in names and way < 0.7):
                text = forms.module(pool, rng, names)
            else:
                text = self._operator(pool, rng, names)
        made = text.startswith("m = prepared(")
        if made:
            names["_made"] = text[len("m = prepared(") : text.rindex(", ", 0, text.rindex(", "))]
        elif rng.random() < 0.05 and not text.startswith(("with", "for", "import")):
            text = rng.choice(REGIONS).replace("{}", text)
        text = text.replace("{new}", _new(names)).replace("{{", "{").replace("}}", "}")
        return text

    def _operator(self, pool: Pool, rng: random.Random, names: dict[str, Any]) -> str:
        for op in drawn(rng, lambda op: True):
            for _ in range(6):
                text = call(op, pool, pool.any())
                if op.writes or op.outs:
                    if rng.random() < 0.3:
                        return text
                    continue
                try:
                    result = eval(text, names)
                except Exception as error:
                    if rng.random() < 0.03 and self.kept(error):
                        return text
                    continue
                made = [t for _, t in observed.leaves("", result)]
                if any(t.dtype is torch.complex32 for t in made):  # the CPU has few operators for it
                    break
                if any(n < 0 for t in made for n in t.shape):  # a meta function's, which checks less than it should
                    break
                if _open(op, text, pool, result):
                    break
                return "{new} = " + text
        raise AssertionError("no operator is drawn")

    def kept(self, error: Exception) -> bool:
        """Not where another device has what the CPU lacks, as a backend may."""
        said = str(error)
        if "not implemented for '" in said:
            return not any(dtype in said for dtype in ("'Half'", "'BFloat16'", "'Float8", "'ComplexHalf'"))
        lacking = ("does not support complex", "create a primitive", "Could not run")
        unfit = any(words in said for words in lacking) or isinstance(error, NameError | SyntaxError)
        return not unfit and "INTERNAL ASSERT" not in said

    # playing

    def play(self, program: Program, subject: str) -> Outcome:
        backend, _, way = subject.partition(" ")
        with _quiet():
            if way in whole.WAYS:
                return whole.play(self, program, backend, way)
            if backend == REFERENCE:
                return super().play(program, subject)
            with tg.eager("compiled" if way == "compiled" else "tiered"):
                if way == "lazy":
                    with tg.lazy(compile="first"):
                        return super().play(program, subject)
                return super().play(program, subject)

    def follow(self, names: dict[str, Any]) -> None:
        observed.follow(names)

    def observe(self, names: dict[str, Any]) -> dict[str, Any]:
        return observed.observe(names)

    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
        return observed.differences(expected, found, program)

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        with _quiet():
            return undecided.reason(self, program, subject, expected, found)


def without_errors(program: Program, outcome: Outcome) -> Program:
    return replace(program, statements=tuple([s for i, s in enumerate(program.statements) if i not in outcome.raised]))


def _new(names: dict[str, Any]) -> str:
    return f"v{sum(name[0] == 'v' and name[1:].isdigit() for name in names)}"


def _open(op: Operator, text: str, pool: Pool, result: Any) -> bool:
    """The values are not determined: of equal elements any may be taken."""
    if not any(part in op.name for part in TIES):
        return False
    return any(_tied(t) for name, t in pool.tensors.items() if name in text) or "T(" in text


def _tied(t: Tensor) -> bool:
    if t.numel() > 2000 or t.is_complex():
        return True
    numbers = t.detach().flatten().tolist()
    return len(set(numbers)) < len(numbers) or any(n != n for n in numbers)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


KIND = Torch()
