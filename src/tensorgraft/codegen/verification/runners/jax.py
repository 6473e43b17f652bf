"""Runs a generated file of JAX, Equinox or Flax."""

from tensorgraft.codegen.verification.runners.common import (
    cosines,
    flat,
    hide,
    main,
    normal,
    np,
    os,
    program_of,
    sys,
    uniform,
    widened,
)

hide("torch", "tensorgraft", "tensorflow")
import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", os.path.exists(os.path.join(sys.argv[4], "wide")))


def compute(module, name, weights, arrays, example):
    if "numbers" in example:
        same_numbers()
    parameters, run = split(module, *program_of(module, name, weights))
    stateful = "buffers" in example

    def leaves(run, parameters):
        return {k: x for k, x in flat(run(parameters, *arrays)).items() if hasattr(x, "dtype")}

    outputs = {f"o:{k}": widened(x) for k, x in leaves(jax.jit(run), parameters).items()}
    if "gradients" in example and parameters:

        def objective(parameters):
            total = jnp.zeros(())
            for k, x in leaves(run, parameters).items():
                if jnp.issubdtype(x.dtype, jnp.inexact) and not (stateful and k.startswith("1.")):
                    total = total + jnp.sum(jnp.real(x).astype(jnp.float32) * cosines(x.shape))
            return total

        gradients = jax.grad(objective, allow_int=True)(parameters)
        if not hasattr(module, "named"):
            gradients = module.flat(gradients)
        # JAX's gradient of a complex parameter is the conjugate of the direction of steepest ascent
        outputs |= {f"g:{k}": widened(jnp.conj(g)) for k, g in gradients.items() if g.dtype != jax.dtypes.float0}
    return outputs


def split(module, program, state):
    """Return (the parameters, the function of the parameters and the arguments)."""
    if not hasattr(module, "named"):
        if not state:
            return (), lambda _, *arrays: program(*arrays)
        return state[0], lambda parameters, *arrays: program(parameters, *state[1:], *arrays)
    weights_by_name = module.named(program)
    if isinstance(weights_by_name, tuple):
        names, structure = weights_by_name
        order = list(names)  # jax.jit sorts dictionaries
        return names, lambda parameters, *arrays: jax.tree.unflatten(structure, [parameters[k] for k in order])(*arrays)
    from flax import nnx

    def run(parameters, *arrays):
        model = nnx.clone(program)
        for name, variable in module.named(model).items():
            variable[...] = parameters[name]
        out = model(*arrays)
        return out, {k: v[...] for k, v in module.named(model).items() if not isinstance(v, nnx.Param)}

    return {k: v[...] for k, v in weights_by_name.items()}, run


def same_numbers():
    """Replace JAX's random functions by ones with the numbers of the original program, whose results are compared."""

    def randint(key, shape, low, high, dtype=int):
        return jnp.asarray(low + np.floor(uniform(shape) * (high - low)), dtype)

    jax.random.uniform = lambda key, shape=(), dtype=None, minval=0.0, maxval=1.0: jnp.asarray(
        minval + (maxval - minval) * uniform(shape), dtype
    )
    jax.random.normal = lambda key, shape=(), dtype=None: jnp.asarray(normal(shape), dtype)
    jax.random.bernoulli = lambda key, p=0.5, shape=(): jnp.asarray(uniform(shape)) < p
    jax.random.exponential = lambda key, shape=(), dtype=None: -jnp.log1p(-jnp.asarray(uniform(shape), dtype))
    jax.random.randint = randint
    jax.random.permutation = lambda key, n: jnp.argsort(uniform((n,)))


main(compute)
