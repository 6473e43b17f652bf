# torch on numpy
#   v1: values [nan], the CPU: [0.7998046875]
v0 = torch.tensor([7e4, -7e4, 1e-9, 3.0, 1.0037], device=D)
v1 = v0.mean(dtype=torch.float16)
v2 = v0.double().mean(0, dtype=torch.float16)
v3 = v0.sum(dtype=torch.float16)
v4 = torch.mean(v0, 0, dtype=torch.bfloat16, out=torch.empty((), dtype=torch.bfloat16, device=D))
