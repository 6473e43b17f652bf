"""complex32 on the device: storages hold pairs of float16, values are computed in complex64 and rounded once."""

import copy
import io

import numpy as np
import pytest
import torch
from torch._higher_order_ops.scan import scan

import tensorgraft as tg
from tensorgraft.frontends.torch.dispatch import references

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:Casting complex values")

rarely = pytest.mark.slow_with("torch", "tensorflow")  # jax and numpy show the same
MODES = ["tiered", "compiled"]
UNARY = [
    "abs",
    "acos",
    "acosh",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "conj_physical",
    "cos",
    "cosh",
    "exp",
    "isfinite",
    "isinf",
    "log",
    "neg",
    "positive",
    "rsqrt",
    "sgn",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
]
BINARY = ["add", "sub", "mul", "div", "eq", "ne"]


@pytest.fixture(params=["jax", "numpy", "torch", "tensorflow"])
def backend(request):
    return request.param


@pytest.fixture
def device(backend):
    return tg.device(backend)


def values(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.view_as_complex(torch.randn(*shape, 2, generator=generator).half())


def bits(t):
    t = t.detach().cpu().resolve_conj().resolve_neg()
    return torch.view_as_real(t).contiguous().view(torch.int16) if t.is_complex() else t


def same(ours, native):
    assert ours.dtype == native.dtype and ours.shape == native.shape
    assert torch.equal(bits(ours), bits(native)), (ours, native)


def rounded(t):
    """Return the result of an operator on complex64 as that of complex32."""
    t = t.detach().cpu()
    return t.to(torch.complex32 if t.is_complex() else torch.float16) if t.is_complex() or t.is_floating_point() else t


def both(fn, device, *args):
    """Compare `fn` on the device with it on the CPU, bit by bit."""
    ours, native = fn(*[a.to(device) for a in args]), fn(*args)
    for a, b in zip(ours, native, strict=True):
        same(a, b)


# ---- values ----------------------------------------------------------------------------------------------------------


@rarely
def test_moves_keep_the_values_and_the_layout(device):
    x = values(3, 4)
    x[0, 0] = complex(torch.inf, -65504)
    for t in (x, x.T, x[1:, ::2], x[0, 0], x.conj(), x[:0], x[:, :1].expand(3, 4)):
        there = t.to(device)
        assert there.dtype is torch.complex32 and there.is_conj() == t.to("cpu", copy=True).is_conj()
        assert there.stride() == t.to("cpu", copy=True).stride()
        same(there, t)
        same(there.to(torch.complex128), t.to(torch.complex128))


@rarely
@pytest.mark.parametrize("mode", MODES)
def test_operators_compute_in_complex64_and_round_once(device, mode):
    x, y = values(3, 4), values(3, 1, seed=1)
    there, other = x.to(device), y.to(device)
    wide, other_wide = there.to(torch.complex64), other.to(torch.complex64)
    with tg.eager(mode):
        for name in UNARY:
            same(getattr(torch, name)(there), rounded(getattr(torch, name)(wide)))
        for name in BINARY:
            same(getattr(torch, name)(there, other), rounded(getattr(torch, name)(wide, other_wide)))
        same(there / 0.1, rounded(wide / 0.1))
        same(torch.lerp(there, there + 1, 0.25), rounded(torch.lerp(wide, (there + 1).to(torch.complex64), 0.25)))
        same(there.sum(1), rounded(wide.sum(1)))
        same(there.prod(0), rounded(wide.prod(0)))
        same(there**2, rounded(wide**2))
        same(torch.eye(2, dtype=torch.complex32, device=device), torch.eye(2).to(torch.complex32))
        square = there[:, :3]
        same(square.trace(), rounded(square.to(torch.complex64).trace()))


@rarely
@pytest.mark.parametrize("mode", MODES)
def test_operands_are_rounded_where_the_cpu_rounds_them(device, mode):
    def program(x):
        number = torch.tensor(0.3 - 0.1j, dtype=torch.complex128, device=x.device)
        multiples = torch.add(x, x[:1], alpha=0.3), torch.sub(x, x.conj(), alpha=0.7)
        return *multiples, x * 0.1, 0.1j - x, x + 0.7, x * number, number - x, x == x[0] + 0.1

    with tg.eager(mode):
        both(program, device, values(50))


@rarely
@pytest.mark.parametrize("mode", MODES)
def test_products_are_rounded_where_the_cpu_rounds_them(device, mode):
    def program(x, y, z):
        number = torch.tensor(0.3 - 0.1j, dtype=torch.complex128, device=x.device)
        written = [x.clone()]
        torch._foreach_add_(written, [y], alpha=0.3)
        return (
            torch.addcmul(x, y, z),
            torch.addcmul(x, y, z, value=0.3 - 0.2j),
            torch.rsub(x, y, alpha=0.3),
            *written,
            *torch._foreach_add([x], [y], alpha=0.3),
            *torch._foreach_sub([x, y], [y, z], alpha=0.7),
            *torch._foreach_mul([x, y], 0.1),
            *torch._foreach_mul([x], number),
            *torch._foreach_add([x, y], [0.1, 0.2j]),
            *torch._foreach_addcmul([x], [y], [z], 0.3),
        )

    with tg.eager(mode):
        both(program, device, values(50), values(50, seed=1), values(50, seed=2))


@rarely
@pytest.mark.parametrize("mode", MODES)
def test_fourier_transforms(device, mode):
    x = values(3, 8).to(device)
    wide = x.to(torch.complex64)
    with tg.eager(mode):
        for fn in (torch.fft.fft, torch.fft.ifft, torch.fft.fft2, torch.fft.ifftn, torch.fft.irfft, torch.fft.hfft):
            same(fn(x), rounded(fn(wide)))
        same(torch.fft.fftshift(x), rounded(torch.fft.fftshift(wide)))


@rarely
def test_convolutions(device):
    x, w = values(2, 1, 7).to(device), values(3, 1, 2, seed=1).to(device)
    out = torch.nn.functional.conv1d(x, w)
    wide = torch.nn.functional.conv1d(x.to(torch.complex64), w.to(torch.complex64))
    assert out.dtype is torch.complex32
    torch.testing.assert_close(out.to(torch.complex64), wide, rtol=2e-3, atol=2e-3)


@rarely
@pytest.mark.parametrize("other", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32,
                                   torch.float64, torch.complex32, torch.complex64, torch.complex128])  # fmt: skip
