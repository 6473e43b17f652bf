"""Imported before all else of the front end, which is then not there by halves: says how to install PyTorch where it is
not, and who has its device where another package does."""

from tensorgraft.importing import required

required("torch", by="the device of PyTorch programs (tensorgraft.torch, tensorgraft.device)")

from tensorgraft.frontends.torch_entry import extensions  # noqa: E402  (it imports PyTorch)

extensions.require_the_place()
