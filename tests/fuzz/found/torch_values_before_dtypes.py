# torch on numpy
#   torch._C._nn.multilabel_margin_loss(...): NotImplementedError raised, the CPU: RuntimeError
v0 = T((1,), torch.int8, 2, "o")
torch._C._nn.multilabel_margin_loss(v0, I((1,), 2, 52), 0)
torch._C._nn.multilabel_margin_loss(v0, I((1,), 2, 52), 0, out=T((0,), torch.int64))
