# torch on numpy
#   v0: not written, the CPU: written, since only the second tensor of the list is refused
v0 = T((2,), torch.float32, 2)
torch._foreach_maximum_([v0, T((2,), torch.bfloat16, 94)], [T((2,), torch.float32, 3), T((1, 2), torch.float32, 73)])
