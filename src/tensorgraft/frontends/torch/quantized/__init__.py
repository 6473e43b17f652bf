"""Quantised tensors of the device and of the CPU, and what builds on them."""
