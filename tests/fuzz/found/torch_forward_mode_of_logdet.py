# torch seed 6500277 on torch jvp
v1 = T((1, 4, 4), torch.float32, 2)
v3 = torch.logdet(v1)
