"""What all tests share: JAX on the CPU, programs on PyTorch uncompiled, repeatable hypothesis runs, the options of the
conformance run."""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TENSORGRAFT_TORCH_COMPILER", "none")  # Inductor takes seconds for each program
os.environ.setdefault("TENSORGRAFT_CACHE", "0")  # what is tested is compiled here and now
# XLA's optimisations are not what is tested; compiling is the time
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "PyTorch's own databases on every backend (tests/conformance)")
    group.addoption("--conformance", choices=["sample", "full"], default="sample", help="how many of the cases")
    group.addoption("--of-thousand", type=int, help="how many of a thousand cases are in the sample")
    group.addoption("--backends", default="jax,numpy,torch,tensorflow", help="on which backends")
    group.addoption("--modes", default="", help="these modes alone (forward,backward,...)")
    group.addoption("--dtypes", default="", help="these dtypes alone")
    group.addoption("--samples", type=int, default=3, help="samples of each operator")
    parser.addoption("--slow", action="store_true", help="those marked slow, too (make test-all)")
    group.addoption("--cpu-limit", type=int, default=120, help="seconds of CPU time for a case")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # where the reports of all processes arrive
        from tests.conformance.collector import Collector

        config.pluginmanager.register(Collector(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow") is not None:
                item.add_marker(pytest.mark.skip(reason="slow: make test-all"))


_OF_BACKENDS = tuple(str(Path(__file__).parent / folder) + os.sep for folder in ("backends", "hub"))


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
