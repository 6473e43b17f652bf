"""Runs a model of ONNX by ONNX Runtime, on the CPU."""

from tensorgraft.exporting.runners.common import hide, main, np, positions

hide("torch", "tensorgraft", "tensorflow", "jax")
import onnxruntime


def load(path, job, folder):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    order = dict(zip(job["names"], range(len(job["names"])), strict=True))

    def call(args, kwargs):
        arrays = positions(job["structure"], (args, kwargs))
        found = session.run(None, {name: arrays[order[name]] for name in names})
        results = {x.name: value for x, value in zip(session.get_outputs(), found, strict=True)}
        if "stateful" not in job:
            return results
        state = {path: results.pop(name) for name, path in job["state_results"].items()}
        return results["result"] if [*results] == ["result"] else results, state

    return call


main(load, np.asarray)
