# torch seed 10108005 on jax
#   torch.ops.aten.linalg_svdvals.out(...): nothing raised, the CPU: RuntimeError
v1 = T((2, 2, 3, 3), torch.float32, 2, 't')
torch.ops.aten.linalg_svdvals.out(v1, driver='gelsd', out=T((0,), torch.float32))
v2 = torch.linalg.svdvals(v1[:0], driver='gesvd')
torch.linalg.svd(v1, driver='gesvd', out=(T((0,), torch.float32), T((0,), torch.float32), T((0,), torch.float32)))
