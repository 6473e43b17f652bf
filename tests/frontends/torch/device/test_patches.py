"""The table of changes to PyTorch is all of them, and each is made when it says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tensorgraft as tg
from tensorgraft.frontends.torch_entry import patching

PROGRAM = Path(__file__).with_name("changed_names.py")


@pytest.fixture(scope="module")
def changed():
    """What differs in PyTorch after `import torch`, after the first use of the device; what the table names."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    env["TENSORGRAFT_BACKEND"] = "numpy"
    done = subprocess.run([sys.executable, "-W", "ignore", PROGRAM], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return {when: set(names) for when, names in json.loads(done.stdout.splitlines()[-1]).items()}


def test_at_import(changed):
    assert changed["import"] <= changed["table at import"]
    assert "torch.jit.load" in changed["import"] and "torch.cond" not in changed["import"]


def test_after_the_first_use(changed):
    assert changed["use"] <= changed["table"]
    assert {"torch.cond", "torch.Tensor.data_ptr", "torch.storage.UntypedStorage.copy_"} <= changed["use"]


def test_after_another_index(changed):
    assert changed["index"] - changed["use"] == {"torch.tensor", "torch.as_tensor", "torch.asarray", "torch.Tensor.to"}
    assert changed["index 0 again"] == changed["use"]


def test_names():
    """Each row names what there is, and says why."""
    for patch in tg.torch.patches():
        assert patch.why and patch.since and patch.at in ("import", "use", "compile", "checkpoint", "index"), patch
        if not patch.registers:
            owner, name = patching.located(patch.name)
            assert hasattr(owner, name) or not patch.applied, patch


def test_applied():
    """What waited for the first use is gone, and what comes then is there."""
    for patch in tg.torch.patches():
        if patch.waits:
            assert not patch.applied, patch
        elif patch.at in ("import", "use") and hasattr(*patching.located(patch.name)):
            assert patch.applied, patch
    assert not next(p for p in tg.torch.patches() if p.name == "torch.tensor").applied


def test_what_somebody_has_wrapped_stays(monkeypatch):
    """A function around ours is not lost when ours goes."""
    row = patching.Patch("torch.typename", "dispatch.fallback.set_fallback", "", at="index")
    original = torch.typename
    changes = [(torch, "typename", original, ours := lambda x: original(x))]
    monkeypatch.setitem(patching._applied, row, changes)
    monkeypatch.setattr(torch, "typename", theirs := lambda x: ours(x))
    patching.undo([row])
    assert torch.typename is theirs and not row.applied


def test_a_change_whose_module_imports_what_is_off_is_left_out(monkeypatch):
    def off(row):
        raise tg.MissingNameError("said before")

    monkeypatch.setattr(patching, "_replacement", off)
    for registers in (False, True):
        row = patching.Patch("torch.nn.Module.half", "setup.there_is_none", "a test", registers=registers)
        patching.apply([row])
        assert not row.applied


def test_documentation(capsys):
    text = (Path(__file__).parents[4] / "docs" / "differences.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(program, "differences.md", "exec"), {})
    assert "use torch.Tensor.nbytes - the bytes that codes and scales really take (in force)" in capsys.readouterr().out
