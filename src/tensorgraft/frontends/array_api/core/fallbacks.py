"""Counts of the calls that NumPy computed on the host for want of a function of the standard."""

from __future__ import annotations

from collections import Counter

counts: Counter[str] = Counter()


def fallbacks() -> dict[str, int]:
    """Return how often each function of NumPy has computed on the host for want of one of the standard, by name."""
    return dict(counts)
