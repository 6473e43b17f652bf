# torch on numpy
#   conv1d: ValueError raised
v0 = torch.conv1d(T((2, 0, 4), torch.float32, 2), T((2, 0, 4), torch.float32, 2), padding="same")
