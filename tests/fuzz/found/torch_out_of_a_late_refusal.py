# torch on numpy
#   v0: shape (2, 2, 3, 3), the CPU: (); IndexError for a list that is too short; AssertionError of tensor_split
v0 = T((2, 2, 3, 3), torch.float32, 2)
torch.ops.aten.dot.out(T((1,), torch.int64, 97), T((1,), torch.int64, 98), out=v0)
v1 = T((), torch.bfloat16, 2)
torch._foreach_pow_([v1, v1], [1.0])
torch.tensor_split(T((2,), torch.float32, 2), T((2,), torch.float32, 2), -1)
v2 = F.max_pool1d(T((2, 2, 4), torch.float64, 41), 2)
v3 = v2.unbind(0)
v2.requires_grad_()
