"""The backend on PyTorch: native tensors on any of its devices, eager, under `torch.compile` and in `torch.func`."""

from tensorgraft.backends.torch.backend import TorchBackend

__all__ = ["TorchBackend"]
