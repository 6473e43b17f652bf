# torch seed 10300373 on numpy
#   v0.subtract_(True, 3): nothing raised, the CPU: RuntimeError
v0 = T((1, 5), torch.float16, 2, 'e')
v0.subtract_(True, 3)
v1 = T((3,), torch.bfloat16, 2) - False
v2 = torch.rsub(v0, True)
v3 = v0.sub(2, alpha=True)
v4 = v0 + True
