# quantized on numpy
#   w2: to_device gave a dense copy, also of what was there already; on TensorFlow an AttributeError
scheme = Scheme(encoding="int4", granularity="tensor"); w0 = root(scheme, (4, 3), 2, "array_api", "float32")
w1 = xp.expand_dims(w0, axis=0)
w2 = w1.to_device(w1.device)
write(w1, w0, scheme, values((1, 4, 3), 1, "array_api", "float32"))
