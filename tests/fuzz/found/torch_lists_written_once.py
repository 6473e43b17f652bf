# torch on jax
#   v0: values [3., 3.], the CPU: [2., 2.], since only the second tensor of the list is refused
v0 = T((2,), torch.float32, 2)
v1 = T((3,), torch.float32, 2)
torch._foreach_add_([v0, v1], [T((2,), torch.float32, 3), T((4,), torch.float32, 3)])
with torch.inference_mode(): v2 = T((2,), torch.float32, 5).abs() * 1
torch._foreach_log1p_([v2, v0])
