"""A program that makes no optimizer and calls no `torch.compile` waits for no import of Dynamo, nor SymPy."""

import subprocess
import sys

import pytest
import torch

PROGRAM = """
import sys
import torch
import tensorgraft as tg

device = tg.device("{backend}")
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.GELU(), torch.nn.Flatten(),
                            torch.nn.Linear(8 * 30 * 30, 16), torch.nn.LayerNorm(16), torch.nn.Softplus())
model = model.eval().to(device)
x = torch.ones(64, 3, 32, 32, device=device)  # more than the CPU's kernels are asked about
with torch.no_grad():
    for infer in (model, tg.jit(lambda x: model(x).relu().mean(0))):
        for _ in range(12):
            infer(x)
words = torch.nn.Embedding(512, 384, device=device)(torch.ones(2, 256, dtype=torch.int64, device=device))
rows = torch.nn.functional.linear(words.transpose(0, 1), torch.ones(1024, 384, device=device))
imported = "torch._dynamo" in sys.modules or "sympy" in sys.modules
from torch.fx.experimental import symbolic_shapes

import sympy.core

assert symbolic_shapes.ShapeEnv and sympy.Basic is sympy.core.basic.Basic  # not what stood for them
import torch._dynamo

torch._dynamo.reset()
compiled = torch.compile(lambda a: torch.nn.functional.gelu(a) + 1, backend="eager")
assert torch.equal(compiled(torch.ones(3)), torch.nn.functional.gelu(torch.ones(3)) + 1)
left = [fn for fn in vars(torch._refs).values() if fn and getattr(fn, "__dynamo_disable", None) is fn]
print(imported, len(left))
"""


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_inference_imports_neither(backend):
    program = PROGRAM.format(backend=backend)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "0"], done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore:guard_size_oblivious will be removed")
def test_answers_without_symbolic_shapes_are_pytorchs():
    from torch.fx.experimental import symbolic_shapes

    from tensorgraft.frontends.torch.dispatch import references

    operands = {
        "sym_eq": [((2, 3), [2, 3]), ((2,), (2, 3)), (torch.Size((2,)), (3,)), (2, 2)],
        "sym_or": [(False, True), (False,), (1, 2)],
        "sym_and": [(True, False, True), (True,)],
        "guarding_hint_or_throw": [(3,), (True,)],
        "has_guarding_hint": [(3,)],
        "is_nested_int": [(3,)],
    }
    for name, answer, is_known in references.ANSWERS:
        for args in operands.get(name, [(True,), (False,)]):
            ours = references.answer_for_numbers(name, answer, is_known)(*args)
            theirs = getattr(symbolic_shapes, name)(*args)
            assert (ours, type(ours)) == (theirs, type(theirs)), (name, args)
    with pytest.raises(AssertionError, match="Expected bool"):
        references.answer_for_numbers(*references.ANSWERS[0])(2)


def test_a_small_program_imports_no_sympy():
    program = """
import sys
import torch
import tensorgraft as tg

x = torch.ones(2, device=tg.device("jax"))
add = tg.jit(lambda x: x + 1)
for _ in range(12):
    add(x), x * x
print("sympy" in sys.modules, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "False"], done.stdout + done.stderr
