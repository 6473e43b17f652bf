# torch on torch jit
#   v1: RuntimeError when it is asked for its history, the CPU: a view of v0
v0 = T((), torch.float32, 2, 'e')
v0.squeeze_()
v0.requires_grad_()
v1 = v0.reshape([-1])
