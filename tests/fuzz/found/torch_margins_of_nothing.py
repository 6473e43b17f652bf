# torch on numpy
#   v4 = ...multilabel_margin_loss_forward...: TypeError raised, the CPU: nothing
v3 = T((0, 1), torch.bool, 2)
v4 = torch.ops.aten.multilabel_margin_loss_forward.default(v3, I((0, 1), 1, 73), 1)
v5 = torch.ops.aten.multilabel_margin_loss_forward.default(v3, I((0, 1), 1, 73), 0)
v7 = torch.ops.aten.multilabel_margin_loss_forward.default(T((0,), torch.float32, 2), I((0,), 1, 73), 0)
