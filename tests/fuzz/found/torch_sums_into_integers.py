# torch on numpy
#   v1[1]: the product of floats, rounded; the CPU makes them integers first
v0 = T((2, 3), torch.float32, 5)
v1 = torch.cummax(v0, 1)
torch.cumprod(v1[0], -1, out=v1[1])
v2 = torch.sum(v0, 0, out=T((3,), torch.int64, 2))
v3 = torch.prod(T((2, 3), torch.int64, 2), 0, out=T((3,), torch.uint8, 2))
v4 = torch.any(v0 / 8, 0, True, out=T((1, 3), torch.uint8, 2))
v5 = torch.sum(v0, 1, dtype=torch.float32, out=T((2,), torch.float32, 2))
