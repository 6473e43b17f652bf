"""Pickled generators name this function here."""

from tensorgraft.frontends.torch.core.generator import rebuild

__all__ = ["rebuild"]