def test_promotion(device, other):
    x, y = values(2).to(device), torch.ones(2, dtype=other, device=device)
    for a, b in ((x, y), (y, x), (x, y[0]), (x[0], y)):
        out = a * b
        assert out.dtype is torch.result_type(a, b)
        same(out, (a.to(torch.complex128) * b.to(torch.complex128)).cpu().to(out.dtype))
    assert torch.cat([x, y]).dtype is torch.promote_types(torch.complex32, other)


@rarely
def test_promotion_with_numbers_and_tensors_on_the_cpu(device):
    x, half = values(3), torch.ones(3, dtype=torch.float16)
    both(lambda x: (x * 2, x + 0.5, x - 1j, x * True), device, x)
    assert (half.to(device) * 1j).dtype is torch.complex32
    scalar = torch.tensor(1 + 2j, dtype=torch.complex32)
    same(x.to(device) * scalar, x * scalar)
    same(tg.jit(torch.mul)(x.to(device), scalar), x * scalar)


# ---- memory ----------------------------------------------------------------------------------------------------------


def writes(x, y):
    x = x.clone()
    x[1:] += y[1:]
    x[:, 0] = 5
    x.T[2].mul_(2)
    torch.view_as_real(x)[0, 0, 1] = 7
    x.real[2] = 1
    x.imag.add_(1)
    x.conj()[0, 1] = 3 + 4j
    x.view(torch.float16)[2, -1] = 0.5
    x.view(torch.int32)[0, 3] = 0x3C004000
    x[torch.tensor([0, 2], device=x.device), 1] = y[:2, 0]
    x.index_add_(0, torch.tensor([1], device=x.device), y[:1])
    x.masked_fill_(x.real > 1, -1j)
    x[x.imag < -0.5] = 2
    return x, x.real, torch.view_as_real(x), x.view(torch.int32), x.flip(0), x.diagonal(), torch.stack([x, y])


@pytest.mark.parametrize("mode", MODES)
def test_writes_through_views(device, mode):
    with tg.eager(mode):
        both(writes, device, values(3, 4), values(3, 4, seed=1))


def test_writes_in_compiled_functions_and_in_lazy_mode(device):
    def program(x, y):
        x = x.clone()
        x[1:] += y[1:]
        torch.view_as_real(x)[0, 0, 1] = 7
        x.real[2] = 1
        x.T[2].mul_(2)
        z = (x * y + 0.5).sin()
        z.imag.zero_()
        return x, z, x.view(torch.int32)

    x, y = values(3, 4).to(device), values(3, 4, seed=1).to(device)
    expected = program(x, y)
    for a, b in zip(tg.jit(program, compile="first")(x, y), expected, strict=True):
        same(a, b)
    with tg.lazy():
        out = program(x, y)
    for a, b in zip(out, expected, strict=True):
        same(a, b)


