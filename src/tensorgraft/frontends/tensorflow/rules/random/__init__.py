"""Random numbers: TensorFlow's own, for the same seeds."""
