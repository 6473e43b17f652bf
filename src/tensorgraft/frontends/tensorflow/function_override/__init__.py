"""The function override of `tensorgraft run`: a script's `tf.function`s are computed on a backend, everything else by
TensorFlow.

`stages` splits a function's graph into parts for the backend and for TensorFlow; `partial_function` runs them in order,
with `host` for TensorFlow's part and `variable_cache` for the variables; `switch` has the function that TensorFlow
calls.
"""
