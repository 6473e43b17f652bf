"""`tensorgraft doctor` says what is there, and does not fail where something is not."""

import sys

import pytest
from tests.cli.conftest import SOURCE

from tensorgraft.cli import doctor
from tensorgraft.hub import registry


def test_lists_backends_and_versions(tensorgraft):
    import jax
    import numpy

    result = tensorgraft("doctor", COLUMNS="200")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"numpy {numpy.__version__}" in result.stdout and f"jax {jax.__version__}" in result.stdout
    assert "torch " in result.stdout
    for front_end in ("PyTorch", "JAX", "Array API"):
        assert f"│ {front_end} " in result.stdout
    assert "compiled programs: not kept" in result.stdout


def test_tells_where_compiled_programs_are_kept(tensorgraft, tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "one-cache").write_bytes(bytes(1 << 20))
    shown = tensorgraft("doctor", TENSORGRAFT_CACHE="1", TENSORGRAFT_CACHE_DIR=str(folder)).stdout
    assert f"compiled programs: 1 files, 1.0 MiB of 2,048 MiB in {folder}" in shown


def test_native_kernels_without_a_compiler(tensorgraft, tmp_path):
    pytest.importorskip("torch")
    nothing = {"PATH": str(tmp_path), "CXX": "no-compiler", "TENSORGRAFT_CACHE_DIR": str(tmp_path / "kept")}
    result = tensorgraft("doctor", "--build", **nothing)
    assert result.returncode == 2 and "--build: the native kernels need" in " ".join(result.stderr.split())
    assert "native kernels: not built" in tensorgraft("doctor", **nothing).stdout


def test_missing_and_broken_backends_are_rows(monkeypatch, capsys):
    known = {
        "absent": registry.BackendInfo("absent", "absent:Backend", "absent_framework", False),
        "broken": registry.BackendInfo("broken", "tensorgraft_no_such_module:Backend", "numpy", True),
    }
    monkeypatch.setattr(registry, "known", lambda: known)
    monkeypatch.setenv("COLUMNS", "200")
    doctor.print_report()
    shown = capsys.readouterr().out
    assert 'pip install "tensorgraft[absent]"' in shown
    assert "does not work: ModuleNotFoundError: No module named 'tensorgraft_no_such_module'" in shown


def test_devices_are_asked_in_processes(monkeypatch, capsys):
    known = {
        "numpy": registry.BackendInfo("numpy", registry.BUILT_IN["numpy"][0], "numpy", True),
        "broken": registry.BackendInfo("broken", "tensorgraft.no_such_module:Backend", "numpy", True),
    }
    monkeypatch.setattr(registry, "known", lambda: known)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    doctor.print_report(devices=True)
    shown = capsys.readouterr().out
    assert "numpy  CPU" in shown
    assert "does not work: ModuleNotFoundError: No module named 'tensorgraft.no_such_module'" in shown


def test_a_framework_that_is_too_old_says_so(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "version", lambda package: "2.1.0" if package == "torch" else "99.0")
    monkeypatch.setenv("COLUMNS", "200")
    doctor.print_report()
    shown = capsys.readouterr().out
    assert "torch 2.1.0, needs 2.10" in shown and 'pip install "tensorgraft[torch]"' in shown and "jax 99.0 " in shown


@pytest.mark.parametrize("command", [("--help",), ("--version",), ("run", "--help"), ("doctor",), ("run", "no.py")])
def test_help_imports_no_framework(python, command):
    code = (
        "import sys; from tensorgraft.cli import main; sys.argv[1:] = sys.argv[2:]\n"
        "try: main()\n"
        "except SystemExit: print([m for m in ('torch', 'jax', 'tensorflow') if m in sys.modules])"
    )
    result = python("-c", code, "-", *command)
    assert result.stdout.splitlines()[-1] == "[]", sys.version
