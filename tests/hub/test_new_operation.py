"""An elementwise operation that is new: one file of a copy of the package says it; backends and front ends have it."""

import shutil
import subprocess
import sys
from pathlib import Path

import tensorgraft

ROW = '"conj": "c",\n'
METHOD = "    def softplus(self, x: Array)"
SINC = """    def sinc(self, x: Array) -> Array:
        zero = self.equal(x, 0)
        angle = self.multiply(self.where(zero, self.ones_like(x), x), math.pi)
        return self.where(zero, self.ones_like(x), self.divide(self.sin(angle), angle))

"""
PROGRAM = """
import numpy as np
import torch
import tensorgraft as tg
from tensorgraft.hub import registry

x = np.asarray([-1.5, 0.0, 0.25], np.float32)
for name in ("numpy", "torch", "jax", "tensorflow"):
    xp = registry.get(name)
    with xp.scope():
        np.testing.assert_allclose(xp.to_numpy(xp.sinc(xp.asarray(x))), np.sinc(x), rtol=1e-5, atol=1e-6)
assert registry.get("numpy").sinc.__func__ is not type(registry.get("jax")).sinc
assert tg.torch.operators()["sinc"] == "operation sinc"
there = torch.tensor(x, device=tg.device("numpy"), requires_grad=True)
torch.testing.assert_close(there.sinc().cpu(), torch.tensor(x).sinc())
there.sinc().sum().backward()
torch.testing.assert_close(there.to(torch.float64, copy=True).detach().sinc_().cpu(), torch.tensor(x).double().sinc())
print("done")
"""


def test_one_file_declares_an_elementwise_operation(tmp_path: Path) -> None:
    source = Path(tensorgraft.__file__).parent
    shutil.copytree(source, tmp_path / "tensorgraft", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "tensorgraft/hub/operations/elementwise.py"
    text = file.read_text()
    assert ROW in text and METHOD in text and "sinc" not in text
    file.write_text(text.replace(ROW, f'{ROW}    "sinc": "f",\n', 1).replace(METHOD, SINC + METHOD, 1))
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr
