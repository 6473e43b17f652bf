"""Kernels of functions of numbers and of matrices."""
