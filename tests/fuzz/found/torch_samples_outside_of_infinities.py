# torch on numpy
#   nan where a place outside of the image is read beside an infinity
v0 = F.grid_sample(T((2, 1, 4, 3), torch.float32, 96), T((2, 3, 3, 2), torch.float32, 2))
v1 = F.grid_sample(T((2, 1, 4, 3), torch.float32, 96), T((2, 3, 3, 2), torch.float32, 5), padding_mode="border")
