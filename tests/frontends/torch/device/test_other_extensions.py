"""Another package that gives PyTorch a device is installed, and loaded before ours or after it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

EXTENSION = """
def autoload():
    import torch
    {what}
"""
PROGRAM = """
import numpy as np
import torch
from importlib.metadata import entry_points

import tensorgraft as tg
import tensorgraft.array_api as xp

print(*(point.name for point in entry_points(group="torch.backends")))
print(torch._C._get_privateuse1_backend_name(), float((xp.asarray([1.0], device="jax") + 1)[0]))
try:
    print(torch.ones(2, device=tg.device("jax")).sum().item())
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""


@pytest.fixture(params=["before", "after"])
def installed(request, tmp_path):
    """Returns a function that runs a program beside a package whose autoload function does `what`."""

    def run(program: str, what: str, command: list[str] | None = None, **environment: str) -> list[str]:
        info = tmp_path / "other_extension-1.0.dist-info"
        info.mkdir()
        (tmp_path / "other_extension.py").write_text(EXTENSION.format(what=what))
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-extension\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[torch.backends]\nother = other_extension:autoload\n")
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(program))
        add = "insert(1" if request.param == "before" else "append("
        add = f"import sys; sys.path.{add}{', ' if request.param == 'before' else ''}{str(tmp_path)!r}); "
        start = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
        if command is not None:
            start = f"sys.argv = {['tensorgraft', *command, str(path)]!r}; from tensorgraft.cli import main; main()"
        out = subprocess.run(
            [sys.executable, "-c", add + start],
            env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return [*out.stdout.splitlines(), *out.stderr.splitlines()]

    run.order = "other graft" if request.param == "before" else "graft other"
    return run


TAKES = "torch.utils.rename_privateuse1_backend('other')"


def test_the_place_is_theirs(installed):
    order, names, error = installed(PROGRAM, TAKES)
    assert order == installed.order
    assert names == "other 2.0"
    assert error.startswith("tensorgraft cannot register its device") and "'other' of another package" in error


WITHOUT_IT = """
import numpy as np
import torch
import tensorgraft as tg

net, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
ways = {
    "device": lambda: tg.device("jax"),
    "graft": lambda: tg.graft(net, onto="jax"),
    "graft onto numpy": lambda: tg.graft(net, onto="numpy"),
    "source": lambda: tg.source(net, x, onto="numpy"),
    "jit": lambda: tg.jit(net)(x),
    "explain": lambda: tg.explain(net, x),
    "compile": lambda: torch.compile(net, backend="tensorgraft")(x),
    "operators": lambda: tg.torch.operators(),
}
for name, way in [*ways.items(), *ways.items()]:  # the second time as the first
    try:
        way()
    except RuntimeError as error:
        print(f"{name}: {error}")

import jax.numpy as jnp

print(tg.graft(jnp.square, onto="torch")(torch.tensor(3.0)).item(), tg.graft(jnp.square, onto="numpy")(np.array(3.0)))
print(tg.source(jnp.square, jnp.ones(2), onto="torch").text.splitlines()[-1].strip())
print(tg.transforms.filter_eval_shape(net, tg.transforms.ShapeDtype((3, 2), np.dtype("float32"))).shape)
"""


def test_programs_of_pytorch_are_refused_in_one_sentence_and_others_work(installed):
    *refused, values, source, shape = installed(WITHOUT_IT, TAKES)
    ways = ["device", "graft", "graft onto numpy", "source", "jit", "explain", "compile", "operators"]
    assert [line.partition(": ")[0] for line in refused] == ways + ways
    (sentence,) = {line.partition(": ")[2] for line in refused}
    assert "(PrivateUse1) is taken by 'other' of another package" in sentence
    assert "`tensorgraft run --on jax program.py`" in sentence and "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in sentence
    assert (values, source, shape) == ("9.0 9.0", "return torch.square(x)", "(3, 2)")


def test_without_their_package_the_device_is_there(installed):
    lines = installed(PROGRAM, TAKES, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert lines[2] == "2.0"


UNNAMED = """global kernels
    kernels = torch.library.Library("aten", "IMPL")
    kernels.impl("empty.memory_format", lambda *args, **kwargs: None, "PrivateUse1")
    kernels.fallback = torch.library.Library("_", "IMPL")
    kernels.fallback.fallback(lambda op, *args, **kwargs: None, "PrivateUse1")
"""


def test_the_place_is_theirs_before_it_has_a_name(installed):
    order, names, error = installed(PROGRAM, UNNAMED)
    assert order == installed.order
    assert names == "privateuseone 2.0"
    assert error.startswith("tensorgraft cannot register its device") and "'privateuseone' of another package" in error


def test_what_they_leave_is_ours(installed):
    order, names, total = installed(PROGRAM, "pass")
    assert order == installed.order
    assert names == ("graft 2.0" if order == "other graft" else "privateuseone 2.0")
    assert total == "2.0"


def test_run_takes_it(installed):
    lines = installed("import torch; print(torch.ones(2, device='cuda').sum().item())", TAKES, ["run", "--on", "jax"])
    assert lines[0] == "2.0"
    assert any("it does not load other (other_extension:autoload)" in line for line in lines)


def test_it_is_asked_for(installed):
    lines = installed(PROGRAM, TAKES, TENSORGRAFT_AUTOLOAD="1")
    first = installed.order == "other graft"  # they have it before anybody asks us
    assert lines[1] == ("other 2.0" if first else "graft 2.0")
    assert (lines[2] == "2.0") is not first
