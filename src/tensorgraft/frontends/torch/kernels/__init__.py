"""Kernels of ATen operators, by area. Importing a module registers its kernels (`spec.kernel`)."""
