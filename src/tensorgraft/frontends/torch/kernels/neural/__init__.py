"""Kernels of `torch.nn.functional`."""
