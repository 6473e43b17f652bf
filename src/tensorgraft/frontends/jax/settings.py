"""Settings of JAX (`jax.config`, and its context managers): a part of the key of every trace of a JAX function.

They are the settings in the key of JAX's own traces, and those of random keys: JAX's `jit` keeps the latter from the
first call, while uncompiled code uses those of the call. The settings of a trace are restored when JAX differentiates
it, and when the rules of its primitives run later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax._src import config

from tensorgraft.errors import TracedValueError
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.settings import register

_of_traces = config.trace_context  # JAX's key of traces, of 46 values: takes 0.2 us
_implementation, _typed, _legacy = jax.default_prng_impl, jax.enable_custom_prng, jax.legacy_prng_key


def settings() -> tuple[Any, ...]:
    """Return a value that equals another one where no setting that a trace depends on differs."""
    return _of_traces(), _implementation.value, _typed.value, _legacy.value


_ASKED = (  # settings that have context managers
    *("enable_x64", "numpy_dtype_promotion", "numpy_rank_promotion", "default_matmul_precision"),
    *(
        "threefry_partitionable",
        "default_prng_impl",
        "enable_custom_prng",
        "legacy_prng_key",
        "softmax_custom_jvp",
        "allow_f16_reductions",
    ),
)
_CONTEXTS = [name for name in _ASKED if hasattr(jax, name)]


def _current(name: str) -> Any:
    return getattr(jax.config, f"jax_{name}")


register(settings, settings(), lambda: {f"jax_{name}": _current(name) for name in _CONTEXTS})


class JaxSettings:
    """The settings in force when it is made."""

    def __init__(self) -> None:
        self._key = settings()
        self._values = {name: _current(name) for name in _CONTEXTS}

    @contextlib.contextmanager
    def restored(self, but: str = "") -> Iterator[None]:
        """Return a context in which they are in force again, `but` one of them."""
        if settings() == self._key:
            yield
            return
        with contextlib.ExitStack() as stack:
            for name, value in self._values.items():
                if name != but and _current(name) != value:
                    stack.enter_context(getattr(jax, name)(value))
            yield


def checks() -> bool:
    """Return True if results are to be checked for values that `jax_debug_nans` and `jax_debug_infs` forbid."""
    return bool(_current("debug_nans") or _current("debug_infs"))


def check(xp: Backend, arrays: Sequence[Any]) -> None:
    """Raise FloatingPointError, as JAX does, where a result has a NaN (`jax_debug_nans`) or an infinity
    (`jax_debug_infs`), and TracedValueError where it has no value yet."""
    for is_one, word in ((xp.isnan, "nan"), (xp.isinf, "inf")):
        for x in arrays if _current(f"debug_{word}s") else ():
            if not dtypes.is_inexact(xp.dtype_of(x)):
                continue
            if xp.is_traced(x) or xp.in_trace():
                raise TracedValueError(
                    f"jax_debug_{word}s is on, but a grafted JAX function is called while {xp.name} traces, when"
                    " its results have no values to check. Call it outside of the traced function, or switch the"
                    " setting off"
                )
            with xp.scope():
                if bool(xp.to_numpy(xp.any(is_one(x)))):
                    raise FloatingPointError(f"invalid value ({word}) encountered in a grafted JAX function")
