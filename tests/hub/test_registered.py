"""A backend of another package: one class and one entry point, and nothing in ours knows its name."""

import subprocess
import sys

CLASS = """
from tensorgraft.backends.numpy import NumpyBackend

class MyBackend(NumpyBackend):
    name = "mine"
"""
PROGRAM = """
import torch
import tensorgraft as tg
import tensorgraft.array_api as xp

assert "mine" in tg.backends(), tg.backends()
device = tg.device("mine")
model = torch.nn.Linear(3, 2).to(device)
x = torch.randn(4, 3)
expected = torch.nn.functional.linear(x, model.weight.cpu(), model.bias.cpu())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@tg.jit
def step(x):
    optimizer.zero_grad()
    y = model(x)
    y.sum().backward()
    return y

torch.testing.assert_close(step(x.to(device)).cpu(), expected)
assert type(tg.to_backend_array(model.weight)).__name__ == "ndarray" and str(model.weight.grad.device) == str(device)
view = x.to(device)[1:, ::2]
view.mul_(2)
a = xp.arange(6.0, device="mine")
a[1:3] = 7.0
assert a.device == "mine" and tg.grad(lambda v: xp.sum(v * v))(a)[1] == 14.0
assert tg.quantize_(model, "int8_per_channel") is not None
print("done")
"""


def test_a_registered_backend_works_everywhere(tmp_path):
    (tmp_path / "my_package.py").write_text(CLASS)
    metadata = tmp_path / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tensorgraft.backends]\nmine = my_package:MyBackend\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr
