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
        if "state" not in job:
            return results(signature(**given))
        first = dict(np.load(os.path.join(folder, "state.npz")))
        given |= {name: first[f"a{k}"] for k, name in enumerate(job["state_arguments"])}
        found = signature(**given)
        state = {path: found.pop(name) for name, path in job["state_results"].items()}
        found = results(found)
        return found["result"] if [*found] == ["result"] else found, state

    def results(found):
        return {job["results"].get(name, name): x for name, x in found.items()}

    return call


main(load, np.asarray)
