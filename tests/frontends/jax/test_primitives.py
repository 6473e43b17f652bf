"""Every primitive of JAX, Equinox and Lineax has a rule, is a call, is taken apart by its own Python lowering or
implementation, or has a reason. A new version of JAX that adds one makes this test fail."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import equinox  # noqa: F401  (its primitives are looked for)
import jax
import jax._src
import jax.extend.core.primitives as public
import lineax  # noqa: F401
import pytest
from jax._src.core import Primitive
from jax._src.interpreters import mlir

from tensorgraft.frontends.jax import decomposition, evaluate, releases
from tensorgraft.frontends.jax.rule import REASONS, RULES

# Kernels have a language of their own; the others are tools around JAX.
_NOT_JAX = (
    "pallas",
    "thunky",
    "mosaic",
    "tpu",
    "test_",
    "internal_test",
    "tools",
    "debugger",
    "custom_api",
    "profiler",
)


def _primitives() -> dict[str, Primitive]:
    for module in pkgutil.walk_packages(jax._src.__path__, "jax._src."):
        if not any(part in module.name for part in _NOT_JAX):
            try:
                importlib.import_module(module.name)
            except ImportError:  # what needs a library or a device that is not here
                continue
    found = {p.name: p for p in vars(public).values() if isinstance(p, Primitive)}
    kernels = set()
    for name, module in list(sys.modules.items()):
        if name.startswith(("jax._src", "equinox", "lineax")):
            named = {p.name: p for p in list(vars(module).values()) if isinstance(p, Primitive)}
            if any(part in name for part in _NOT_JAX):
                kernels |= set(named.values())
            else:
                found.update(named)
        elif name.startswith("jax.experimental.sparse"):  # whose arrays are taken apart into ordinary ones
            kernels |= {p for p in list(vars(module).values()) if isinstance(p, Primitive)}
    lowered = {*mlir._lowerings, *mlir._platform_specific_lowerings.get("cpu", {})}
    return {p.name: p for p in lowered - kernels} | found


def _is_taken_apart(primitive: Primitive) -> bool:
    """It has a lowering in Python, or an implementation that is not XLA's."""
    impl = getattr(primitive, "impl", None)
    by_xla = "apply_primitive" in repr(impl) or getattr(impl, "__func__", None) is Primitive.impl
    functions = decomposition._lowering(primitive), releases.expansion(primitive)
    return any(f is not None for f in functions) or not by_xla


def test_every_primitive_is_accounted_for() -> None:
    known = {*RULES, *REASONS, *releases.CALLS}
    assert [name for name, p in sorted(_primitives().items()) if name not in known and not _is_taken_apart(p)] == []


def test_a_primitive_has_a_rule_or_a_reason() -> None:
    assert set(RULES).isdisjoint(REASONS)
    assert set(releases.CALLS).isdisjoint(RULES)


def test_error_says_why() -> None:
    closed = jax.make_jaxpr(lambda x: jax.lax.all_gather(x, "i"), axis_env=[("i", 2)])(1.0)
    with pytest.raises(
        evaluate.UnsupportedPrimitiveError, match=r"all_gather.* has no rule here: communication between"
    ):
        evaluate.plan(closed)
