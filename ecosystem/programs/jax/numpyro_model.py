"""NumPyro: a regression's potential energy and its gradient, a step of SVI, and draws of NUTS."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import initialize_model

jax.config.update("jax_enable_x64", True)  # what is adaptive decides by the last digits


def regression(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, x @ slope, scale), obs=y)


def cases():
    key = jax.random.key(0)
    x = jax.random.normal(key, (20, 2))
    y = x @ jnp.array([1.0, -2.0]) + 0.1 * jax.random.normal(jax.random.key(1), (20,))
    model = initialize_model(key, regression, model_args=(x, y))
    z = model.param_info.z

    guide = AutoNormal(regression)
    svi = SVI(regression, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    state = svi.init(key, x, y)

    def steps(state, x, y):
        losses = []
        for _ in range(3):
            state, loss = svi.update(state, x, y)
            losses.append(loss)
        return jnp.stack(losses), svi.get_params(state)

    def nuts(key, x, y):
        mcmc = MCMC(NUTS(regression), num_warmup=5, num_samples=5, progress_bar=False)
        mcmc.run(key, x, y)
        return mcmc.get_samples()

    def hmc_potential(z):
        return jax.value_and_grad(model.potential_fn)(z)

    return {
        "potential": (hmc_potential, (z,)),
        "svi": (steps, (state, x, y)),
        "nuts": (nuts, (key, x, y)),
    }
