"""Comparison of a file with its program, and the test that repeats it."""
