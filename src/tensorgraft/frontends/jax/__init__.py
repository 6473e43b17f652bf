"""JAX programs."""
