# torch on numpy
#   v0: values [0, 5, 9, 1, -1, 6], the CPU: [0, 5, 9, 1, 0, 6]
v0 = T((2, 3), torch.int16, 1)
torch.threshold_(v0, -1.5, 0)
v1 = torch.ops.aten.threshold_backward(v0, v0, 1.5)
v2 = torch.threshold(T((3,), torch.uint8, 1), -1.5, 0)
