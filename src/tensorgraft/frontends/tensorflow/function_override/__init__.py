"""The switch of `tensorgraft run`: a script's `tf.function`s are computed on a backend, all else by TensorFlow.

`stages` splits a function's graph into what the backend computes and what TensorFlow has to; `partial_function` runs
both in order, with `host` for TensorFlow's part and `variable_cache` for the variables; `switch` is what TensorFlow
calls.
"""
