"""`F.scaled_dot_product_attention` against CPU PyTorch: one operator where the CPU has one, in parts elsewhere."""

import re

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import tensorgraft as tg

pytestmark = pytest.mark.sampled

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
SEEN = torch.rand(5, 6, generator=torch.Generator().manual_seed(0)) > 0.4
SEEN[2] = False  # a query that sees no key
ADDED = torch.where(SEEN, 0.5, -torch.inf)
Q, K = (2, 4, 5, 8), (2, 4, 6, 8)
CASES = {
    "plain": (Q, K, {}),
    "causal": (Q, K, {"is_causal": True}),
    "causal, in parts": ((1, 2, 520, 4), (1, 2, 300, 4), {"is_causal": True}),
    "groups": (Q, (2, 2, 6, 8), {"enable_gqa": True, "scale": 0.3}),
    "bool": (Q, K, {"attn_mask": SEEN}),
    "padding": (Q, K, {"attn_mask": SEEN[:2, None, None]}),
    "added": (Q, K, {"attn_mask": ADDED.expand(2, 4, 5, 6).contiguous()}),
    "added and causal": (Q, K, {"attn_mask": ADDED, "is_causal": True}),
    "three axes": (Q[1:], K[1:], {"attn_mask": SEEN}),
    "three axes, groups": (Q[1:], (2, 6, 8), {"enable_gqa": True}),
    "one head of keys": (Q, (2, 1, 6, 8), {}),
    "no queries": ((2, 4, 0, 8), K, {}),
}


def run(device, case, dtype, dense=True):
    query, key, options = CASES[case]
    torch.manual_seed(0)
    shapes = [query, key, key]
    operands = [torch.randn(s) for s in shapes]
    if not dense:  # as (N, L, H, E), which is how they come out of a linear layer
        operands = [x.transpose(-2, -3).contiguous().transpose(-2, -3) for x in operands]
    operands = [x.to(dtype).to(device).requires_grad_() for x in operands]
    options = {
        name: (x if x.dtype is torch.bool else x.to(dtype)).to(device) if isinstance(x, torch.Tensor) else x
        for name, x in options.items()
    }
    out = F.scaled_dot_product_attention(*operands, **options)
    grad = torch.randn(out.shape).to(dtype).to(device)
    return [out, *torch.autograd.grad(out, operands, grad)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_values_gradients_and_strides(backend, case, dtype):
    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-5
    for dense in (True, False):
        try:
            run("cpu", case, dtype, dense)
        except RuntimeError as error:  # a mask beside is_causal, since PyTorch 2.15
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                run(tg.device(backend), case, dtype, dense)
            continue
        for ours, theirs in zip(
            run(tg.device(backend), case, dtype, dense), run("cpu", case, dtype, dense), strict=True
        ):
            assert ours.stride() == theirs.stride() and ours.dtype is theirs.dtype
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"attn_mask": SEEN}], ids=["causal", "bool"])
def test_compiled(options):
    device = tg.device("jax")

    def step(q, k, v, options):
        operands = [x.detach().requires_grad_() for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*operands, **options)
        return [out.detach(), *torch.autograd.grad((out**3).sum(), operands)]

    theirs = step(*operands("cpu", Q, K, K), options)
    there = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    for a, b in zip(tg.jit(step)(*operands(device, Q, K, K), there), theirs, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a.cpu(), b)


def operands(device, *shapes):
    torch.manual_seed(0)
    return [torch.randn(s, dtype=torch.float64).to(device) for s in shapes]


def second(q, k, v, **options):
    operands = [x.clone().requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*operands, **options)
    grads = torch.autograd.grad((out**3).sum(), operands, create_graph=True)
    return [*grads, *torch.autograd.grad(sum((g**2).sum() for g in grads), operands)]


def masked(q, k, v):
    return second(q, k, v, attn_mask=SEEN.to(q.device))


def of_the_mask(q, k, v):
    mask = torch.zeros(5, 6, dtype=q.dtype).to(q.device).requires_grad_()
    return torch.autograd.grad((F.scaled_dot_product_attention(q, k, v, mask) ** 2).sum(), mask)


def forward_mode(q, k, v):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(F.scaled_dot_product_attention(forward_ad.make_dual(q, q + 1), k, v))


def forward_over_reverse(q, k, v):
    q = q.clone().requires_grad_()
    out = F.scaled_dot_product_attention(q, k, v)
    with forward_ad.dual_level():
        cotangent = forward_ad.make_dual(out.detach(), out.detach() + 1)
        return forward_ad.unpack_dual(torch.autograd.grad(out, q, cotangent)[0])


def hessian(q, k, v):
    q, k, v = (x[:1, :1, :3, :2] for x in (q, k, v))
    return [torch.func.hessian(lambda q: (F.scaled_dot_product_attention(q, k, v, is_causal=True) ** 2).sum())(q)]


def batched(q, k, v):
    return [torch.vmap(lambda q, k: F.scaled_dot_product_attention(q, k, v))(q[None], k[None])]


def inference(q, k, v):
    with torch.inference_mode():
        return [F.scaled_dot_product_attention(q, k, v, SEEN.to(q.device))]


WAYS = [second, masked, of_the_mask, forward_mode, forward_over_reverse, hessian, batched, inference]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_derivatives(way):
    with sdpa_kernel(SDPBackend.MATH):  # the CPU's kernel has no second derivative and no forward mode
        theirs = way(*operands("cpu", Q, K, K))
    for a, b in zip(way(*operands(tg.device("numpy"), Q, K, K)), theirs, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach())


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.seen.append(op)
        return op(*args, **(kwargs or {}))


def test_who_watches_operators_sees_the_parts():
    with Names() as names:
        F.scaled_dot_product_attention(*operands(tg.device("numpy"), Q, K, K))
    assert FUSED not in names.seen and torch.ops.aten.bmm.default in names.seen


def test_it_is_one_operator():
    q, k, v = operands(tg.device("jax"), Q, K, K)
    report = str(tg.explain(tg.jit(lambda q: F.scaled_dot_product_attention(q, k, v, is_causal=True)), q))
    assert "_scaled_dot_product_flash_attention" in report and "bmm" not in report


def test_dropout():
    q, k, v = operands(tg.device("numpy"), Q, K, K)
    out = F.scaled_dot_product_attention(q, k, torch.ones_like(v), dropout_p=0.5)
    assert out.std() > 0.05
    with pytest.raises(RuntimeError, match="dropout"):
        FUSED(q, k, v, 0.5)


@pytest.mark.parametrize("shapes", [(Q, (2, 4, 6, 7), K), (Q, (2, 3, 6, 8), (2, 3, 6, 8)), ((8,), K, K)], ids=str)
def test_errors(shapes):
    found = []
    for device in ("cpu", tg.device("numpy")):
        with pytest.raises(RuntimeError) as error:
            F.scaled_dot_product_attention(*operands(device, *shapes))
        found.append(type(error.value))
    assert found[0] is found[1]
