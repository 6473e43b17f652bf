"""Indices and masks that are values of a compiled function."""
