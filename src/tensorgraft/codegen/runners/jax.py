"""Runs a generated JAX file: python -I jax.py model.py model.safetensors FUNCTION JOB."""

import importlib.util
import sys

sys.modules["torch"] = sys.modules["tensorgraft"] = sys.modules["tensorflow"] = None  # type: ignore[assignment]
import glob
import os

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")


def main() -> None:
    source, weights, function, job = sys.argv[1:]
    wide = os.path.exists(os.path.join(job, "wide"))
    jax.config.update("jax_enable_x64", wide)
    spec = importlib.util.spec_from_file_location("model", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    state = ()
    if hasattr(module, "load_weights"):
        state = module.load_weights(weights)
        state = state if isinstance(state, tuple) else (state,)
    run = jax.jit(getattr(module, function))
    for path in sorted(glob.glob(os.path.join(job, "inputs_*.npz"))):
        data = np.load(path)
        if "numbers" in data:
            same_numbers()
        arrays = [jnp.asarray(data[f"a{i}"]) for i in range(sum(k[0] == "a" for k in data))]

        def leaves(*state):
            return {k: x for k, x in flat(run(*state, *arrays)).items() if hasattr(x, "dtype")}

        found = {f"o:{k}": widened(x) for k, x in leaves(*state).items()}
        if state and "gradients" in data:

            def objective(params):
                total = 0.0
                for name, x in leaves(params, *state[1:]).items():
                    if jnp.issubdtype(x.dtype, jnp.inexact) and not (buffers and name.startswith("1.")):
                        weight = np.cos(np.arange(x.size) * 0.7 + 0.3).reshape(x.shape)
                        total = total + jnp.sum(jnp.real(x).astype(jnp.float32) * weight)
                return total

            buffers = "buffers" in data
            gradients = jax.grad(objective, allow_int=True)(state[0])
            # of complex parameters JAX gives the conjugate of what is gone along
            found |= {
                f"g:{k}": widened(jnp.conj(v))
                for k, v in module.flat(gradients).items()
                if v.dtype != jax.dtypes.float0
            }
        np.savez(path.replace("inputs_", "outputs_"), **found)


def uniform(shape):
    """Return the float32 numbers that stand for random ones while results are compared."""
    shape = tuple(int(n) for n in shape)
    return ((np.arange(np.prod(shape, dtype=int)) * 0.6180339887498949 + 0.1) % 1).astype(np.float32).reshape(shape)


def normal(shape):
    return 2 * np.cos(6 * uniform(shape))


def same_numbers():
    """Random numbers as they were drawn for the program that results are compared with."""

    def whole(key, shape, low, high, dtype=int):
        return jnp.asarray(low + np.floor(uniform(shape) * (high - low)), dtype)

    jax.random.uniform = lambda key, shape=(), dtype=None, minval=0.0, maxval=1.0: jnp.asarray(
        minval + (maxval - minval) * uniform(shape), dtype
    )
    jax.random.normal = lambda key, shape=(), dtype=None: jnp.asarray(normal(shape), dtype)
    jax.random.bernoulli = lambda key, p=0.5, shape=(): jnp.asarray(uniform(shape)) < p
    jax.random.exponential = lambda key, shape=(), dtype=None: -jnp.log1p(-jnp.asarray(uniform(shape), dtype))
    jax.random.randint = whole
    jax.random.permutation = lambda key, n: jnp.argsort(uniform((n,)))


def flat(tree, prefix=""):
    """The leaves of tuples, lists and dictionaries by their places, None left out."""
    if isinstance(tree, dict):
        return {k: v for name, child in tree.items() for k, v in flat(child, f"{prefix}{name}.").items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, child in enumerate(tree) for k, v in flat(child, f"{prefix}{i}.").items()}
    return {} if tree is None else {prefix[:-1] or "result": tree}


def widened(x):
    x = np.asarray(x)
    return x if x.dtype.isbuiltin == 1 else x.astype(np.float32)


main()
