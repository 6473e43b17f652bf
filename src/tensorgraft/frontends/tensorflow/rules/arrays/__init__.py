"""Rules for shapes, indexing, and operations that combine or search arrays."""
