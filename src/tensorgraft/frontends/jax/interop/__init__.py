"""JAX programs among the tensors and tracers of other frameworks."""
