# torch on torch jit
#   v1: values [1j, 2j], the CPU: [-1j, -2j] (and so under any TorchDispatchMode)
v0 = T((2,), torch.complex64, 47)
v1 = T((2,), torch.complex64, 48)
import torch.utils.flop_counter
with torch.utils.flop_counter.FlopCounterMode(display=False): v1.copy_(v0.conj())
with torch.utils.flop_counter.FlopCounterMode(display=False): v2 = v0.conj().to(torch.complex128)
v3 = v0.conj()
v3.mul_(2)
v3.imag.copy_(v3.imag)
v4 = v3.to(torch.complex128)
