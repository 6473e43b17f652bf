"""What start-up costs, in fresh processes: CPU seconds of a process with us and of the same one without.

`import tensorgraft` may import no framework, `import torch` may not load the front end where tensorgraft is installed,
and the commands start no backend that is not used.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Row
from benchmarks.worker import ONE_CORE, as_installed

ROUNDS = 7
RUN = ("-m", "tensorgraft", "run")
# PyTorch looks for what is installed beside it, and finds something that does nothing.
WITHOUT = """
import sys, types
other = types.ModuleType("other")
other.autoload = lambda: None
sys.modules["tensorgraft.frontends.torch_entry"] = other
import torch
assert not hasattr(torch, "graft")
"""
ALONE = "import sys, {0}; assert not {{'jax', 'tensorflow', 'torch'}} & sys.modules.keys()"
NOT_LOADED = "import sys, torch; assert 'tensorgraft.frontends.torch' not in sys.modules; torch.device('graft')"


# What the front end and the backend need before there is a result, and what most programs do next.
FIRST = """
import torch
x = torch.ones(3, requires_grad=True, device="cuda" if torch.cuda.is_available() else "cpu")
(x + x).sum().backward()
print(x.grad.tolist())
"""


def seconds(*arguments: str, status: int = 0, **environment: str) -> float:
    """CPU seconds, user's and system's, of a Python process and those that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**as_installed(), **ONE_CORE, **environment}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == status, done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure() -> list[Row]:
    with TemporaryDirectory() as folder:
        empty, missing, first = (Path(folder, f"{name}.py") for name in ("empty", "missing", "first"))
        empty.touch()
        first.write_text(FIRST)
        subjects = {
            "python": lambda: seconds("-c", ""),
            "numpy": lambda: seconds("-c", ALONE.format("numpy")),
            "tensorgraft": lambda: seconds("-c", ALONE.format("tensorgraft")),
            "torch": lambda: seconds("-c", WITHOUT),
            "torch, installed": lambda: seconds("-c", NOT_LOADED),
            "run": lambda: seconds(*RUN, str(empty)),
            "run missing": lambda: seconds(*RUN, str(missing), status=2),
            "first": lambda: seconds(*RUN, str(first)),
            "first, natively": lambda: seconds(str(first), TORCH_DEVICE_BACKEND_AUTOLOAD="0"),
            "doctor": lambda: seconds("-m", "tensorgraft", "doctor"),
        }
        taken: dict[str, list[float]] = {name: [] for name in subjects}
        for _ in range(ROUNDS):
            for name, subject in subjects.items():
                taken[name].append(subject())
    least = {name: min(times) for name, times in taken.items()}
    nothing, torch = ("python", least["python"]), ("import torch without it", least["torch"])

    def row(name: str, subject: str, against: tuple[str, float], extra: float) -> Row:
        return Row(name, least[subject], against[1], against[0], extra=extra)

    return [
        row("import tensorgraft", "tensorgraft", nothing, 0.05),
        row("import tensorgraft", "tensorgraft", ("import numpy", least["numpy"]), 0.05),
        row("import torch where tensorgraft is installed", "torch, installed", torch, 0.05),
        row("tensorgraft run, an empty script", "run", torch, 0.5),
        row("tensorgraft run, a first gradient", "first", ("python", least["first, natively"]), 1.5),
        row("tensorgraft run, no such script", "run missing", nothing, 0.3),
        row("tensorgraft doctor", "doctor", nothing, 3.0),
    ]
