"""BlackJAX: kernels of HMC and NUTS on a Gaussian with a funnel, scanned."""

import blackjax
import jax
import jax.numpy as jnp
from jax.scipy import stats


def logdensity(z):
    return stats.norm.logpdf(z["v"], 0.0, 2.0) + stats.norm.logpdf(z["x"], 0.0, jnp.exp(z["v"] / 2)).sum()


def run(make):
    def draws(key, start):
        kernel = make()
        state = kernel.init(start)

        def step(state, key):
            state, info = kernel.step(key, state)
            return state, (state.position, info.acceptance_rate)

        return jax.lax.scan(step, state, jax.random.split(key, 6))[1]

    return draws


def cases():
    start = {"v": jnp.array(0.5), "x": jnp.array([0.1, -0.2])}
    mass = jnp.ones(3)
    return {
        "hmc": (run(lambda: blackjax.hmc(logdensity, 0.1, mass, 5)), (jax.random.key(0), start)),
        "nuts": (run(lambda: blackjax.nuts(logdensity, 0.2, mass)), (jax.random.key(1), start)),
        "mala": (run(lambda: blackjax.mala(logdensity, 0.05)), (jax.random.key(2), start)),
    }
