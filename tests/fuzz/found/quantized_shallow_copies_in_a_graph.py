# quantized seed 1700664 on cpu compile
#   w1: TorchRuntimeError, of a copy.copy that asked for values
scheme = Scheme(encoding="uint5", granularity="block", block=(2, 3), axis=-2, symmetric=False); w0 = root(scheme, (4, 6), 2, "torch", "float16")
w1 = copy.copy(w0)
