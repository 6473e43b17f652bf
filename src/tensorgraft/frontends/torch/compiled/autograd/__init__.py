"""Backward passes through compiled functions."""
