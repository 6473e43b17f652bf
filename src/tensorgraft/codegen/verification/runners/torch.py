"""Runs a generated PyTorch file."""

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

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # tensorgraft's own device
hide("jax", "tensorgraft", "tensorflow")
import torch


def compute(module, name, weights, arrays, example):
    arrays = [torch.from_numpy(a) for a in arrays]
    if "key" in example:
        arrays[-1] = torch.Generator().manual_seed(int(arrays[-1][-1]))
    program, _ = program_of(module, name, weights)
    if isinstance(program, torch.nn.Module) and not hasattr(module, "load_weights"):
        program.eval()
    if "numbers" in example:
        same_numbers()
    result = program(*arrays)
    result = (result,) if "buffers" in example else result
    out = {k: x for k, x in flat(result).items() if isinstance(x, torch.Tensor)}
    found = {f"o:{k}": to_numpy(x) for k, x in out.items()}
    if "buffers" in example:
        found |= {f"o:1.{k}": to_numpy(b) for k, b in program.named_buffers(remove_duplicate=False)}
    if "gradients" in example and isinstance(program, torch.nn.Module):
        smooth = [x for x in out.values() if x.requires_grad]
        if smooth:
            sum((x.real.float() * torch.from_numpy(cosines(x.shape)).float()).sum() for x in smooth).backward()
        for k, p in program.named_parameters(remove_duplicate=False):
            found[f"g:{k}"] = to_numpy(torch.zeros_like(p) if p.grad is None else p.grad)
    return found


def to_numpy(x):
    x = x.detach().resolve_conj().resolve_neg()
    return widened(x.float() if x.dtype == torch.bfloat16 else x)


def same_numbers():
    """Random numbers as they were drawn for the program that results are compared with."""

    def without_device(numbers):
        return lambda *shape, generator=None, dtype=torch.float32: torch.from_numpy(
            numbers(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        ).to(dtype)

    def dropout(x, p=0.5, training=True, inplace=False):
        return x * (torch.from_numpy(uniform(x.shape)) < 1 - p) / (1 - p) if training and p else x

    def randint(low, high, shape, generator=None, dtype=torch.int64):
        return torch.from_numpy(low + np.floor(uniform(shape) * (high - low))).to(dtype)

    torch.nn.functional.dropout = torch.dropout = dropout
    torch.rand, torch.randn, torch.randint = without_device(uniform), without_device(normal), randint
    torch.randperm = lambda n, generator=None: torch.from_numpy(np.argsort(uniform((n,))))
    torch.Tensor.exponential_ = lambda x, generator=None: x.copy_(torch.from_numpy(-np.log1p(-uniform(x.shape))))


main(compute)
