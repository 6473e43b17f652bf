"""Runs a generated file of tf.Module or Keras: python -I tensorflow_modules.py model.py model.safetensors NAME JOB."""

import importlib.util
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"


class Absent:
    """Frameworks that are not to be there; SciPy, which Keras imports, asks `sys.modules` for them."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "tensorgraft", "jax"):
            raise ModuleNotFoundError(
                f"{name} must not be imported here: the generated file has to run without it", name=name
            )


sys.meta_path.insert(0, Absent())
import glob

import numpy as np
import tensorflow as tf


def main() -> None:
    source, weights, name, job = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("model", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path in sorted(glob.glob(os.path.join(job, "inputs_*.npz"))):
        data = np.load(path)
        arrays = [tf.constant(data[f"a{i}"]) for i in range(sum(k[0] == "a" for k in data))]
        if "numbers" in data:
            same_numbers()
        if "key" in data:
            arrays[-1] = tf.cast(arrays[-1], tf.int32)
        program = getattr(module, name)
        parameters: dict = {}
        state: dict = {}
        if hasattr(module, "load_weights"):
            program = module.load_weights(weights)  # as it is before its buffers are written
            for k, v in module.named(program).items():
                (parameters if v.trainable else state)[k] = (
                    getattr(v, "value", v) if not isinstance(v, tf.Variable) else v
                )
        elif isinstance(program, type):
            program = program()
        if "key" in data:
            arrays[-1] = tf.cast(arrays[-1], tf.int32)
        with tf.GradientTape() as tape:
            result = program(*arrays)
            result = (result,) if "buffers" in data else result
            out = {k: x for k, x in flat(result).items() if hasattr(x, "dtype")}
            smooth = [x for x in out.values() if x.dtype.is_floating or x.dtype.is_complex]
            total = sum(tf.reduce_sum(tf.cast(tf.math.real(x), tf.float32) * cosines(x)) for x in smooth)
        found = {f"o:{k}": widened(x) for k, x in out.items()}
        if "buffers" in data:
            found |= {f"o:1.{k}": widened(tf.convert_to_tensor(v)) for k, v in state.items()}
        if parameters and "gradients" in data and smooth:
            for k, g in tape.gradient(total, parameters, unconnected_gradients="zero").items():
                found[f"g:{k}"] = widened(tf.convert_to_tensor(g))
        np.savez(path.replace("inputs_", "outputs_"), **found)


def cosines(x):
    return np.cos(np.arange(tf.size(x).numpy()) * 0.7 + 0.3).reshape(x.shape).astype(np.float32)


def uniform(shape):
    """Return the float32 numbers that stand for random ones while results are compared."""
    shape = tuple(int(n) for n in shape)
    return ((np.arange(np.prod(shape, dtype=int)) * 0.6180339887498949 + 0.1) % 1).astype(np.float32).reshape(shape)


def normal(shape):
    return 2 * np.cos(6 * uniform(shape))


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


def flat(tree, prefix=""):
    """The leaves of tuples, lists and dictionaries by their places, None left out."""
    if isinstance(tree, dict):
        return {k: v for name, child in tree.items() for k, v in flat(child, f"{prefix}{name}.").items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, child in enumerate(tree) for k, v in flat(child, f"{prefix}{i}.").items()}
    return {} if tree is None else {prefix[:-1] or "result": tree}


def widened(x):
    x = x.numpy()
    return x if x.dtype.isbuiltin == 1 else x.astype(np.float32)


main()
