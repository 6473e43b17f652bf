"""Runs a generated PyTorch file: python -I torch.py model.py model.safetensors NAME JOB."""

import importlib.util
import os
import sys

sys.modules["jax"] = sys.modules["tensorgraft"] = sys.modules["tensorflow"] = None  # type: ignore[assignment]
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # tensorgraft's own device
import glob

import numpy as np
import torch


def main() -> None:
    source, weights, name, job = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("model", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path in sorted(glob.glob(os.path.join(job, "inputs_*.npz"))):
        data = np.load(path)
        arrays = [torch.from_numpy(data[f"a{i}"]) for i in range(sum(k[0] == "a" for k in data))]
        if "key" in data:
            arrays[-1] = torch.Generator().manual_seed(int(arrays[-1][-1]))
        program = getattr(module, name)
        if hasattr(module, "load_weights"):
            program = module.load_weights(weights)  # as it is before its buffers are written
        elif isinstance(program, type):
            program = program().eval()
        if "numbers" in data:
            same_numbers()
        result = program(*arrays)
        result = (result,) if "buffers" in data else result
        out = {k: x for k, x in flat(result).items() if isinstance(x, torch.Tensor)}
        found = {f"o:{k}": widened(x) for k, x in out.items()}
        if "buffers" in data:
            found |= {f"o:1.{k}": widened(b) for k, b in program.named_buffers(remove_duplicate=False)}
        if "gradients" in data and isinstance(program, torch.nn.Module):
            smooth = [x for x in out.values() if x.requires_grad]
            if smooth:
                sum((x.real.float() * cosines(x)).sum() for x in smooth).backward()
            for k, p in program.named_parameters(remove_duplicate=False):
                found[f"g:{k}"] = widened(torch.zeros_like(p) if p.grad is None else p.grad)
        np.savez(path.replace("inputs_", "outputs_"), **found)


def cosines(x):
    return torch.from_numpy(np.cos(np.arange(x.numel()) * 0.7 + 0.3).reshape(x.shape)).float()


def uniform(shape):
    """Return the float32 numbers that stand for random ones while results are compared."""
    shape = tuple(int(n) for n in shape)
    return ((np.arange(np.prod(shape, dtype=int)) * 0.6180339887498949 + 0.1) % 1).astype(np.float32).reshape(shape)


def normal(shape):
    return 2 * np.cos(6 * uniform(shape))


def same_numbers():
    """Random numbers as they were drawn for the program that results are compared with."""

    def drawn(numbers):
        return lambda *shape, generator=None, dtype=torch.float32: torch.from_numpy(
            numbers(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        ).to(dtype)

    def dropout(x, p=0.5, training=True, inplace=False):
        return x * (torch.from_numpy(uniform(x.shape)) < 1 - p) / (1 - p) if training and p else x

    def whole(low, high, shape, generator=None, dtype=torch.int64):
        return torch.from_numpy(low + np.floor(uniform(shape) * (high - low))).to(dtype)

    torch.nn.functional.dropout = torch.dropout = dropout
    torch.rand, torch.randn, torch.randint = drawn(uniform), drawn(normal), whole
    torch.randperm = lambda n, generator=None: torch.from_numpy(np.argsort(uniform((n,))))
    torch.Tensor.exponential_ = lambda x, generator=None: x.copy_(torch.from_numpy(-np.log1p(-uniform(x.shape))))


def flat(tree, prefix=""):
    """The leaves of tuples, lists and dictionaries by their places, None left out."""
    if isinstance(tree, dict):
        return {k: v for name, child in tree.items() for k, v in flat(child, f"{prefix}{name}.").items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, child in enumerate(tree) for k, v in flat(child, f"{prefix}{i}.").items()}
    return {} if tree is None else {prefix[:-1] or "result": tree}


def widened(x):
    x = x.detach().resolve_conj().resolve_neg()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


main()
