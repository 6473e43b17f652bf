# tensorflow on torch
#   AttributeError: a rule that gives a list gave one of one array where its operands were on the host
v0 = data("float64", (3,), 2)
v1 = tf.unique(v0)[0]
v2 = tf.split(v1, 1, 0)[0]
