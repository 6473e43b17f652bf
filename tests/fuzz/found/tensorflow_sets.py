# tensorflow on numpy
#   UnsupportedOperationError, expected none
v1 = data("int32", (2, 3), 2)
v2 = data("int32", (2, 3), 5)
v3 = tf.sets.size(tf.sets.intersection(v1, v2))
v4 = tf.sets.union(v1, tf.sparse.from_dense(v2)).values
v5 = tf.sparse.cross_hashed([tf.sparse.from_dense(v1), v2], 9).values
v6 = tf.ragged.cross([ragged(v1[0]), ragged(v2[0])]).row_splits
