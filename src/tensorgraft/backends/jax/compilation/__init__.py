"""Compilation by XLA: traced programs, their compiled forms, and the caches of these in memory and on disk."""
