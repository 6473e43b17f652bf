"""Control flow, and what the host or TensorFlow computes."""
