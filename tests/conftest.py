"""What all tests share: JAX on the CPU (or where `--platform` says), programs on PyTorch uncompiled, repeatable
hypothesis runs, the options of the conformance run."""

import gc
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TENSORGRAFT_TORCH_COMPILER", "none")  # Inductor takes seconds for each program
os.environ.setdefault("TENSORGRAFT_CACHE", "0")  # what is tested is compiled here and now
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # TensorFlow's default where the CPU has AVX512
import pytest
from benchmarks import platforms
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("repeatable")


SALT = os.environ.get("TENSORGRAFT_SAMPLE", "")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "PyTorch's own databases on every backend (tests/conformance)")
    group.addoption("--conformance", choices=["sample", "full"], default="sample", help="how many of the cases")
    group.addoption("--of-thousand", type=int, help="how many of a thousand cases are in the sample")
    group.addoption("--backends", default="jax,numpy,torch,tensorflow", help="on which backends")
    group.addoption("--modes", default="", help="these modes alone (forward,backward,...)")
    group.addoption("--dtypes", default="", help="these dtypes alone")
    group.addoption("--samples", type=int, default=3, help="samples of each operator")
    parser.addoption("--platform", choices=platforms.JAX_PLATFORMS, help="where JAX computes; by default on the CPU")
    parser.addoption("--slow", action="store_true", help="those marked slow, too (make test-all)")
    group.addoption("--cpu-limit", type=int, default=120, help="seconds of CPU time for a case")


def pytest_configure(config: pytest.Config) -> None:
    if platforms.choose(config.getoption("--platform")) == "cpu":
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + platforms.quick_flags()
    if not hasattr(config, "workerinput"):  # where the reports of all processes arrive
        from tests.conformance.collector import Collector

        config.pluginmanager.register(Collector(config))


@pytest.hookimpl(trylast=True)  # after -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    tables: dict[tuple[Path, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if _is_slow(item):
            item.add_marker(pytest.mark.skip(reason="slow: make test-all"))
        elif item.get_closest_marker("sampled") is not None and isinstance(item, pytest.Function):
            tables[item.path, item.nodeid.partition("[")[0]].append(item)
    left_out = [item for table in tables.values() for item in _beside_the_sample(table)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        dropped = set(left_out)
        items[:] = [item for item in items if item not in dropped]


def _is_slow(item: pytest.Item) -> bool:
    ids = item.callspec._idlist if hasattr(item, "callspec") else ()
    with_these = [name for marker in item.iter_markers("slow_with") for name in marker.args]
    return item.get_closest_marker("slow") is not None or not set(ids).isdisjoint(with_these)


def _values(case: pytest.Function) -> list[Any]:
    """What parametrizes a case: its ids or, where they stand for several parameters each, the parameters."""
    marker = case.get_closest_marker("sampled")
    if marker is None or not marker.kwargs.get("by_parameters"):
        return list(case.callspec._idlist)
    return [repr(v) if isinstance(v, (str, int, tuple)) else id(v) for v in case.callspec.params.values()]


def _beside_the_sample(table: list[pytest.Function]) -> list[pytest.Function]:
    """The cases of a test that say nothing new: each value of each parameter is in a case before them, in an order
    that is the same everywhere and mixes the parameters. The variable TENSORGRAFT_SAMPLE mixes them otherwise."""
    beside, known = [], set[tuple[int, Any]]()
    for case in sorted(table, key=lambda case: zlib.crc32(f"{SALT}{case.name}".encode())):
        values = set(enumerate(_values(case))) if hasattr(case, "callspec") else set()
        if values <= known and known:
            beside.append(case)
        known |= values
    return beside


def pytest_collection_finish() -> None:
    gc.set_threshold(700, 10, 100)
    _spared()


@pytest.fixture(autouse=True, scope="module")
def _collector() -> Iterator[None]:
    """Collections of garbage, and whoever looks through all objects, go through what the module's tests make; not
    through thousands of tests, four frameworks and all programs compiled before, which takes seconds each time."""
    yield
    _spared()


def _spared() -> None:
    gc.collect()
    gc.freeze()


_OF_BACKENDS = tuple(str(Path(__file__).parent / folder) + os.sep for folder in ("backends", "hub"))


@pytest.fixture(autouse=True)
def _current_device() -> Iterator[None]:
    """What a test makes the current device is so for that test."""
    name = "tensorgraft.frontends.torch.core.devices"
    before = sys.modules[name].current_index() if name in sys.modules else 0
    yield
    if name in sys.modules and sys.modules[name].current_index() != before:
        sys.modules[name].set_current_index(before)


@pytest.fixture(autouse=True)
def _eager(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests run in the default mode, tiered; those of the backends, and those marked `compiled`, are of what JAX itself
    computes."""
    if not str(request.node.path).startswith(_OF_BACKENDS) and request.node.get_closest_marker("compiled") is None:
        yield
        return
    from tensorgraft.hub import tiers

    with tiers.eager("compiled"):
        yield
