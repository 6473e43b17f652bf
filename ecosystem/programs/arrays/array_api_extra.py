"""array-api-extra: functions written for any array of the standard."""

import array_api_extra as xpx
import numpy as np


def cases():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 4)), rng.integers(0, 4, size=9)
    return {
        "atleast_nd": (lambda x: xpx.atleast_nd(x, ndim=4), (x,)),
        "cov": (lambda x: xpx.cov(x), (x,)),
        "create_diagonal": (lambda x: xpx.create_diagonal(x[0, :]), (x,)),
        "expand_dims": (lambda x: xpx.expand_dims(x, axis=(0, 2)), (x,)),
        "isclose": (lambda x: xpx.isclose(x, x + 1e-12), (x,)),
        "kron": (lambda x: xpx.kron(x, x[:2, :2]), (x,)),
        "nunique": (lambda y: xpx.nunique(y), (y,)),
        "one_hot": (lambda y: xpx.one_hot(y, 4), (y,)),
        "pad": (lambda x: xpx.pad(x, 2), (x,)),
        "setdiff1d": (lambda y: xpx.setdiff1d(y, y[:3]), (y,)),
        "sinc": (lambda x: xpx.sinc(x), (x,)),
        "at": (lambda x: xpx.at(x, (slice(1, 3), 2)).add(5.0, copy=True), (x,)),
        "apply_where": (lambda x: xpx.apply_where(x > 0, x, lambda a: a * 2, fill_value=0.0), (x,)),
    }
