"""CPU tensors and Python numbers in compiled functions."""
