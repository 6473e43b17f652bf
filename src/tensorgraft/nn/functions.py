"""Functions that layers are made of, on `tensorgraft.array_api` arrays."""

from tensorgraft.frontends.array_api.extensions.neural import (
    elu,
    gelu,
    leaky_relu,
    log_softmax,
    logsumexp,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
)

__all__ = [
    "elu",
    "gelu",
    "leaky_relu",
    "log_softmax",
    "logsumexp",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
]
