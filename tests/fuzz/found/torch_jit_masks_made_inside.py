# torch seed 9803734 on tensorflow jit
#   v4: TypeError raised, the CPU: nothing
v0 = T((2, 2, 3, 3), torch.float64, 2)
v3 = T((3, 5), torch.int32, 2)
v4 = v0.reshape(1, -1)
v4[-1:, T((36,), torch.bool, 57)].zero_()
v5 = torch.masked_select(v3, T((3, 5), torch.bool, 2))