@rarely
def test_compiled_functions_write_their_arguments(device):
    def step(x, view):
        x *= 2
        view[0] = 3

    x, native = values(4).to(device), values(4)
    tg.jit(step, compile="first")(x, torch.view_as_real(x))
    step(native, torch.view_as_real(native))
    same(x, native)


@rarely
@pytest.mark.parametrize("mode", MODES)
def test_creation_and_structure(device, mode):
    def make(x):
        at = torch.tensor([2, 0], device=x.device)
        options = {"dtype": torch.complex32, "device": x.device}
        return (
            torch.zeros(2, 3, **options),
            torch.full((2,), 1 + 0.1j, **options),
            torch.full((2,), 1e6, **options),
            torch.tensor([1 + 2j, 3], **options),
            torch.ones_like(x),
            x.new_zeros(2),
            torch.empty(2, **options).fill_(0.1),
            x.index_select(0, at),
            x[at],
            x[x.real > 0],
            x.nonzero(),
            x.tril(),
            x.roll(1, 0),
            x.repeat_interleave(2, 0),
            x.unfold(0, 2, 1),
            torch.where(x.real > 0, x, x.conj()),
            torch.cat([x, x.T[:, :3]]),
            torch.complex(x.real, x.imag),
            x.to(torch.float32),
            x.to(torch.int8),
            x.bool(),
            x.to(torch.complex64),
            x.clone().resize_(2, 2),
            torch.add(x, 1, out=torch.empty(0, **options)),
            torch.empty(0, **options).set_(x.untyped_storage()),
        )

    with tg.eager(mode):
        both(make, device, values(3, 3))


@rarely
def test_overlapping_elements(device):
    both(lambda x: [x.clone().as_strided((3, 2), (1, 1)).add_(1).clone()], device, values(5))


@rarely
def test_draws(backend, device):
    for draw in (torch.rand, torch.randn):
        x = draw(100, dtype=torch.complex32, device=device)
        assert x.dtype is torch.complex32 and 0.1 < x.abs().float().mean().item() < 2


# ---- gradients -------------------------------------------------------------------------------------------------------


def leaves(device):
    return [values(5).to(device).requires_grad_(), values(5, seed=1).to(device).requires_grad_()]


def test_gradients_are_complex32(device):
    def loss(a, b):
        return (a * b.conj() + a[1] * 0.5).abs().sum()

    ours, wide, compiled = (
        leaves(device),
        [t.detach().cfloat().requires_grad_() for t in leaves(device)],
        leaves(device),
    )
    loss(*ours).backward()
    loss(*wide).backward()
    tg.jit(loss, compile="first")(*compiled).backward()
    for a, b, c in zip(ours, wide, compiled, strict=True):
        assert a.grad.dtype is torch.complex32
        torch.testing.assert_close(a.grad.cfloat(), b.grad, rtol=1e-2, atol=1e-2)
        same(a.grad, c.grad)


@rarely
def test_gradients_of_what_the_cpu_lacks(device):
    def loss(a, b):
        return (torch.fft.fft(a / b) + a.sin().exp()).abs().sum()

    ours, wide = leaves(device), [t.detach().cfloat().requires_grad_() for t in leaves(device)]
    loss(*ours).backward()
    loss(*wide).backward()
    for a, b in zip(ours, wide, strict=True):
        assert a.grad.dtype is torch.complex32
        torch.testing.assert_close(a.grad.cfloat(), b.grad, rtol=1e-2, atol=1e-2)


@rarely
def test_training_steps_in_one_program(device):
    def step(a, b):
        (a * b.conj()).abs().sum().backward()
        with torch.no_grad():
            a -= 0.1 * a.grad
            b.sub_(b.grad, alpha=0.1)

    eager, compiled = leaves(device), leaves(device)
    step(*eager)
    tg.jit(step, compile="first")(*compiled)
    for a, b in zip(eager, compiled, strict=True):
        same(a, b)


@rarely
def test_retained_and_second_gradients(device):
    def retaining(a, b):
        y = a * b
        y.retain_grad()
        return y, (y * y).abs().sum()

    def second(a, b):
        (slope,) = torch.autograd.grad((a * a * b).abs().sum(), a, create_graph=True)
        return slope.abs().sum()

    eager, compiled = leaves(device), leaves(device)
    (y, loss), (z, compiled_loss) = retaining(*eager), tg.jit(retaining, compile="first")(*compiled)
    loss.backward()
    compiled_loss.backward()
    same(y.grad, z.grad)
    second(*eager).backward()
    tg.jit(second, compile="first")(*compiled).backward()
    for a, b in zip(eager, compiled, strict=True):
        same(a.grad, b.grad)


# ---- programs --------------------------------------------------------------------------------------------------------


