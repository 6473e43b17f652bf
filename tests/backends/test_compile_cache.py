"""Compiled programs are kept from process to process, where that is possible and nobody has said otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import tensorgraft as tg
from tensorgraft.hub import compile_cache, registry

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
import numpy as np
from jax import monitoring
import jax
events = []
monitoring.register_event_listener(lambda name, **_: events.append(name))
from tensorgraft.backends.jax import JaxBackend
xp = JaxBackend()
program = xp.compile(lambda x: (xp.add(xp.matmul(x, x), x),), donate=(0,))
with xp.scope():
    x = xp.asarray(np.ones((3, 3), np.float32))
assert program(x)[0].tolist() == [[4.0] * 3] * 3 and x.is_deleted()
print(sum(e.endswith("/cache_hits") for e in events), jax.config.jax_compilation_cache_dir)
"""


def start(**environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TENSORGRAFT", "JAX_"))}
    env = {**kept, "PYTHONPATH": str(SOURCE), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process):
    """(how many programs came from the cache, its directory)"""
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    hits, _, where = out.strip().partition(" ")
    return int(hits), where


def test_a_second_process_compiles_nothing(tmp_path):
    base = tmp_path / "cache"
    for process in [start(XDG_CACHE_HOME=str(base)), start(XDG_CACHE_HOME=str(base))]:  # at the same time
        assert Path(said(process)[1]).parent == base / "tensorgraft"
    files, size = compile_cache.contents(base)
    assert files and size
    moved = {"TENSORGRAFT_CACHE_DIR": str(base / "tensorgraft")}
    hits, _ = said(start(**moved))
    assert hits and (files, size) == compile_cache.contents(base)
    assert oct((base / "tensorgraft").stat().st_mode)[-3:] == "700"


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        ({"TENSORGRAFT_CACHE": "0"}, "None"),
        ({"HOME": "/proc/nobody", "XDG_CACHE_HOME": ""}, "None"),  # nothing can be made there
        ({"JAX_COMPILATION_CACHE_DIR": "{tmp}"}, "{tmp}"),  # the user's own
    ],
    ids=["off", "no home", "the user's"],
)
def test_where_nothing_of_ours_is_kept(environment, where, tmp_path):
    environment = {name: value.replace("{tmp}", str(tmp_path)) for name, value in environment.items()}
    assert said(start(**environment))[1] == where.replace("{tmp}", str(tmp_path))


def test_set_compile_cache(tmp_path, monkeypatch):
    registry.get("jax")
    monkeypatch.setattr(compile_cache, "_off", compile_cache._off)
    monkeypatch.setattr(compile_cache, "_chosen", compile_cache._chosen)
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    tg.set_compile_cache(tmp_path / "there")
    assert Path(jax.config.jax_compilation_cache_dir).parent == tmp_path / "there"
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.0
    tg.set_compile_cache(None)
    assert jax.config.jax_compilation_cache_dir is None
    assert jax.config.jax_persistent_cache_min_compile_time_secs == before


def test_the_oldest_go_first(tmp_path):
    for age in range(8):
        file = tmp_path / "kind" / f"{age}-cache"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(100))
        os.utime(file, (1000 - age, 1000 - age))
    compile_cache.prune(tmp_path, limit=800)
    assert compile_cache.contents(tmp_path) == (8, 800)
    compile_cache.prune(tmp_path, limit=400)
    assert sorted(f.name for f in (tmp_path / "kind").iterdir()) == ["0-cache", "1-cache", "2-cache"]
