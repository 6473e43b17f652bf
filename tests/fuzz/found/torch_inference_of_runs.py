# torch on torch
#   v0[0]: inference False, the CPU: True
with torch.inference_mode(): v0 = torch.unique_consecutive(T((1, 3, 4), torch.float16, 2).round(), return_counts=True)
