"""einops for the standard's arrays."""

import einops.array_api
import numpy as np


def cases():
    x = np.random.default_rng(0).normal(size=(40, 3))
    return {
        "rearrange": (lambda x: einops.array_api.rearrange(x, "(a b) c -> b (c a)", a=4), (x,)),
        "reduce": (lambda x: einops.array_api.reduce(x, "(a b) c -> a c", "max", a=8), (x,)),
        "repeat": (lambda x: einops.array_api.repeat(x, "a b -> a new b", new=2), (x,)),
        "pack": (lambda x: einops.array_api.pack([x, x[:, 0]], "i *")[0], (x,)),
    }
