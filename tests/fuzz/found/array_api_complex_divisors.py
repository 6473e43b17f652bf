# array_api seed 1235036 on tensorflow
#   v1: np.complex128(nan+nanj) at (0, 2, 0), expected np.complex128(-0-0j) (+- 2.4e-15); 6 of 24
v1 = data("complex128", (2, 4, 3), 2)
v1 /= data("float32", (2, 4, 1), 922943)
v2 = v1 / xp.zeros_like(v1)
