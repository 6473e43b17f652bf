"""Functions and models of TensorFlow as programs that `tg.source` writes down."""
