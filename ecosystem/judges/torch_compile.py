"""PyTorch's tests of `torch.compile`, with `tg.jit` in its place and the backend as the default device.

Values, effects and errors are compared as the tests do. How often and how much was compiled is not: what counts that is
equal to any number. Natively nothing is replaced but names that later releases' test tools have no more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from ecosystem.judges.pytorch import TOOLS, complete


class AnyNumber(int):
    """A count of compilations, which is equal to what a test expects."""

    def _yes(self, other: object) -> bool:
        return True

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _yes  # type: ignore[assignment]

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0

    def _self(self, other: object) -> AnyNumber:
        return self

    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = _self  # type: ignore[assignment]


class Counter:
    """Stand in for PyTorch's counters of compiled frames and operators."""

    frame_count = property(lambda self: AnyNumber(1), lambda self, value: None)
    op_count = property(lambda self: AnyNumber(1), lambda self, value: None)
    graphs: tuple[Any, ...] = ()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def clear(self) -> None:
        pass


def pytest_configure(config: pytest.Config) -> None:
    complete("torch._dynamo.testing", *TOOLS)
    if backend := config.getoption("--suite-on"):
        import tensorgraft as tg

        config.option.suite_device = str(tg.device(backend))  # functions of CPU tensors go by torch.compile itself
        _replace((lambda function: function) if config.getoption("--suite-plain") else tg.jit)
        _count_nothing()


def _replace(compiled: Callable[[Any], Any]) -> None:
    import torch

    real_compile, real_optimize = torch.compile, torch._dynamo.optimize

    def compile_(function: Any = None, *arguments: Any, **options: Any) -> Any:
        if _own(sys._getframe(1)):
            return real_compile(function, *arguments, **options)
        if function is None:
            return compile_
        return function if isinstance(function, type) else compiled(function)

    def optimize(*arguments: Any, **options: Any) -> Any:
        return real_optimize(*arguments, **options) if _own(sys._getframe(1)) else compile_

    torch.compile = compile_
    torch._dynamo.optimize = torch._dynamo.optimize_assert = torch._dynamo.testing.optimize_assert = optimize
    torch.nn.Module.compile = lambda self, *arguments, **options: None  # type: ignore[method-assign]


def _own(caller: FrameType) -> bool:
    """Say whether it is not the test that asks: this library, or a part of PyTorch that compiles for itself."""
    name = str(caller.f_globals["__name__"])
    return name.partition(".")[0] in ("tensorgraft", "torch") and "testing" not in name


def _count_nothing() -> None:
    from torch._dynamo import testing
    from torch.testing._internal import common_utils

    for name in ("CompileCounter", "CompileCounterWithBackend", "EagerAndRecordGraphs"):
        setattr(testing, name, Counter)
    case: Any = common_utils.TestCase
    equal = case.assertEqual

    def assert_equal(self: Any, x: Any, y: Any = None, *arguments: Any, **options: Any) -> None:
        if not isinstance(x, AnyNumber) and not isinstance(y, AnyNumber):
            equal(self, x, y, *arguments, **options)

    case.assertEqual = assert_equal
