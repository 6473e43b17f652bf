"""Checks that are imported before the rest of the front end, so that it is not loaded in part: errors for a missing
PyTorch, with the install command, and for a device of another package."""

from tensorgraft.importing import required

required("torch", by="the device of PyTorch programs (tensorgraft.torch, tensorgraft.device)")

import torch  # noqa: E402, F401  (it imports `torch_entry`, of which no module may be half imported then)

from tensorgraft.frontends.torch_entry import extensions  # noqa: E402

extensions.require_free()
