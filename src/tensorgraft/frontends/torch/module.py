"""The device module `torch.graft`."""

from __future__ import annotations

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tensorgraft.frontends.torch.devices import TYPE


def register() -> None:
    _setup_privateuseone_for_python_backend(TYPE)