@rarely
def test_control_flow(device):
    x = values(4).to(device)

    def branches(x):
        return torch.cond(x.real.sum() > 0, lambda x: x * 2, lambda x: x + 1, (x,))

    def loop(x):
        return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 0.3), (torch.tensor(0, device=device), x))

    def steps(x):
        return scan(lambda carry, row: (carry * 0.3 + row, carry * row), x[0], x)

    carry, rows = x[0], []
    for row in x:
        carry, out = carry * 0.3 + row, carry * row
        rows.append(out)
    for fn, expected in (
        (branches, [x * 2 if x.real.sum() > 0 else x + 1]),
        (loop, [torch.tensor(3), x * 0.3 * 0.3 * 0.3]),
        (steps, [carry, torch.stack(rows)]),
    ):
        out = tg.jit(fn, compile="first")(x)
        for a, b in zip((out,) if isinstance(out, torch.Tensor) else out, expected, strict=True):
            same(a, b.cpu())


@rarely
@pytest.mark.slow_with("jax")
@pytest.mark.parametrize("where", ["device", "cpu"])
def test_torch_compile(device, where):
    x = values(2, 4).to(device if where == "device" else "cpu")
    out = torch.compile(lambda x: (x.T[1:] * 2 + x.T[1:], x.real), backend="tensorgraft")(x)
    same(out[0], (x.T[1:] * 2 + x.T[1:]).cpu())
    same(out[1], x.real.cpu())


def test_inductor_finds_sympys_version():
    assert references._sympy.__version__ == __import__("sympy").__version__


# ---- exchange --------------------------------------------------------------------------------------------------------


def test_printing_and_numbers(device):
    x = values(2, 3)
    there = x.to(device)
    assert repr(there).split() == repr(x).replace("dtype=", f"device='{there.device}', dtype=").split()
    assert there.tolist() == x.tolist() and there[0, 1].item() == x[0, 1].item()


def test_files_and_copies(device):
    x = values(3, 4).to(device)
    file = io.BytesIO()
    torch.save({"whole": x, "part": x[1:]}, file)
    file.seek(0)
    loaded = torch.load(file)
    same(loaded["whole"], x.cpu())
    loaded["part"].zero_()  # of the same storage
    same(loaded["whole"][1:], torch.zeros(2, 4, dtype=torch.complex32))
    file.seek(0)
    same(torch.load(file, map_location="cpu")["part"], x[1:].cpu())
    same(copy.deepcopy(x), x.cpu())
    assert x.untyped_storage().nbytes() == 48


@rarely
def test_dlpack(backend, device):
    x = values(4).to(device)
    same(torch.from_dlpack(x), x.cpu())
    same(torch.from_dlpack(values(4), device=device), values(4))
    if backend in ("numpy", "torch"):
        shared = torch.from_dlpack(x)
        x += 1
        same(shared, x.cpu())


@rarely
def test_other_devices_and_layouts(device):
    x = values(4, 4).to(device)
    assert x.to("meta").dtype is torch.complex32
    same(x.to_sparse().to_dense(), x.cpu())


@rarely
@pytest.mark.parametrize(
    "call",
    [
        lambda device: torch.arange(3, dtype=torch.complex32, device=device),
        lambda device: torch.zeros(3, dtype=torch.complex32, device=device).sort(),
        lambda device: torch.polar(*torch.ones(2, 1, dtype=torch.float16, device=device)),
        lambda device: torch.zeros(3, dtype=torch.float16, device=device).view(torch.complex32),
        lambda device: torch.zeros(3, dtype=torch.complex32, device="cpu").numpy(),
    ],
)
def test_refusals_are_pytorchs(device, call):
    with pytest.raises(Exception) as native:
        call("cpu")
    with pytest.raises(type(native.value)) as ours:
        call(device)
    assert str(ours.value) == str(native.value)


def test_other_frameworks_have_no_such_arrays(device):
    x = torch.zeros(2, dtype=torch.complex32, device=device)
    with pytest.raises(TypeError, match=r"no framework but PyTorch has arrays of torch.complex32: convert .*complex64"):
        tg.to_backend_array(x)
    with pytest.raises(TypeError, match="Got unsupported ScalarType ComplexHalf"):
        np.asarray(x.cpu())
    layer = torch.nn.ParameterList([torch.zeros(2, dtype=torch.complex32)])
    with pytest.raises(TypeError, match="no framework but PyTorch"):
        tg.graft(layer, onto="jax")


def test_parts_are_placed_on_meshes():
    x = torch.zeros(2, dtype=torch.complex32, device=tg.device("jax"))
    with pytest.raises(TypeError, match="place their parts"):
        tg.parallel.shard(x, tg.parallel.mesh(1, "data", "jax"), "data")
