# tensorflow on numpy
#   3, expected 1: TensorFlow's kernel takes dimensions beyond those of a format
v0 = data("int32", (4,), 2)
v1 = tf.raw_ops.DataFormatDimMap(x=tf.range(-14, 14))
v2 = tf.raw_ops.DataFormatDimMap(x=v0 * 2, src_format="NDHWC", dst_format="NCDHW")
