# torch on numpy
#   v1[0]: dtype torch.float32, the CPU: torch.bfloat16
v0 = T((2, 3, 4), torch.float32, 2)
m = prepared(nn.LSTM(4, 3, batch_first=True), 2, D)
with torch.autocast(D.type, dtype=torch.bfloat16): v1 = m(v0)
