"""TensorFlow's programs: graphs of its raw operations, as plans of hub operations.

`reading` makes of a `tf.function` a `FunctionGraph`, which knows nothing of TensorFlow; `planning` resolves its nodes
to rules (`rule`, `rules`); `program` runs a plan as a function of arrays and of what the variables hold; `grafted` is
what users get.
"""
