"""Regions of autocast on the device: operands and contexts of their tests."""

import torch

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


def on(where, dtype=BF16, **options):
    return torch.autocast(torch.device(where).type, dtype=dtype, **options)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaf(t, device):
    return t.to(device).detach().requires_grad_()


X, Y, W = drawn(4, 6), drawn(4, 6, seed=1), drawn(6, 6, seed=2)
IMAGE, TAPS = drawn(2, 3, 6, 6), drawn(4, 3, 3, 3, seed=1)
