"""Errors of modules of StableHLO."""

from __future__ import annotations


class UnsupportedStableHLOError(NotImplementedError):
    """Raised for an operation of StableHLO that is not known here."""


class ModuleSizeError(ValueError):
    """Raised for sizes that a module does not accept."""
