# quantized seed 1400066 on numpy
#   w1: copy.copy made a copy of the codes, where one of an ordinary tensor looks at the same memory
scheme = Scheme(encoding="float8_e5m2", granularity="block", block=(4,)); w0 = root(scheme, (4,), 2, "torch", "float32")
w1 = copy.copy(w0)
write(w0, w0, scheme, values((4,), 1, "torch", "float32"))
