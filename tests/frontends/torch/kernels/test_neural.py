"""Neural-network operators on the device against CPU PyTorch: results, dtypes and gradients, on every backend."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorgraft as tg
import tensorgraft.frontends.torch as front

pytestmark = pytest.mark.sampled

CASES = {}


class S(tuple):
    """The shape of a random input that gets a gradient."""


def case(name, fn, *args, tol=1e-4, dtype=torch.float32, **kwargs):
    assert name not in CASES
    CASES[name] = (fn, args, kwargs, tol, dtype)


@pytest.fixture(params=["jax", "numpy"])
def device(request):
    return tg.device(request.param)


def ints(high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(1))


def on(device, a):
    if isinstance(a, list):
        return [on(device, x) for x in a]
    return a.detach().to(device).requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a


def outputs(result):
    return [t for t in (result if isinstance(result, list | tuple) else [result]) if t is not None]


def inputs(args, dtype):
    torch.manual_seed(0)
    return [torch.randn(a, dtype=dtype).requires_grad_() if isinstance(a, S) else a for a in args]


# ---- convolution -----------------------------------------------------------------------------------------------------

X1, X2, X3 = S((2, 4, 9)), S((2, 4, 7, 6)), S((2, 4, 5, 4, 6))
case("conv1d", F.conv1d, X1, S((6, 4, 3)), S((6,)), stride=2, padding=1)
case("conv2d", F.conv2d, X2, S((6, 4, 3, 3)), S((6,)))
case("conv2d strided", F.conv2d, X2, S((6, 4, 3, 2)), None, stride=(2, 3), padding=(1, 2))
case("conv2d groups dilated", F.conv2d, X2, S((6, 2, 3, 2)), S((6,)), dilation=(2, 1), groups=2, padding=2)
case("conv2d depthwise", F.conv2d, X2, S((8, 1, 3, 3)), S((8,)), groups=4, padding="same")
case("conv2d unbatched", F.conv2d, S((4, 6, 6)), S((2, 4, 3, 3)))
case("conv2d bfloat16", F.conv2d, X2, S((6, 4, 3, 3)), S((6,)), dtype=torch.bfloat16, tol=4e-2)
case("conv3d", F.conv3d, X3, S((2, 4, 2, 3, 2)), S((2,)), stride=(1, 2, 1), padding=1)
case("conv_transpose1d", F.conv_transpose1d, X1, S((4, 3, 3)), S((3,)), stride=2, output_padding=1)
case("conv_transpose2d", F.conv_transpose2d, X2, S((4, 3, 3, 2)), S((6,)), stride=2, padding=1, groups=2)
case("conv_transpose2d dilated", F.conv_transpose2d, X2, S((4, 3, 3, 2)), None, dilation=2, output_padding=1)
case("conv_transpose3d", F.conv_transpose3d, X3, S((4, 2, 2, 2, 2)), S((2,)), stride=2)

# ---- normalisation and softmax ---------------------------------------------------------------------------------------

case("layer_norm", F.layer_norm, S((3, 4, 5)), (4, 5), S((4, 5)), S((4, 5)))
case("layer_norm plain", F.layer_norm, S((3, 5)), (5,))
case("layer_norm bfloat16", F.layer_norm, S((3, 5)), (5,), S((5,)), S((5,)), dtype=torch.bfloat16, tol=4e-2)
case("group_norm", F.group_norm, X2, 2, S((4,)), S((4,)))
case("instance_norm", F.instance_norm, X2, None, None, S((4,)), S((4,)))
case("rms_norm", F.rms_norm, S((3, 5)), (5,), S((5,)))
case("batch_norm", F.batch_norm, X2, None, None, S((4,)), S((4,)), True)
case("batch_norm evaluated", F.batch_norm, X2, torch.randn(4), torch.rand(4) + 0.5, S((4,)), S((4,)))
case("softmax", F.softmax, S((3, 4, 5)), 1)
case("softmax of a number", F.softmax, S(()), 0)
case("softmax bfloat16", F.softmax, S((3, 40)), -1, dtype=torch.bfloat16, tol=2e-2)
case("log_softmax", F.log_softmax, S((3, 4)), -1)
case("log_softmax to float32", F.log_softmax, S((3, 4)), 0, dtype=torch.bfloat16, tol=1e-2)
case("safe softmax", torch._safe_softmax, torch.tensor([[0.0, 1.0], [-np.inf, -np.inf]]), -1)

# ---- losses ----------------------------------------------------------------------------------------------------------

PAIR = (S((3, 4)), torch.rand(3, 4, generator=torch.Generator().manual_seed(3)))
for _reduction in ("none", "mean", "sum"):
    for _loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss):
        case(f"{_loss.__name__} {_reduction}", _loss, *PAIR, reduction=_reduction)
    case(
        f"binary_cross_entropy {_reduction}",
        lambda x, *a, **k: F.binary_cross_entropy(x.sigmoid(), *a, **k),
        *PAIR,
        weight=torch.rand(4),
        reduction=_reduction,
    )
    case(
        f"with_logits {_reduction}",
        F.binary_cross_entropy_with_logits,
        *PAIR,
        pos_weight=torch.rand(4),
        reduction=_reduction,
    )
    _target = torch.tensor([1, -100, 3, 0])
    case(f"nll_loss {_reduction}", F.nll_loss, S((4, 5)), _target, weight=torch.rand(5), reduction=_reduction)
    case(f"nll_loss2d {_reduction}", F.nll_loss, S((2, 5, 3, 2)), ints(5, 2, 3, 2), reduction=_reduction)
    case(f"cross_entropy {_reduction}", F.cross_entropy, S((4, 5)), _target, reduction=_reduction, label_smoothing=0.1)
    case(f"multi_margin {_reduction}", F.multi_margin_loss, S((4, 5)), ints(5, 4), p=2, reduction=_reduction)
    case(
        f"multilabel_margin {_reduction}",
        F.multilabel_margin_loss,
        S((2, 4)),
        torch.tensor([[3, 0, -1, 1], [1, 2, 3, -1]]),
        reduction=_reduction,
    )
    labels = torch.tensor([3, 0, -1, 1])
    case(f"multilabel_margin of a sample {_reduction}", F.multilabel_margin_loss, S((4,)), labels, reduction=_reduction)
    label = torch.tensor(2)
    case(f"multi_margin of a sample {_reduction}", F.multi_margin_loss, S((4,)), label, reduction=_reduction)
    case(
        f"ctc_loss {_reduction}",
        lambda x, *a, **k: F.ctc_loss(x.log_softmax(-1), *a, **k),
        S((8, 3, 5)),
        ints(4, 3, 3) + 1,
        (8, 6, 7),
        (3, 1, 0),
        reduction=_reduction,
    )
case("kl_div", F.kl_div, *PAIR, reduction="batchmean", log_target=True)
case("nll_loss of one", F.nll_loss, S((5,)), torch.tensor(2))
case(
    "ctc_loss concatenated",
    lambda x, *a, **k: F.ctc_loss(x.log_softmax(-1), *a, **k),
    S((8, 2, 5)),
    torch.tensor([1, 1, 2, 3]),
    (8, 2),
    (3, 1),
    zero_infinity=True,
)

# ---- pooling ---------------------------------------------------------------------------------------------------------

case("max_pool1d", F.max_pool1d, X1, 3, 2)
case("max_pool2d", F.max_pool2d, X2, 2)
case("max_pool2d indices", F.max_pool2d, X2, 3, 2, 1, 2, True, True)
case("max_pool2d of nan", F.max_pool2d, torch.tensor([[[1.0, np.nan, 3.0, -np.inf]]]), (1, 2), 1, return_indices=True)
case("max_pool2d of -inf", F.max_pool2d, torch.full((1, 3, 3), -np.inf), 2, padding=1, return_indices=True)
case("max_pool3d", F.max_pool3d, X3, 2, 1)
case("avg_pool1d", F.avg_pool1d, X1, 3, 2, 1)
case("avg_pool2d", F.avg_pool2d, X2, (3, 2), 2, 1, True, False)
case("avg_pool2d divisor", F.avg_pool2d, X2, 2, divisor_override=3)
case("avg_pool3d", F.avg_pool3d, X3, 2, 2, 1, True)
case("adaptive_avg_pool1d", F.adaptive_avg_pool1d, X1, 4)
case("adaptive_avg_pool2d", F.adaptive_avg_pool2d, X2, (3, 4))
case("adaptive_avg_pool2d of all", F.adaptive_avg_pool2d, X2, 1)
case("adaptive_avg_pool3d", F.adaptive_avg_pool3d, X3, (2, None, 4))
case("adaptive_max_pool1d", F.adaptive_max_pool1d, X1, 3, True)
case("adaptive_max_pool2d", F.adaptive_max_pool2d, X2, (3, 4), True)
case("adaptive_max_pool3d", F.adaptive_max_pool3d, X3, (2, 3, 4))
_samples = torch.rand(2, 4, 2, generator=torch.Generator().manual_seed(5))
case("fractional_max_pool2d", torch.ops.aten.fractional_max_pool2d, X2, [2, 2], [3, 4], _samples)
_samples = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(5))
case("fractional_max_pool3d", torch.ops.aten.fractional_max_pool3d, X3, [2, 2, 2], [3, 2, 4], _samples)
case(
    "fractional_max_pool3d of one",
    torch.ops.aten.fractional_max_pool3d,
    S((4, 6, 5, 7)),
    [2, 2, 2],
    [3, 2, 4],
    _samples,
)
case("lp_pool2d", F.lp_pool2d, S((1, 2, 4, 4)), 2, 2)
case("max_unpool2d", F.max_unpool2d, S((1, 1, 2, 2)), torch.tensor([[[[0, 3], [9, 14]]]]), 2)

# ---- other sizes -----------------------------------------------------------------------------------------------------

for _mode, _x in (("nearest", X3), ("nearest-exact", X2), ("linear", X1), ("bilinear", X2), ("bicubic", X2)):
    for _factor in (0.6, 1.7):
        case(f"{_mode} {_factor}", F.interpolate, _x, scale_factor=_factor, mode=_mode)
case("trilinear corners", F.interpolate, X3, size=(3, 7, 6), mode="trilinear", align_corners=True)
case("bicubic corners", F.interpolate, X2, size=(3, 9), mode="bicubic", align_corners=True)
case("bilinear antialias", F.interpolate, X2, size=(3, 9), mode="bilinear", antialias=True)
case("bicubic antialias", F.interpolate, X2, size=(3, 4), mode="bicubic", antialias=True)
case("bilinear bfloat16", F.interpolate, X2, scale_factor=2, mode="bilinear", dtype=torch.bfloat16, tol=4e-2)
for _mode in ("reflect", "replicate", "circular"):
    case(f"pad1d {_mode}", F.pad, X1, (2, 3), _mode)
    case(f"pad2d {_mode}", F.pad, X2, (1, 2, 3, 1), _mode)
    case(f"pad3d {_mode}", F.pad, X3, (1, 2, 3, 1, 2, 2), _mode)
_grid = torch.rand(2, 3, 5, 2, generator=torch.Generator().manual_seed(4)) * 3 - 1.5
for _mode in ("bilinear", "nearest", "bicubic"):
    for _padding in ("zeros", "border", "reflection"):
        case(f"grid_sample {_mode} {_padding}", F.grid_sample, X2, _grid.requires_grad_(), _mode, _padding, False)
case("grid_sample 3d", F.grid_sample, X3, S((2, 2, 3, 2, 3)), align_corners=True)
case("pixel_shuffle", F.pixel_shuffle, X2, 2)
case("unfold", F.unfold, X2, 3, 1, 1, 2)
case("fold", F.fold, S((2, 8, 20)), (5, 6), 2)

# ---- attention and recurrence ----------------------------------------------------------------------------------------

QKV = (S((2, 4, 5, 8)), S((2, 4, 6, 8)), S((2, 4, 6, 8)))
case("attention", F.scaled_dot_product_attention, *QKV)
case("attention causal", F.scaled_dot_product_attention, *QKV, is_causal=True)
case("attention masked", F.scaled_dot_product_attention, *QKV, attn_mask=ints(2, 5, 6).bool() | torch.eye(5, 6).bool())
case("attention biased", F.scaled_dot_product_attention, *QKV, attn_mask=torch.rand(2, 1, 5, 6))
case(
    "attention grouped",
    F.scaled_dot_product_attention,
    QKV[0],
    S((2, 2, 6, 8)),
    S((2, 2, 6, 8)),
    enable_gqa=True,
    scale=0.5,
)
case("rrelu", F.rrelu, S((3, 4)))


@pytest.mark.parametrize("name", CASES)
def test_operator(name, device):
    fn, args, kwargs, tol, dtype = CASES[name]
    args = inputs(args, dtype)
    theirs = [on(device, a) for a in args]
    named = {k: on(device, v) for k, v in kwargs.items()}
    before = front.fallbacks()
    expected, got = outputs(fn(*args, **kwargs)), outputs(fn(*theirs, **named))
    assert front.fallbacks() == before
    assert len(expected) == len(got)
    for e, g in zip(expected, got, strict=True):
        assert g.device == device and g.dtype == e.dtype and g.shape == e.shape
        torch.testing.assert_close(g.detach().cpu(), e.detach(), rtol=tol, atol=tol, equal_nan=True)
    roots = [(e, g) for e, g in zip(expected, got, strict=True) if e.requires_grad]
    if not roots:
        return
    torch.manual_seed(1)
    seeds = [torch.randn(e.shape).to(e.dtype) for e, _ in roots]
    wanted = [(a, t) for a, t in zip(args, theirs, strict=True) if isinstance(a, torch.Tensor) and a.requires_grad]
    grads = torch.autograd.grad([e for e, _ in roots], [a for a, _ in wanted], seeds)
    ours = torch.autograd.grad([g for _, g in roots], [t for _, t in wanted], on(device, seeds))
    assert front.fallbacks() == before
    for e, g in zip(grads, ours, strict=True):
        assert g.dtype == e.dtype and g.shape == e.shape
        torch.testing.assert_close(g.cpu(), e, rtol=tol, atol=tol)


# ---- modules ---------------------------------------------------------------------------------------------------------


def twins(module, device):
    torch.manual_seed(0)
    mine = module()
    return mine, copy.deepcopy(mine).to(device)


def check_training(mine, theirs, device, *x):
    a, b = outputs(mine(*x))[0], outputs(theirs(*on(device, list(x))))[0]
    torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-4, atol=1e-5)
    a.square().sum().backward()
    b.square().sum().backward()
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-3, atol=1e-4)


def test_batch_norm_keeps_statistics(device):
    mine, theirs = twins(lambda: nn.BatchNorm2d(4), device)
    check_training(mine, theirs, device, torch.randn(3, 4, 2, 2))
    for name, buffer in mine.named_buffers():
        torch.testing.assert_close(theirs.get_buffer(name).cpu(), buffer)


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_in_evaluation(norm_first, device):
    mine, theirs = twins(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first), device)
    mine.eval(), theirs.eval()
    x, causal = torch.randn(2, 5, 8), torch.ones(5, 5).triu(1).bool()
    padding = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]).bool()
    masks = [{}, {"src_mask": causal}, {"src_key_padding_mask": padding}]
    with torch.no_grad():
        for mask in [*masks, {**masks[1], **masks[2]}]:
            got = theirs(x.to(device), **{k: on(device, v) for k, v in mask.items()})
            torch.testing.assert_close(got.cpu(), mine(x, **mask), rtol=1e-4, atol=1e-5)


def test_multihead_attention_in_evaluation(device):
    mine, theirs = twins(lambda: nn.MultiheadAttention(8, 2, batch_first=True).eval(), device)
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        for kwargs in ({}, {"need_weights": False}, {"average_attn_weights": False}):
            expected, got = mine(x, x, x, **kwargs), theirs(*[x.to(device)] * 3, **kwargs)
            assert (expected[1] is None) == (got[1] is None)
            for e, g in zip(outputs(expected), outputs(got), strict=True):
                torch.testing.assert_close(g.cpu(), e, rtol=1e-4, atol=1e-5)


# ---- lists of tensors ------------------------------------------------------------------------------------------------

LIST = [torch.randn(3, 4), torch.randn(5), ints(5, 2), torch.randn(2).bfloat16(), torch.tensor(2.0)]
FOREACH = {
    "add a number": lambda x: torch._foreach_add(x, 1.5),
    "add an integer": lambda x: torch._foreach_add(x, 1),
    "add a list": lambda x: torch._foreach_add(x, x, alpha=2),
    "multiply by numbers": lambda x: torch._foreach_mul(x, [1, 2.0, 3, 4.0, 5]),
    "multiply by a tensor": lambda x: torch._foreach_mul(x, x[-1]),
    "divide": lambda x: torch._foreach_div(x, 2),
    "sqrt": lambda x: torch._foreach_sqrt(x),
    "pow": lambda x: torch._foreach_pow(x, 2),
    "pow of a number": lambda x: torch._foreach_pow(0.9, x),
    "maximum": lambda x: torch._foreach_maximum(x, 0.5),
    "addcmul": lambda x: torch._foreach_addcmul(x, x, x, 2),
    "norm": lambda x: torch._foreach_norm(x[:2]),
    "lerp": lambda x: torch._foreach_lerp(x[:2], [x[1][:4], x[1]], 0.3),
    "in place": lambda x: torch._foreach_add_([y.clone() for y in x], 1) or x,
}


@pytest.mark.parametrize("name", FOREACH)
def test_foreach(name, device):
    expected, got = FOREACH[name](LIST), FOREACH[name](on(device, LIST))
    for e, g in zip(expected, got, strict=True):
        assert e.dtype == g.dtype
        torch.testing.assert_close(g.cpu(), e, equal_nan=True)


# ---- random numbers --------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_numbers(device):
    torch.manual_seed(3)
    first = torch.rand(5, device=device).cpu(), torch.randperm(7, device=device).cpu()
    torch.manual_seed(3)
    again = torch.rand(5, device=device).cpu(), torch.randperm(7, device=device).cpu()
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert sorted(first[1].tolist()) == list(range(7))


RANGES = {torch.uint8: 255, torch.int8: 127, torch.int64: 2**63 - 1, torch.float32: 2**24, torch.bool: 1}


@pytest.mark.parametrize("dtype", RANGES, ids=str)
def test_random_covers_the_range_of_the_dtype(dtype, device):
    x = torch.zeros(20_000, dtype=dtype, device=device).random_().cpu().double()
    assert 0 <= x.min() <= 0.01 * RANGES[dtype] and 0.99 * RANGES[dtype] <= x.max() <= RANGES[dtype]


def test_multinomial_without_replacement(device):
    weights = torch.tensor([[1.0, 0.0, 2.0, 3.0]] * 50, device=device)
    picked = torch.multinomial(weights, 3).cpu()
    assert all(sorted(row) == [0, 2, 3] for row in picked.tolist())


BAD = {
    "normal_": lambda x: x.normal_(0, -1),
    "uniform_": lambda x: x.uniform_(1, 0),
    "exponential_": lambda x: x.exponential_(-1),
    "geometric_": lambda x: x.geometric_(2.0),
    "bernoulli_": lambda x: x.bernoulli_(2.0),
    "random_": lambda x: x.random_(3, 2),
    "dropout": lambda x: F.dropout(x, 1.5),
    "conv2d": lambda x: F.conv2d(x.view(1, 1, 2, 2), x.new_ones(1, 1, 3, 3)),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "nll_loss": lambda x: F.nll_loss(x.view(2, 2), torch.zeros(3, dtype=torch.int64, device=x.device)),
    "nll_loss of no class": lambda x: F.nll_loss(x.view(2, 2), torch.tensor([0, 2], device=x.device)),
    "max_pool2d": lambda x: F.max_pool2d(x.view(1, 2, 2), 3),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name, device):
    with pytest.raises((RuntimeError, ValueError, IndexError)) as expected:
        BAD[name](torch.ones(4))
    with pytest.raises(type(expected.value)):
        BAD[name](torch.ones(4, device=device))
