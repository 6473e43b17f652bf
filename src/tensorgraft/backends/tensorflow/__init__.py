"""The backend on TensorFlow: eager, inside `tf.function`, and compiled by XLA."""

from tensorgraft.backends.tensorflow.backend import TensorFlowBackend

__all__ = ["TensorFlowBackend"]
