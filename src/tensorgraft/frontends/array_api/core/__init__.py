"""Arrays of the Array API standard: the class, devices, type promotion, indexing, tracing."""
