"""The PyTorch front end: the device `graft`, whose tensors are plain `torch.Tensor`s computed by any backend."""

from tensorgraft.frontends.torch import needed, setup  # noqa: F401  (the first says what to install)
from tensorgraft.frontends.torch.compiled.control_flow.unrolled_loops import UnrolledLoopWarning
from tensorgraft.frontends.torch.core import devices
from tensorgraft.frontends.torch.dispatch.cold import copy_counts, tier_counts
from tensorgraft.frontends.torch.dispatch.fallback import FallbackWarning, fallbacks, set_fallback
from tensorgraft.frontends.torch.kernels.reasons import operators
from tensorgraft.frontends.torch_entry import loading
from tensorgraft.frontends.torch_entry.patches import Patch, patches

loading.set_front_end(__name__)
setup.install()
devices.follow_default()
loading.finish()

__all__ = [
    "FallbackWarning",
    "Patch",
    "UnrolledLoopWarning",
    "copy_counts",
    "fallbacks",
    "operators",
    "patches",
    "set_fallback",
    "tier_counts",
]
