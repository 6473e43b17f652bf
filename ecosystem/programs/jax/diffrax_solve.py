"""Diffrax: an adaptive solve, a stiff implicit one, an SDE, and gradients through a solve."""

import diffrax as dfx
import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)  # what is adaptive decides by the last digits


def lotka(theta, y0):
    def field(t, y, args):
        a, b, c, d = args
        return jnp.stack([a * y[0] - b * y[0] * y[1], -c * y[1] + d * y[0] * y[1]])

    solution = dfx.diffeqsolve(
        dfx.ODETerm(field),
        dfx.Tsit5(),
        0.0,
        4.0,
        0.1,
        y0,
        args=theta,
        saveat=dfx.SaveAt(ts=jnp.linspace(0.0, 4.0, 9)),
        stepsize_controller=dfx.PIDController(rtol=1e-4, atol=1e-4),
        max_steps=256,
    )
    return solution.ys


def stiff(y0):
    def field(t, y, args):
        return jnp.stack([-50.0 * (y[0] - jnp.cos(t)), y[0] - y[1]])

    return dfx.diffeqsolve(
        dfx.ODETerm(field), dfx.Kvaerno3(), 0.0, 1.0, 0.05, y0,
        stepsize_controller=dfx.PIDController(rtol=1e-3, atol=1e-4), max_steps=128,
    ).ys  # fmt: skip


def noisy(key, y0):
    path = dfx.VirtualBrownianTree(0.0, 1.0, tol=1e-3, shape=(2,), key=key)
    terms = dfx.MultiTerm(
        dfx.ODETerm(lambda t, y, args: -y), dfx.ControlTerm(lambda t, y, args: 0.1 * jnp.eye(2), path)
    )
    return dfx.diffeqsolve(terms, dfx.Euler(), 0.0, 1.0, 0.1, y0).ys


def cases():
    theta, y0 = jnp.array([1.5, 1.0, 3.0, 1.0]), jnp.array([1.0, 1.0])
    return {
        "adaptive": (lotka, (theta, y0)),
        "gradient": (jax.grad(lambda t, y: jnp.square(lotka(t, y)).sum()), (theta, y0)),
        "stiff": (stiff, (y0,)),
        "sde": (noisy, (jax.random.key(0), y0)),
    }
