"""Element by element, over axes, and of matrices."""
