"""The PyTorch front end: the device `graft`, whose tensors are plain `torch.Tensor`s computed by any backend."""

from tensorgraft.frontends.torch import setup
from tensorgraft.frontends.torch.fallback import FallbackWarning, fallbacks, set_fallback

setup.install()

__all__ = ["FallbackWarning", "fallbacks", "set_fallback"]
