# torch on numpy
#   div(-1, rounding_mode=None) of uint8 divided by 255
v0 = T((3,), torch.uint8, 2)
v1 = v0.div(-1, rounding_mode=None)
v2 = torch.div(v0, 300, rounding_mode="floor")
v3 = torch.div(v0, 2.5, rounding_mode=None, out=torch.zeros(3, dtype=torch.float64, device=D))
