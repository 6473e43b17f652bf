"""Derivatives and batches that other frameworks take through grafted functions of JAX, each in its own way, against
JAX's of the same function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
import torch
from tests.fuzz.kinds.jax import Jax, flat, kind, native
from tests.fuzz.program import REFERENCE, Outcome, Program

import tensorgraft as tg

Function = Callable[..., Any]


def weights(x: Any) -> np.ndarray:
    """A cotangent or tangent of `x`, by its shape."""
    shape = tuple(x.shape)
    return ((np.arange(np.prod(shape, dtype=int)) % 5 - 2) / 4 + 0.125).reshape(shape)


def smooth(x: Any) -> bool:
    return hasattr(x, "dtype") and (x.dtype.is_floating if isinstance(x, tf.Tensor) else kind(x) == "f")


def put(given: list[Any], where: list[int], values: Any) -> list[Any]:
    found = list(given)
    for i, x in zip(where, values, strict=True):
        found[i] = x
    return found


def places(given: list[Any]) -> list[int]:
    return [i for i, x in enumerate(given) if isinstance(x, np.ndarray) and kind(x) == "f"]


def batch(x: Any) -> Any:
    """Two of it: itself, and in another order."""
    return np.stack([x, x.ravel()[::-1].reshape(x.shape)]) if isinstance(x, np.ndarray) else x


# ---- JAX's -----------------------------------------------------------------------------------------------------------


def loss(f: Function, given: list[Any], where: list[int]) -> Function:
    def total(*some: Any) -> Any:
        leaves = [x for x in jax.tree.leaves(f(*put(given, where, some))) if smooth(x)]
        return sum(
            (jnp.sum(x.astype(jnp.float32) * jnp.asarray(weights(x), jnp.float32)) for x in leaves), jnp.zeros(())
        )

    return total


def gradients(f: Function, *given: Any) -> dict[str, Any]:
    where = places_in(given)
    found = jax.grad(loss(f, list(given), where), tuple(range(len(where))))(*[given[i] for i in where])
    return {f"g{i}": g for i, g in zip(where, found, strict=True)}


def second(f: Function, *given: Any) -> dict[str, Any]:
    where = places_in(given)

    def along(*some: Any) -> Any:
        found = jax.grad(loss(f, list(given), where), tuple(range(len(where))))(*some)
        return sum(
            (jnp.sum(g.astype(jnp.float32) * jnp.asarray(weights(g), jnp.float32)) for g in found), jnp.zeros(())
        )

    found = jax.grad(along, tuple(range(len(where))))(*[given[i] for i in where])
    return {f"g{i}": g for i, g in zip(where, found, strict=True)}


def tangents(f: Function, *given: Any) -> dict[str, Any]:
    where = places_in(given)

    def values(*some: Any) -> list[Any]:
        return [x for x in jax.tree.leaves(f(*put(list(given), where, some))) if smooth(x)]

    some = [given[i] for i in where]
    found = jax.jvp(values, tuple(some), tuple(jnp.asarray(weights(x), x.dtype) for x in some))[1]
    return {f"t{i}": t for i, t in enumerate(found)}


def batched(f: Function, *given: Any) -> dict[str, Any]:
    axes = [0 if jnp.ndim(x) else None for x in given]  # `batch` leaves numbers alone
    return dict(jax.vmap(f, in_axes=tuple(axes))(*given))


def places_in(given: Any) -> list[int]:
    """Of tracers: numbers are of a weak type."""
    return [i for i, x in enumerate(given) if kind(x) == "f" and not x.weak_type]


WAYS: dict[str, Function] = {"gradients": gradients, "second": second, "tangents": tangents, "batched": batched}


# ---- of the others ---------------------------------------------------------------------------------------------------


def torch_loss(g: Function, tensors: list[Any], where: list[int]) -> Function:
    def total(*some: Any) -> Any:
        leaves = [x for x in jax.tree.leaves(g(*put(tensors, where, some))) if x.dtype.is_floating_point]
        return sum(((x.float() * torch.as_tensor(weights(x)).float()).sum() for x in leaves), torch.zeros(()))

    return total


def tensorflow_loss(g: Function, tensors: list[Any], where: list[int]) -> Function:
    def total(*some: Any) -> Any:
        leaves = [x for x in tf.nest.flatten(g(*put(tensors, where, some))) if smooth(x)]
        return tf.add_n([tf.reduce_sum(tf.cast(x, tf.float32) * tf.constant(weights(x), tf.float32)) for x in leaves])

    return total


def by_tape(total: Function, some: list[Any]) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(some)
        value = total(*some)
    return tape.gradient(value, some, unconnected_gradients="zero")


def by_tapes(total: Function, some: list[Any]) -> Any:
    def along(*some: Any) -> Any:
        found = by_tape(total, list(some))
        return tf.add_n([tf.reduce_sum(tf.cast(g, tf.float32) * tf.constant(weights(g), tf.float32)) for g in found])

    return by_tape(along, some)


def by_autograd(total: Function, some: list[Any], again: bool = False) -> Any:
    some = [x.requires_grad_() for x in some]
    value = total(*some)
    if not value.requires_grad:
        return [torch.zeros_like(x) for x in some]
    found = torch.autograd.grad(value, some, create_graph=again, allow_unused=True, materialize_grads=True)
    if not again:
        return found
    return by_autograd(lambda *_: sum((g.float() * torch.as_tensor(weights(g)).float()).sum() for g in found), some)


class Gradients(Jax):
    name = "gradients"
    shares: ClassVar[dict[str, int]] = {
        "torch gradients": 1,
        "torch func gradients": 4,
        "torch func tangents": 4,
        "torch second": 6,
        "torch func batched": 4,
        "tensorflow gradients": 3,
        "tensorflow second": 12,
        "tensorflow function gradients": 40,
    }
    length = (3, 6)

    def reference(self, subject: str) -> str:
        return f"{REFERENCE} {subject.split()[-1]}"

    def asked(self, program: Program, judge: str) -> tuple[Function, list[Any]]:
        way = judge.split()[-1]
        f, given = self.function(program)
        return derived(f, way), [batch(x) for x in given] if way == "batched" else given

    def on(self, program: Program, subject: str) -> dict[str, list[np.ndarray]]:
        onto, *how, way = subject.split()
        f, given = self.function(program)
        where = places(given)
        tensors = [native(batch(x) if way == "batched" else x, onto) for x in given]
        some = [tensors[i] for i in where]
        g = tg.graft(f, onto=onto)
        if way == "batched":
            axes = tuple([0 if isinstance(x, torch.Tensor) else None for x in tensors])
            return {n: flat(x) for n, x in torch.func.vmap(g, in_dims=axes)(*tensors).items()}
        if way == "tangents":
            along = tuple([torch.as_tensor(weights(x)).to(x.dtype) for x in some])

            def values(*some: Any) -> list[Any]:
                return [x for x in jax.tree.leaves(g(*put(tensors, where, some))) if x.dtype.is_floating_point]

            found = torch.func.jvp(values, tuple(some), along)[1]
            return {f"t{i}": flat(t) for i, t in enumerate(found)}
        if onto == "tensorflow":
            total = tensorflow_loss(g, tensors, where)
            derive = by_tapes if way == "second" else by_tape
            found = (tf.function(derive) if how else derive)(total, some)
        else:
            total = torch_loss(g, tensors, where)
            if how:
                found = torch.func.grad(total, tuple(range(len(some))))(*some)
            else:
                found = by_autograd(total, some, way == "second")
        return {f"g{i}": flat(x) for i, x in zip(where, found, strict=True)}

    def failures(self, program: Program, subjects: tuple[str, ...]) -> dict[str, list[str]]:
        return super().failures(program, subjects) if places(self.function(program)[1]) else {}

    def refused(self, program: Program) -> dict[int, str]:
        with jax.enable_x64(program.statements[0] == "x64 = True"):
            try:
                self.rounded(*self.function(program), 0)
            except Exception as error:
                return {0: type(error).__name__}
        return {}

    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
        if expected.raised and found.raised == {0: "DerivativeError"}:
            return []  # our word for what JAX has no derivative of
        if expected.raised and found.raised and found.raised == self.refused(program):
            return []  # the function itself, which the others call before they differentiate
        return super().differences(expected, found, program)


@functools.lru_cache(maxsize=8)
def derived(f: Function, way: str) -> Function:
    return lambda *given: WAYS[way](f, *given)


KIND = Gradients()
