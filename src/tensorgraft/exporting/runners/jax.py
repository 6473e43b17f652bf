"""Runs a file of `jax.export`."""

from tensorgraft.exporting.runners.common import hide, main, os, sys

hide("torch", "tensorgraft", "tensorflow")
import jax
import jax.numpy as jnp
import numpy as np
from jax import export

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", os.path.exists(os.path.join(sys.argv[2], "wide")))


def load(path, job, folder):
    with open(path, "rb") as file:
        exported = export.deserialize(bytearray(file.read()))
    if "state" not in job:
        return lambda args, kwargs: exported.call(*args, **kwargs)
    leaves = dict(np.load(os.path.join(folder, "state.npz")))
    state = jax.tree.unflatten(exported.in_tree, list(range(exported.in_tree.num_leaves)))[0][0]
    state = jax.tree.map(lambda k: jnp.asarray(leaves[f"a{k}"]).astype(exported.in_avals[k].dtype), state)
    return lambda args, kwargs: exported.call(state, *args, **kwargs)


main(load, jnp.asarray)
