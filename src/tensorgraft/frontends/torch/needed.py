"""Imported before all that imports PyTorch: says how to install it where it is not."""

from tensorgraft.importing import required

required("torch", by="the device of PyTorch programs (tensorgraft.torch, tensorgraft.device)")
