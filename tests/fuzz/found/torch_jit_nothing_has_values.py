# torch seed 9803317 on jax jit
#   v5: NoKernelError raised, the CPU: nothing
v0 = T((3, 3, 2, 0), torch.int8, 2)
v1 = T((0,), torch.float32, 2)
v2 = T((0,), torch.bool, 2)
v5 = v0.cholesky(True)
v6 = v1[v2]
v7 = torch.linalg.lu_factor(T((1, 3, 3, 0), torch.bfloat16, 2), pivot=True)
