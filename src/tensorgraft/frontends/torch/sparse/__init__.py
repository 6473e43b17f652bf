"""Sparse tensors of the device: coordinates (COO) and compressed rows and columns (CSR, CSC, BSR, BSC)."""
