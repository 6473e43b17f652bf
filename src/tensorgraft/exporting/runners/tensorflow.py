"""Runs a SavedModel."""

from tensorgraft.exporting.runners.common import hide, main, os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
hide("torch", "tensorgraft", "jax")
import tensorflow as tf


def load(path, job, folder):
    model = tf.saved_model.load(path)

    def call(args, kwargs):
        out = model(*args, **kwargs)
        if "stateful" not in job:
            return out
        return out, model.state()

    return call


main(load, tf.constant)
