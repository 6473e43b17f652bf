"""A sample of the frameworks' own tests (`make ecosystem`), and the plugins that put this library in its place."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from ecosystem import plugin, sources, suites
from ecosystem.judges import jax as jax_judge
from ecosystem.judges import torch_compile

import tensorgraft as tg

SLOW = pytest.mark.slow
SAMPLES = [
    ("pytorch", "jax", r"test_indexing\.py::TestIndexingCPU", 8),
    ("torch_compile", "jax", r"test_functions\.py::FunctionTests", 40),
    ("jax", "numpy", r"/lax_numpy_reducers_test\.py", 40),
    pytest.param("tf2jax", "jax", r"/linalg_ops_test\.py", 20, marks=SLOW),
    pytest.param("torchao", "numpy", r"/test_smoothquant\.py", 4, marks=SLOW),
    pytest.param("keras", "numpy", r"/core/dense_test\.py", 4, marks=SLOW),
]


@pytest.mark.parametrize(("name", "backend", "select", "every"), SAMPLES)
def test_sample(
    name: str, backend: str, select: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = suites.SUITES[name]
    try:
        suites.folder(suite)
    except sources.Unavailable as error:
        pytest.skip(str(error))
    monkeypatch.setattr(suites, "OUT", tmp_path)
    only = tmp_path / "only.txt"
    rows = suites.read(suites.run(suite, None, every=every, select=select))
    only.write_text("\n".join(name for name, row in rows.items() if row["outcome"] == "passed"))
    if suite.compiles:
        only.write_text("\n".join(suites.passed(suites.run(suite, backend, only, name="plain", plain=True))))
    rows = suites.read(suites.run(suite, backend, only))
    assert sum(row["outcome"] == "passed" for row in rows.values()) >= 3
    assert not suites.explained(suite, rows)[1]


def test_words_where_there_are_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ECOSYSTEM_JAX", raising=False)
    with pytest.raises(sources.Unavailable, match=r"set ECOSYSTEM_JAX to a checkout of jax 0\.1"):
        sources.checkout("jax", "0.1")
    monkeypatch.setenv("ECOSYSTEM_JAX", str(tmp_path / "nowhere"))
    with pytest.raises(sources.Unavailable, match=r"there is no folder .*nowhere"):
        sources.checkout("jax", "0.1")
    monkeypatch.setattr(sources, "HOME", tmp_path / "suites")
    monkeypatch.setattr(sources.shutil, "which", lambda name: None)
    with pytest.raises(sources.Unavailable, match="no apt-get"):
        sources.debian("pytorch", "2.6.0")
    assert not list((tmp_path / "suites").iterdir())
    with pytest.raises(sources.Unavailable, match="pip install nothing_of_this_name==1"):
        sources.installed("nothing_of_this_name", "1")


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("test_x.py::TestXPRIVATEUSE1::test_y_graft_float32", "test_x.py::TestXCPU::test_y_cpu_float32"),
        ("test_x.py::TestXGRAFT::test_y_privateuse1", "test_x.py::TestXCPU::test_y_cpu"),
        ("test_x.py::TestX::test_y[cuda:0]", "test_x.py::TestX::test_y[cpu]"),
        ("test_x.py::TestX::test_grafted", "test_x.py::TestX::test_grafted"),
    ],
)
def test_names_without_devices(name: str, plain: str) -> None:
    assert plugin.plain(name) == plain


def test_kinds_of_failures() -> None:
    def value(x: torch.Tensor) -> float:
        return 1.0 if x.sum() > 0 else 0.0

    def own() -> None:
        np.require(1, requirements=["nothing"])

    def kind(function: object, *arguments: object) -> str:
        with pytest.raises(Exception) as error:
            function(*arguments)  # type: ignore[operator]
        return plugin._kind(error)

    assert kind(tg.jit(value), torch.ones(2, device=tg.device("jax"))) == "refused"
    assert kind(np.testing.assert_array_equal, 1, 2) == kind(torch.testing.assert_close, 1, 2) == "wrong"
    assert kind(own) == "crash"


def test_any_number() -> None:
    n = torch_compile.AnyNumber(1)
    assert n == 7 and (n != 7) is False and n >= 7 and n <= 0 and n + 1 == 9
    counter = torch_compile.Counter()
    counter.frame_count = 4
    assert counter.frame_count == 5 and counter.op_count == 6


@pytest.mark.parametrize("backend", ["numpy", "torch", "tensorflow"])
def test_compiled_functions_are_grafted(backend: str) -> None:
    arguments = (np.arange(6, dtype=np.float32).reshape(2, 3), jnp.ones((2, 3), jnp.bfloat16), [np.int32(2)])
    assert jax_judge._compare(lambda x, y, z: (x * y, z[0] + 1), arguments, backend, {})
    assert not jax_judge._compare(lambda x: x, (np.ones(2, ml_dtypes.int4),), "torch", {})
    eager = []

    def changes(x: object) -> object:
        eager.append(x)
        return x + len(eager)  # type: ignore[operator]

    with pytest.raises(Exception, match=r"Not equal to tolerance|keeps an array"):
        jax_judge._compare(changes, (np.ones(3, np.float32),), backend, {})
