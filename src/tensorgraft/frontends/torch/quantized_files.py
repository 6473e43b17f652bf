"""Files that were written before quantised tensors had a folder name this function here."""

from tensorgraft.frontends.torch.quantized.files import rebuild

__all__ = ["rebuild"]
