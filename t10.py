import torch, tensorgraft as tg, traceback
for d in ("cpu","jax","torch"):
    D=tg.device(d) if d!="cpu" else torch.device("cpu")
    J=(lambda f: tg.jit(f,compile="first")) if d!="cpu" else (lambda f: f)
    x=torch.tensor([1+2j,3-1j],device=D)
    def f(x):
        y=x*2; return y, y.conj(), y.conj().imag, torch._neg_view(y), (x*3).conj(), (x*3).conj().imag
    for v in J(f)(x): print(d, v.is_conj(), v.is_neg(), v.cpu().resolve_conj().resolve_neg().tolist())
    def g(x):
        z=x.expand(2,2); return z, z.real, x.conj(), x.imag, x.conj().imag
    try:
        r=J(g)(x); print([v.cpu().resolve_conj().resolve_neg().tolist() for v in r]); r[1].mul_(2); print(x.cpu().tolist(), x._version)
        r=J(g)(x.conj()); print([v.cpu().resolve_conj().resolve_neg().tolist() for v in r])
        r=J(lambda x: x.view(torch.int32))(torch.ones(2,device=D)); print(r.tolist())
    except Exception: print(traceback.format_exc()[-1200:])
    w=torch.tensor([1+2j,3-1j],device=D,requires_grad=True)
    def h(w):
        y=w*w; return y.conj(), y.imag
    a,b=J(h)(w); (a.real.sum()*3+(b*b).sum()).backward(); print(w.grad.cpu().resolve_conj().tolist())
    w=torch.tensor([1+2j,3-1j],device=D,requires_grad=True)
    def k(w):
        w.conj().mul(2+1j).conj().real.sum().backward(); return w.grad
    r=J(k)(w); print(r.cpu().resolve_conj().tolist(), w.grad.cpu().resolve_conj().tolist(), w.grad.is_conj())
