"""Runs a program of `torch.export`."""

from tensorgraft.exporting.runners.common import hide, main, ml_dtypes, np, os

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # tensorgraft's own device
hide("jax", "tensorgraft", "tensorflow")
import torch


def load(path, job, folder):
    module = torch.export.load(path).module()

    def call(args, kwargs):
        with torch.no_grad():
            out = module(*args, **kwargs)
        state = dict(module.named_buffers()) | dict(module.named_parameters())
        return mapped((out, state) if "stateful" in job else out)

    return call


def mapped(tree):
    if isinstance(tree, dict):
        return {k: mapped(x) for k, x in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(x) for x in tree)
    if not isinstance(tree, torch.Tensor):
        return None
    x = tree.detach().resolve_conj().resolve_neg()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


def array(x):
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.array(x).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(x))


main(load, array)
