"""Mixed precision: one set of tables, for PyTorch's device and for the hub."""

from tensorgraft.precision.operations import autocasting, with_region
from tensorgraft.precision.policies import POLICIES
from tensorgraft.precision.state import Region, autocast, autocast_policy, current, policy

__all__ = ["POLICIES", "Region", "autocast", "autocast_policy", "autocasting", "current", "policy", "with_region"]
