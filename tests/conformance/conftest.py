"""The conformance run as pytest cases: parametrisation, limits of CPU time and memory, known failures."""

from __future__ import annotations

import gc
import resource
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.testing._internal.common_utils
import torch.testing._internal.opinfo.core
from tests.conformance import cases

import tensorgraft as tg

# importing PyTorch's own test utilities forbids every other test in the process to set flags of backends
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

MEMORY = 3 << 30  # of a process, in bytes, at which compiled programs are dropped
STEP = 1 << 30  # and again when it has grown by so much: what allocators keep is not given back
_before: pytest.StashKey[Counter[str]] = pytest.StashKey()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    modes, dtypes = (set(filter(None, option(name).split(","))) for name in ("--modes", "--dtypes"))
    marked = []
    for backend in option("--backends").split(","):
        failures = cases.known_failures(backend)
        for case in metafunc.module.CASES(backend):
            if (modes and case.mode not in modes) or (dtypes and case.dtype not in dtypes):
                continue
            if option("--conformance") == "sample" and not case.in_sample(option("--of-thousand")):
                continue
            reason = cases.known(case.key, failures)
            marks: list[Any] = [pytest.mark.compiled]
            marks += [pytest.mark.xfail(reason=reason)] if reason else []
            marked.append(pytest.param(case, id=f"{case.mode}-{case.dtype}-{case.name}-{backend}", marks=marks))
    metafunc.parametrize("case", marked)


@pytest.fixture(autouse=True, scope="module")
def untraced() -> Iterator[None]:
    """PyTorch seeds for each sample, each time keeping a formatted stack for three absent devices, and reads
    the source of every frame for each list of samples. That took more than half of the time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (torch.cuda.random, torch.xpu.random, torch.mtia):
            patch.setattr(module, "_lazy_call", lambda call, **options: None, raising=False)
        for module in (torch.testing._internal.common_utils, torch.testing._internal.opinfo.core):
            patch.setattr(module, "extract_test_fn", lambda: None)  # that of a unittest, which there is none of
        yield


@pytest.fixture
def device(case: cases.Case) -> torch.device:
    return tg.device(case.backend)


@pytest.fixture
def samples(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--samples")


@pytest.fixture(autouse=True)
def limited(request: pytest.FixtureRequest) -> Iterator[None]:
    """A limit in CPU time, so that a busy machine makes no failures; and one of memory between cases."""
    limit = request.config.getoption("--cpu-limit")

    def over(signum: int, frame: Any) -> None:
        raise TimeoutError(f"more than {limit} s of CPU time")

    request.node.stash[_before] = Counter(tg.torch.fallbacks())
    handler = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
    if _resident() > _limit[0]:
        _drop_programs()
        _limit[0] = max(MEMORY, _resident() + STEP)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A case in which an operator ran on the CPU without a reason in `known/fallbacks.toml` fails."""
    result = yield
    if _before in pyfuncitem.stash:
        fell = Counter(tg.torch.fallbacks()) - pyfuncitem.stash[_before]
        unexplained = sorted(set(fell) - set(cases.fallback_reasons()))
        assert not unexplained, f"ran on the CPU: {', '.join(unexplained)}"
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say in the report which case it is, and what ran on the CPU in it."""
    report = yield
    case = getattr(item, "callspec", None) and item.callspec.params.get("case")
    if isinstance(case, cases.Case):  # a file without cases has one that stands for nothing
        fell = sorted(Counter(tg.torch.fallbacks()) - item.stash.get(_before, Counter()))
        report.user_properties.append(("conformance", [case.backend, case.key, fell]))
    return report


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


_limit = [MEMORY]


def _drop_programs() -> None:
    import jax

    from tensorgraft.frontends.torch.core.operator import all_plans

    for plans in all_plans:
        plans.clear()
    jax.clear_caches()
    gc.unfreeze()
    gc.collect()
    gc.freeze()
