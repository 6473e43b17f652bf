"""A function of TensorFlow without PyTorch and JAX: on NumPy."""

import numpy as np
import tensorflow as tf

import tensorgraft as tg

f = tg.graft(tf.function(lambda x: tf.reduce_sum(tf.sin(x) ** 2)), onto="numpy")
assert abs(float(f(np.ones(3, np.float32))) - 2.1242) < 1e-3
