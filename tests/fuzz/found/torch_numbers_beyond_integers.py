# torch on numpy
#   fill_(300) of uint8 gave 44; masked_fill_(-1) of uint8 was refused
v0 = T((3,), torch.uint8, 2)
v0.masked_fill_(T((3,), torch.bool, 1), -1)
v0.fill_(300)
v1 = torch.full((2,), 300, dtype=torch.uint8, device=D)
v2 = torch.full((2,), -3, dtype=torch.uint8, device=D)
v0.fill_(-200)
