"""Rules of state that outlives an operation, and of values that are no arrays."""
