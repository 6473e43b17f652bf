# torch on numpy
#   nothing raised, the CPU: RuntimeError (meta functions do not look); ValueErrors of the backend
v0 = T((2,), torch.int16, 2)
v0.add_(v0, alpha=0.25)
v0.logit_()
v1 = T((1, 1, 1), torch.int64)
torch.logical_xor(T((1, 4, 3), torch.float32, 2), v1, out=v1)
torch.var(T((4,), torch.uint8, 2), [], True, out=T((4,), torch.uint8, 17))
torch.ops.aten.nonzero.out(T((3,), torch.bool, 2), out=T((3,), torch.bool, 3))
v2 = T((2, 5), torch.float32, 2)
torch.histogram(v2, T((2, 5), torch.float32, 36), density=True)
torch.embedding_renorm_(T((2, 5, 1, 3), torch.float16, 2, 's'), I((1,), 1, 68), 0.5, 0.5)
