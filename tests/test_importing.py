"""Libraries that are loaded in an order of ours."""

import os
import sys
import types

import pytest

from tensorgraft.importing import load_triton


@pytest.fixture
def triton(monkeypatch, tmp_path):
    """A Triton whose library notes the flags it is loaded with."""
    names = "triton", "triton._C", "triton._C.libtriton"
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "triton" / "_C").mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").touch()
    (tmp_path / "triton" / "_C" / "libtriton.py").write_text("import sys\nFLAGS = sys.getdlopenflags()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's wheels are Linux's")
@pytest.mark.parametrize("first", [True, False], ids=["before TensorFlow", "after TensorFlow"])
def test_triton_is_loaded_apart_from_tensorflow(triton, monkeypatch, first):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    if not first:
        monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    flags = sys.getdlopenflags()
    load_triton()
    assert (flags if first else flags | os.RTLD_DEEPBIND) == sys.modules["triton._C.libtriton"].FLAGS
    assert sys.getdlopenflags() == flags


def test_without_triton_nothing_is_loaded(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    before = set(sys.modules)
    load_triton()
    assert not {name for name in set(sys.modules) - before if name.startswith("triton")}
