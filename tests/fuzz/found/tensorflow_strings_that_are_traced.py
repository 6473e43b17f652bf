# tensorflow seed 1700121 on torch jit
#   v3: NotImplementedError, "PyTorch has no arrays of object", of which a program is not told that it is not to be compiled
v0 = data("int32", (3, 2), 2)
v3 = tf.where(tf.strings.as_string(v0) == "1", 0, 0)
