"""The backend on PyTorch: native tensors on any of its devices, eager, under `torch.compile` and in `torch.func`."""

import sys

from tensorgraft.importing import load_triton

if "tensorflow" in sys.modules:
    load_triton()

from tensorgraft.backends.torch.backend import TorchBackend

__all__ = ["TorchBackend"]
