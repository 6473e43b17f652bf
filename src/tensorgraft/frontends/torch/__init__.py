"""The PyTorch front end: the device `graft`, whose tensors are plain `torch.Tensor`s computed by any backend."""

from tensorgraft.frontends import torch_entry
from tensorgraft.frontends.torch import devices, setup
from tensorgraft.frontends.torch.cold import tier_counts
from tensorgraft.frontends.torch.fallback import FallbackWarning, fallbacks, set_fallback
from tensorgraft.frontends.torch.loops import UnrolledLoopWarning

setup.install()
devices.follow_default()
torch_entry.finish()

__all__ = ["FallbackWarning", "UnrolledLoopWarning", "fallbacks", "set_fallback", "tier_counts"]
