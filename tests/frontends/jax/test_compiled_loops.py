"""Loops of JAX functions, longer than what is unrolled, as programs of PyTorch: with its compiler and without."""

from __future__ import annotations

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

import tensorgraft as tg
from tensorgraft.backends.torch import program
from tensorgraft.compiled import replayed_loops


@pytest.fixture(autouse=True)
def as_programs_of_pytorch(monkeypatch):
    """Loops of few numbers are compiled as such loops are of many."""
    monkeypatch.setattr(replayed_loops, "is_small", lambda program: False)


A = (np.eye(3) / 2 + 0.1).astype(np.float32)
ONES = np.ones(3, np.float32)


def without_rows(a):
    return lax.scan(lambda c, _: (a @ c, c.sum()), ONES, None, length=12)


def of_one_result(a):
    return lax.scan(lambda c, _: (a @ c, None), ONES, None, length=12)[0]


def of_unused_rows(a):
    return lax.scan(lambda c, _: (a @ c, None), ONES, jnp.arange(12.0))[0]


def without_carry(a):
    return lax.map(lambda row: (row * a).sum(), jnp.ones((12, 3)))


def counted(a):
    return lax.fori_loop(0, 12, lambda i, c: a @ c + i, ONES), lax.fori_loop(0, 12, lambda _, c: c * a[0, 0], ONES)


def with_a_transpose(a):
    return lax.scan(lambda p, _: (a @ p @ a.T, None), jnp.eye(3), None, length=12)[0]


def along_rows_that_are_read(a):
    rows = jnp.tile(a, (4, 1))
    return lax.scan(lambda c, x: (c / 2 + rows.sum(0) * x, None), ONES, rows)[0]


def within_a_loop(a):
    return lax.scan(lambda s, _: (lax.fori_loop(0, 10, lambda _, q: a @ q, s), None), ONES, None, length=11)[0]


def carries_change_places(a):
    return lax.scan(lambda s, _: ((s[1], s[0].T), None), (a, a * 2), None, length=11)[0]


def kalman(a):
    def step(state, z):
        m, p = a @ state[0], a @ state[1] @ a.T + jnp.eye(3)
        gain = p @ jnp.linalg.inv(p + jnp.eye(3))
        return (m + gain @ (z - m), (jnp.eye(3) - gain) @ p), m

    return lax.scan(step, (jnp.zeros(3), jnp.eye(3)), jnp.ones((12, 3)))


def sinkhorn(a):
    def step(_, uv):
        u = 1 / (a @ uv[1])
        return u, 1 / (a.T @ u)

    return lax.fori_loop(0, 20, step, (ONES, ONES))


LOOPS = (without_rows, of_one_result, of_unused_rows, without_carry, counted, with_a_transpose,
         along_rows_that_are_read, within_a_loop, carries_change_places, kalman, sinkhorn)  # fmt: skip


def until(a):
    """Loops without a derivative."""
    doubled = lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.5 + a[0], ONES)
    turned = lax.while_loop(lambda s: s[0] < 12, lambda s: (s[0] + 1, a @ s[1] @ a.T), (0, jnp.eye(3)))
    return doubled, turned


def compare(f, differentiated):
    def total(a):
        return sum(jnp.sum(x) for x in jax.tree.leaves(f(a)))

    x = torch.from_numpy(A.copy()).requires_grad_(differentiated)
    got = tg.jit(tg.graft(f, onto="torch"))(x)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(f)(A)), strict=True):
        np.testing.assert_allclose(g.detach(), w, rtol=1e-4, atol=1e-5)
    if differentiated:
        sum(g.sum() for g in jax.tree.leaves(got)).backward()
        np.testing.assert_allclose(x.grad, jax.grad(total)(A), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("f", LOOPS)
def test_loops(f):
    compare(f, differentiated=True)


def test_loops_to_a_condition():
    compare(until, differentiated=False)


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler")
@pytest.mark.parametrize("f", [*LOOPS, until])
def test_loops_by_inductor(f, monkeypatch):
    monkeypatch.setattr(program, "compiler", lambda: "inductor")
    compare(f, differentiated=f is not until)


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler")
def test_loops_of_one_program_by_inductor(monkeypatch):
    monkeypatch.setattr(program, "compiler", lambda: "inductor")
    compare(lambda a: [f(a) for f in (of_one_result, without_carry, with_a_transpose)], differentiated=True)
