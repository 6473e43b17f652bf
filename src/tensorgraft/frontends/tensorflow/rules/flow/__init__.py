"""Rules for control flow, and operations that the host or TensorFlow computes."""
