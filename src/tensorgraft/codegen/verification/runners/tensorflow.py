"""Runs a generated file of TensorFlow, tf.Module or Keras."""

from tensorgraft.codegen.verification.runners.common import (
    cosines,
    flat,
    hide,
    main,
    normal,
    np,
    os,
    program_of,
    uniform,
    widened,
)

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"
hide("torch", "tensorgraft", "jax")
import tensorflow as tf


def compute(module, name, weights, arrays, example):
    arrays = [tf.constant(a) for a in arrays]
    if "numbers" in example:
        same_numbers()
    if "key" in example:
        arrays[-1] = tf.cast(arrays[-1], tf.int32)
    program, state = program_of(module, name, weights)
    variables = module.named(program) if hasattr(module, "named") else {}
    if variables:
        parameters = {k: variable(v) for k, v in variables.items() if v.trainable}
    else:
        parameters = {k: x for k, x in module.flat(state[0]).items() if inexact(x)} if state else {}
    stateful = "buffers" in example
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        result = program(*state, *arrays)
        result = (result,) if stateful and variables else result
        out = {k: x for k, x in flat(result).items() if hasattr(x, "dtype")}
        smooth = [x for k, x in out.items() if inexact(x) and not (stateful and k.startswith("1."))]
        total = sum(tf.reduce_sum(tf.cast(tf.math.real(x), tf.float32) * cosines(x.shape)) for x in smooth)
    outputs = {f"o:{k}": widened(x) for k, x in out.items()}
    if stateful:
        outputs |= {f"o:1.{k}": widened(variable(v)) for k, v in variables.items() if not v.trainable}
    if parameters and "gradients" in example and smooth:
        for k, g in tape.gradient(total, parameters, unconnected_gradients="zero").items():
            outputs[f"g:{k}"] = widened(tf.convert_to_tensor(g))
    return outputs


def variable(v):
    """Return TensorFlow's variable inside of one of Keras."""
    return v if isinstance(v, tf.Variable) else getattr(v, "value", v)


def inexact(x):
    return x.dtype.is_floating or x.dtype.is_complex


def same_numbers():
    """Random numbers as they were drawn for the program that results are compared with."""

    def dropout(x, rate, seed=None):
        return tf.where(uniform(x.shape) < np.float32(1 - rate), x / tf.cast(1 - rate, x.dtype), tf.zeros_like(x))

    def stateless_uniform(shape, seed, minval=0, maxval=1, dtype=tf.float32):
        out = minval + uniform(shape) * (maxval - minval)
        return tf.cast(out if dtype.is_floating else np.floor(out), dtype)

    tf.nn.dropout = tf.nn.experimental.stateless_dropout = dropout
    tf.random.stateless_uniform = stateless_uniform
    tf.random.stateless_normal = lambda shape, seed, mean=0.0, stddev=1.0, dtype=tf.float32: tf.cast(
        mean + stddev * normal(shape), dtype
    )
    tf.random.experimental.stateless_shuffle = lambda x, seed: tf.gather(x, np.argsort(uniform(x.shape)))


main(compute)
