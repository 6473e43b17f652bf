# torch on numpy
#   triu_: RuntimeError raised, the CPU: nothing
v0 = T((2, 3, 3), torch.float64, 2, "e")
v0.triu_(1)
v1 = T((2, 2), torch.int32, 2, "e")
torch.tril(v1, out=T((2, 2), torch.int32, 2, "e"))
v1.copy_(v1)
v1.mul_(2)
torch._foreach_zero_([v1, v0])
