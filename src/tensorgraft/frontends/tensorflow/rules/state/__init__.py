"""What lives longer than an operation, and values that are no arrays."""
