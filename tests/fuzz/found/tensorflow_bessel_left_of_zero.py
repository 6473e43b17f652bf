# tensorflow seed 1700254 on numpy
#   v2: NaN for negative numbers, TensorFlow: -inf (and NaN for zero in float32)
v1 = data("float64", (3,), 2)
v2 = tf.raw_ops.BesselY0(x=v1)
v3 = tf.raw_ops.BesselY1(x=tf.cast(v1[1:], tf.float32) * 0.0)
v4 = tf.raw_ops.BesselK1e(x=v1)
