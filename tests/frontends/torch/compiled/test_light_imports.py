"""A program that makes no optimizer and calls no `torch.compile` waits for no import of Dynamo, nor SymPy."""

import subprocess
import sys

import pytest

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
imported = "torch._dynamo" in sys.modules
import torch._dynamo

torch._dynamo.reset()
compiled = torch.compile(lambda a: torch.nn.functional.gelu(a) + 1, backend="eager")
assert torch.equal(compiled(torch.ones(3)), torch.nn.functional.gelu(torch.ones(3)) + 1)
left = [fn for fn in vars(torch._refs).values() if fn and getattr(fn, "__dynamo_disable", None) is fn]
print(imported, len(left))
"""


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_inference_imports_no_dynamo(backend):
    program = PROGRAM.format(backend=backend)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "0"], done.stdout + done.stderr


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
