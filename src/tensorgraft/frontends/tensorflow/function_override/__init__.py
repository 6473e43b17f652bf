"""The switch of `tensorgraft run`: a script's `tf.function`s are computed on a backend, all else by TensorFlow.

`stages` takes a function's graph apart into what the backend computes and what TensorFlow has to; `mixed` runs both in
order, with `host` for TensorFlow's part and `held` for what variables hold; `switch` is what TensorFlow calls.
"""
