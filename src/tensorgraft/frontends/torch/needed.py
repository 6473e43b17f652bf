"""Imported before all else of the front end, which is then not there by halves: says how to install PyTorch where it is
not, and who has its device where another package does."""

from tensorgraft.importing import required

required("torch", by="the device of PyTorch programs (tensorgraft.torch, tensorgraft.device)")

import torch  # noqa: E402, F401  (it imports `torch_entry`, of which no module may be half imported then)

from tensorgraft.frontends.torch_entry import extensions  # noqa: E402

extensions.require_free()
