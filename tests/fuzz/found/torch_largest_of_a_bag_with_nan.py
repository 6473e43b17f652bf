# torch on numpy
#   v0: values [0.0], the CPU: [nan]; NaN counts where a bag begins with it
v0 = F.embedding_bag(I((1, 3, 3), 2, 6).flatten(1), T((2, 1), torch.float32, 80), mode='max')
v1 = F.embedding_bag(I((2, 4), 9, 6), T((9, 3), torch.float32, 32), mode='max')
