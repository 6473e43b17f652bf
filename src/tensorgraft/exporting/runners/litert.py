"""Runs a model of LiteRT by TensorFlow's interpreter."""

from tensorgraft.exporting.runners.common import hide, main, np, os, positions

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
hide("torch", "tensorgraft", "jax")
import tensorflow as tf


def load(path, job, folder):
    interpreter = tf.lite.Interpreter(model_path=path)
    signature = interpreter.get_signature_runner("serving_default")

    def call(args, kwargs):
        arrays = positions(job["structure"], (args, kwargs))
        given = {name: arrays[k] for k, name in enumerate(job["tensors"])}
        found = signature(**given)
        return {job["results"].get(name, name): x for name, x in found.items()}

    return call


main(load, np.asarray)
