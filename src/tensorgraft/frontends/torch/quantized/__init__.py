"""Quantised tensors of the device and of the CPU, and their applications."""
