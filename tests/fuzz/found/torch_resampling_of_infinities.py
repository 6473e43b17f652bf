# torch on numpy
#   v0: nan where the CPU does not read the infinity beside; v2: scaled, though 3 * 1.3 is 3 again
v0 = F.interpolate(T((2, 2, 5, 3, 4), torch.float32, 48), size=[3, 3, 1], mode="trilinear", align_corners=True)
v1 = torch._C._nn.upsample_bilinear2d(T((2, 2, 3, 3), torch.float32, 16), [1, 3], True)
v2 = F.interpolate(T((2, 2, 3, 3), torch.float32, 2), scale_factor=1.3, mode="nearest")
v3 = F.interpolate(T((2, 2, 3), torch.float32, 2), scale_factor=1.3, mode="nearest")
v4 = F.interpolate(T((2, 2, 3, 3), torch.float32, 2), scale_factor=1.3, mode="bilinear")
v5 = torch._C._nn._upsample_bilinear2d_aa(T((2, 2, 3, 3), torch.float32, 2), [3, 1], False, 2.0, 2.0)
