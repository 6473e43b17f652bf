"""The state of autocast: the region that a thread is in, and the policy that holds where the program names none."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.straight_line import StraightLine
from tensorgraft.precision.policies import DEFAULT_DTYPES, POLICIES

F = TypeVar("F", bound=Callable[..., Any])

SUPPORTED = (dtypes.bfloat16, dtypes.float16)


@dataclass(frozen=True)
class Region:
    """The settings of an autocast region. Hashable, as a part of the keys of compiled programs."""

    policy: str
    dtype: np.dtype  # the dtype of kind `lower_precision_fp`
    enabled: bool = True
    cache_enabled: bool | None = None  # for front ends that keep the casts of weights; None: as outside


class _Thread(threading.local):
    def __init__(self) -> None:
        self.regions: list[tuple[Region, contextlib.ExitStack]] = []  # the innermost last
        self.policies: list[str] = []  # those that regions name, the innermost last


_now = _Thread()
_lock = threading.Lock()
_default = "cuda"
_named: Counter[str] = Counter()  # policies that regions of any thread name

# A front end with an autocast of its own enters it with ours: region -> context.
followers: list[Callable[[Region], contextlib.AbstractContextManager[Any]]] = []
# Called with the policies that are used from now on, and whether others no longer are.
on_policies: list[Callable[[frozenset[str], bool], None]] = []


def current() -> Region | None:
    """Return the innermost enabled region that this thread is in; None outside, and in a disabled one. Raises
    nothing."""
    region = _now.regions[-1][0] if _now.regions else None
    return region if region is not None and region.enabled else None


def policy() -> str:
    """Return the name of the policy that holds in this thread. Raises nothing."""
    named = _now.policies
    return named[-1] if named else _default


def write_policy(code: StraightLine) -> None:
    """Write that the policy is the one that holds now."""
    if _now.policies:
        code.require(f"{code.name(policy)}() == {policy()!r}")
    else:
        code.require(f"not {code.name(_now)}.policies and {code.name(globals())}['_default'] == {_default!r}")


def policies_in_use() -> frozenset[str]:
    """Return the default policy, and those that regions of any thread name."""
    return frozenset({_default, *_named})


def _checked(name: str) -> str:
    if name not in POLICIES:
        raise ValueError(f"unknown autocast policy {name!r}: expected one of {', '.join(map(repr, POLICIES))}")
    return name


def _announce(*, only_new: bool) -> None:
    for callback in on_policies:
        callback(policies_in_use(), only_new)


def _set_default(name: str) -> None:
    global _default
    with _lock:
        _default = name
        _announce(only_new=True)


class autocast_policy:
    """The table that autocast follows: `"cuda"` (the default), `"cpu"` or `"xla"`, those of PyTorch's devices.

    `tg.autocast_policy(name)` holds for the whole process from then on, `with tg.autocast_policy(name):` until the end
    of the block. `tg.autocast(policy=name)` names one for a region of one thread. Raises ValueError for another name.
    """

    def __init__(self, name: str) -> None:
        self.before, self.name = _default, _checked(name)
        _set_default(name)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *exception: object) -> None:
        _set_default(self.before)


class autocast:
    """A region of mixed precision, as a context or a decorator: products are computed in `dtype`, and operations that
    need more range in float32.

    On PyTorch's device `graft` this is `torch.autocast("graft", ...)` (where PyTorch was imported before the region was
    entered), by the table of the policy; `precision.autocasting(xp)` is a backend of the hub under it. Functions of
    `tensorgraft.array_api` keep the standard's dtypes, and are not cast. Regions nest,
    `enabled=False` makes an island in which nothing is cast, and each thread has its own.

    Arguments:
        dtype: bfloat16 or float16, as a name or any framework's dtype; by default that of the region around this one,
            or else the policy's ("cuda": float16, "cpu" and "xla": bfloat16). Another dtype warns, and disables.
        policy: "cuda", "cpu" or "xla"; by default that of `tg.autocast_policy`.
        enabled: whether operations are cast.
        cache_enabled: whether a weight is cast once for all its uses; by default as in the region around this one.

    Raises:
        ValueError: for an unknown policy.
        TypeError: for an invalid dtype.

    >>> import tensorgraft as tg, torch
    >>> x = torch.ones(2, 2, device=tg.device("numpy"))
    >>> with tg.autocast("bfloat16"):
    ...     (x @ x).dtype
    torch.bfloat16
    """

    def __init__(
        self, dtype: Any = None, *, policy: str | None = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        self.policy = None if policy is None else _checked(policy)
        self.dtype = None if dtype is None else _as_dtype(dtype)
        self.enabled, self.cache_enabled = enabled, cache_enabled
        if enabled and self.dtype is not None and self.dtype not in SUPPORTED:
            warnings.warn(
                "In tensorgraft autocast, but the target dtype is not supported. Disabling autocast.\n"
                f"tensorgraft autocast only supports dtypes of {', '.join(map(str, SUPPORTED))} currently.",
                stacklevel=2,
            )
            self.enabled, self.dtype = False, None

    def __enter__(self) -> Region:
        name = self.policy or policy()
        outer_region = _now.regions[-1][0] if _now.regions else None
        dtype = self.dtype or (outer_region.dtype if outer_region else np.dtype(getattr(dtypes, DEFAULT_DTYPES[name])))
        region = Region(name, dtype, self.enabled, self.cache_enabled)
        with contextlib.ExitStack() as stack:
            if self.policy is not None:
                _name(name)
                stack.callback(_unname, name)
            for follow in followers:
                stack.enter_context(follow(region))
            _now.regions.append((region, stack.pop_all()))
        return region

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _, stack = _now.regions.pop()
        stack.__exit__(kind, error, traceback)

    def __call__(self, fn: F) -> F:
        if not callable(fn):
            raise TypeError(f"tg.autocast(...)(fn) expects a function, got a {type(fn).__qualname__}")

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return run  # type: ignore[return-value]


def _name(name: str) -> None:
    with _lock:
        _now.policies.append(name)
        _named[name] += 1
        if _named[name] == 1:
            _announce(only_new=False)


def _unname(name: str) -> None:
    with _lock:
        _now.policies.pop()
        _named[name] -= 1
        if not _named[name]:
            del _named[name]


def _as_dtype(dtype: Any) -> np.dtype:
    try:
        if type(dtype).__module__ == "torch":
            return np.dtype(str(dtype).removeprefix("torch."))
        resolved = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))  # TensorFlow's name for it
    except TypeError:
        resolved = None
    if resolved is None or resolved.kind == "O":
        raise TypeError(
            f"tg.autocast expects a dtype (bfloat16, float16), got {dtype!r}; as a decorator it needs parentheses,"
            " @tg.autocast()"
        )
    return resolved
