"""Optimistix: roots, least squares, minima and fixed points, with implicit gradients."""

import jax
import jax.numpy as jnp
import optimistix as optx

jax.config.update("jax_enable_x64", True)  # what is adaptive decides by the last digits


def root(a):
    return optx.root_find(lambda y, a: y**3 + jnp.sin(y) - a, optx.Newton(1e-6, 1e-6), jnp.ones(3), args=a).value


def fit(x, y):
    def residual(p, args):
        return p[0] * jnp.exp(-p[1] * args[0]) - args[1]

    return optx.least_squares(
        residual, optx.LevenbergMarquardt(1e-6, 1e-6), jnp.array([1.0, 1.0]), args=(x, y), max_steps=64
    ).value


def rosenbrock(start):
    def f(p, _):
        return (1 - p[0]) ** 2 + 5 * (p[1] - p[0] ** 2) ** 2

    return optx.minimise(f, optx.BFGS(1e-5, 1e-5), start, max_steps=256).value


def cases():
    x = jnp.linspace(0.0, 2.0, 12)
    y = 2.0 * jnp.exp(-0.7 * x) + 0.01 * jnp.sin(9 * x)
    a = jnp.array([0.5, 1.0, 4.0])
    return {
        "root": (root, (a,)),
        "root gradient": (jax.grad(lambda a: root(a).sum()), (a,)),
        "least squares": (fit, (x, y)),
        "least squares gradient": (jax.grad(lambda y: fit(x, y).sum()), (y,)),
        "minimise": (rosenbrock, (jnp.array([-1.0, 1.0]),)),
        "fixed point": (
            lambda a: (
                optx.fixed_point(lambda y, a: jnp.cos(y) * a, optx.FixedPointIteration(1e-6, 1e-6), a, args=a / 5).value
            ),
            (a,),
        ),
    }
