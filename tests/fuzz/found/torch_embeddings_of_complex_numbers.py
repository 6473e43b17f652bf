# torch on tensorflow
#   torch.embedding_renorm_(v0, I((5, 2), 5, 2), 1.0, -0.5): TypeError raised, the CPU: nothing
v0 = T((5, 3), torch.complex64, 2)
torch.embedding_renorm_(v0, I((5, 2), 5, 2), 1.0, -0.5)
