"""Results lie in memory as on the CPU: contiguous, channels last, permuted, with gaps; gradients too."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import linalg

import tensorgraft as tg

aten = torch.ops.aten
LAST = torch.channels_last


@pytest.fixture(params=["jax", "numpy"])
def device(request):
    return tg.device(request.param)


def on(t, device):
    """A tensor on the device that lies as one on the CPU."""
    whole = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())
    return whole.to(device).as_strided(t.shape, t.stride(), t.storage_offset())


def tensors(*shapes):
    return [torch.linspace(-1, 2, torch.Size(s).numel()).reshape(s) for s in shapes]


def turned(t):
    return t.mT.contiguous().mT


X, Y, SMALL, IMAGE = tensors((4, 5), (10, 5), (10, 1, 5), (2, 4, 6, 6))
T, NHWC = turned(Y), IMAGE.contiguous(memory_format=LAST)
GAPS = torch.arange(48.0).reshape(4, 12)[:, ::2]
W1, W2, W3 = tensors((3, 5), (4, 4, 3, 3), (4, 4, 3))
SERIES = IMAGE[:, :, 0].contiguous()
VOLUME, W5 = (t.contiguous(memory_format=torch.channels_last_3d) for t in tensors((2, 2, 4, 4, 4), (2, 2, 2, 2, 2)))
WIDE, TALL, SQUARE, CUBE = tensors((3, 4), (6, 3), (4, 4), (3, 4, 5))
REAL = CUBE.permute(2, 0, 1)

CASES = {
    "add": (torch.add, T, T),
    "add of two orders": (torch.add, T, Y),
    "broadcast": (torch.logical_and, SMALL, T),
    "logaddexp": (torch.logaddexp, SMALL, T),
    "copysign": (torch.copysign, T, torch.tensor(-1.0)),
    "floor_divide": (lambda x: torch.floor_divide(x.detach(), 2.0), T),
    "gaps": (torch.exp, GAPS),
    "ldexp": (torch.ldexp, SMALL, T),
    "pow of a number": (lambda x: torch.pow(2.0, x), T),
    "conv2d": (F.conv2d, NHWC, W2),
    "conv2d by its weight": (F.conv2d, IMAGE, W2.contiguous(memory_format=LAST)),
    "conv2d contiguous": (F.conv2d, IMAGE, W2),
    "conv1d": (F.conv1d, SERIES, turned(W3)),
    "conv_transpose2d": (F.conv_transpose2d, NHWC, W2),
    "conv3d": (F.conv3d, VOLUME, W5),
    "conv_transpose3d": (F.conv_transpose3d, VOLUME, W5),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), NHWC),
    "batch_norm turned": (lambda x: F.batch_norm(x, None, None, training=True), turned(IMAGE)),
    "pad": (lambda x: F.pad(x, (1, 2, 1, 0), mode="reflect"), NHWC),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), NHWC),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), NHWC),
    "max_unpool2d": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), NHWC),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), NHWC),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2), NHWC),
    "huber_loss": (F.huber_loss, T, T.neg()),
    "mse_loss": (F.mse_loss, T, T.neg()),
    "log_softmax": (lambda x: F.log_softmax(x, 1), T),
    "glu": (lambda x: F.glu(x, 1), NHWC),
    "linear": (F.linear, X, W1),
    "linear turned": (F.linear, turned(X), turned(W1)),
    "matmul": (torch.matmul, turned(X), W1.T),
    "qr": (linalg.qr, WIDE),
    "svd": (linalg.svd, CUBE),
    "eig": (linalg.eig, SQUARE),
    "geqrf": (torch.geqrf, WIDE),
    "lstsq": (lambda a, b: linalg.lstsq(a, b).solution, WIDE, WIDE + 1),
    "lstsq with gaps": (lambda a, b: linalg.lstsq(a, b).solution, TALL.cos(), TALL[:, :2]),
    "nonzero": (lambda x: torch.nonzero(x > 0), X),
    "nonzero_static": (lambda x: torch.nonzero_static(x > 0, size=7), X),
    "unique rows": (lambda x: torch.unique(x, dim=1, return_inverse=True), CUBE),
    "consecutive rows": (lambda x: torch.unique_consecutive(x.detach(), dim=1), CUBE),
    "out": (lambda x: torch.logical_not(x, out=x.new_empty(0, dtype=torch.bool)), T),
    "resize to the same size": (lambda x: x.clone().resize_as_(x), T),
    "normal": (torch.normal, T, T.abs()),
}
for _axes in itertools.chain.from_iterable(itertools.permutations(range(3), k) for k in (1, 2, 3)):
    CASES[f"rfft {_axes}"] = (lambda x, a=_axes: torch.fft.rfftn(x, dim=a), REAL)
    CASES[f"irfft {_axes}"] = (lambda x, a=_axes: torch.fft.irfftn(x, dim=a), REAL)


@pytest.mark.parametrize("name", CASES)
def test_lies_as_on_the_cpu(name, device):
    fn, *args = CASES[name]
    found = []
    for inputs in (args, [on(a, device) for a in args]):
        leaves = [
            a.detach().requires_grad_(name not in ("normal", "geqrf", "eig", "unique rows", "out")) for a in inputs
        ]
        if name.startswith("resize"):
            leaves = inputs
        made = fn(*leaves)
        outs = [made] if isinstance(made, torch.Tensor) else list(made)
        strides = [o.stride() for o in outs]
        differentiable = [o for o in outs if o.requires_grad]
        if differentiable and name not in ("svd", "qr"):
            grads = torch.autograd.grad(
                differentiable, leaves, [torch.ones_like(o) for o in differentiable], allow_unused=True
            )
            strides += [None if g is None else g.stride() for g in grads]
        found.append(strides)
    assert found[1] == found[0]


def test_gaps_are_zeros_and_values_right(device):
    a, b = TALL.cos().to(device), TALL[:, :2].to(device)
    solution = linalg.lstsq(a, b).solution
    torch.testing.assert_close(solution.cpu(), linalg.lstsq(TALL.cos(), TALL[:, :2]).solution)
    assert solution.untyped_storage().nbytes() == 4 * ((3 - 1) * 1 + (2 - 1) * 6 + 1)
    solution += 1
    torch.testing.assert_close((solution - 1).cpu(), linalg.lstsq(TALL.cos(), TALL[:, :2]).solution)


def test_out_that_grows_stays_at_its_offset(device):
    """Exactly, also where an axis has one element."""

    def lie(place):
        flat = torch.zeros(1, 1, 3).to(place)[1:]
        torch.eq(torch.zeros(1, 2, 1, 3).to(place), torch.zeros(2, 1, 3).to(place), out=flat)
        windows = torch.zeros(0, 2).to(place)
        torch.logical_or(torch.zeros(2, 2).to(place).unfold(0, 1, 1), torch.tensor(1.0).to(place), out=windows)
        return [(t.shape, t.stride(), t.storage_offset(), t.tolist()) for t in (flat, windows)]

    assert lie(device) == lie("cpu")


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (1, 1, 3), (2, 3)])
def test_positions_lie_by_axis(shape, device):
    for make in (torch.zeros, torch.ones):
        assert make(shape, device=device).nonzero().stride() == make(shape).nonzero().stride()
