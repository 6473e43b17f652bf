"""Layers of neural networks as modules, on arrays of every backend: `import tensorgraft.nn as nn`.

Parameters have the layouts of Equinox's layers and begin as these do; given the same ones, results are the same. Where
Equinox takes one example, leading axes are batches here, too. Weights are on the device of the `key`, float32 unless
`dtype` says otherwise.

Built on `array_api`, `transforms` and `random`; nothing of the core imports it.
"""

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
from tensorgraft.nn.attention import MultiheadAttention, dot_product_attention
from tensorgraft.nn.containers import Lambda, Sequential
from tensorgraft.nn.convolution import Conv, Conv1d, Conv2d, Conv3d
from tensorgraft.nn.linear import MLP, Embedding, Identity, Linear
from tensorgraft.nn.normalisation import LayerNorm, RMSNorm
from tensorgraft.nn.recurrent import GRUCell, LSTMCell
from tensorgraft.nn.regularisation import Dropout

__all__ = [
    "MLP",
    "Conv",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Dropout",
    "Embedding",
    "GRUCell",
    "Identity",
    "LSTMCell",
    "Lambda",
    "LayerNorm",
    "Linear",
    "MultiheadAttention",
    "RMSNorm",
    "Sequential",
    "dot_product_attention",
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
