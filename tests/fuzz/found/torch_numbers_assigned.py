# torch on numpy
#   v0[...] = 1j: nothing raised (and 0 written), the CPU: RuntimeError; strides of what a mask takes; IndexError
v0 = T((3,), torch.float64, 2)
v0[...] = 1j
v1 = T((3,), torch.int32, 2)
v1[0] = 2**40
v2 = T((2, 3, 4), torch.float32, 5)[torch.tensor([1, 0], dtype=torch.uint8, device=D), [0, 1]]
v3 = T((2, 0, 1, 3), torch.float32) * 2
