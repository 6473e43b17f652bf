"""`torch.compile(model, backend="tensorgraft")`: what a model on the CPU does, computed by a backend."""

import copy
import gc
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_leaves

import tensorgraft as tg
from tensorgraft.frontends.torch.dispatch import fallback

# Dynamo looks at everything, deprecated or not
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*deprecated:"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(fn, device="numpy", **options):
    return torch.compile(fn, backend="tensorgraft", options={"device": device}, **options)


def same(ours, theirs, tolerance=1e-5):
    ours, theirs = tree_leaves(ours), tree_leaves(theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(a, torch.Tensor):
            assert a == b
            continue
        assert (a.device, a.dtype, a.shape, a.stride()) == (b.device, b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# ---- training ------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (h.view(n, t, self.heads, -1).transpose(1, 2) for h in self.qkv(self.norm(x)).split(d, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, d))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, words=50, width=16, heads=2, layers=2, length=12):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.blocks(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 6, 2, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), torch.randn(4, 8)


def cnn():
    layers = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 8, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    return nn.Sequential(*layers), torch.randn(4, 3, 16, 16)


def channels_last():
    model, x = cnn()
    return model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)


def gpt():
    return GPT(), torch.randint(50, (2, 12))


def lstm():
    return Recurrent(), torch.randn(3, 7, 5)


def train(model, inputs, steps=3, **options):
    """The compiled model and the model itself, from the same start: losses, parameters, buffers."""
    other, options = copy.deepcopy(model), {"device": "numpy", **options}
    run = compiled(model, **options)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, other)]
    for i in range(steps):
        losses = []
        for fn, optimizer in zip((run, other), optimizers, strict=True):
            optimizer.zero_grad()
            loss = fn(inputs[i % len(inputs)]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        same(*losses, 1e-4)
    same(list(model.state_dict().values()), list(other.state_dict().values()), 1e-4)


@pytest.mark.parametrize("make", [mlp, cnn, channels_last, gpt, lstm])
def test_training(make):
    model, x = make()
    train(model, [x])


@pytest.mark.parametrize("make", [mlp, gpt])
def test_training_on_jax(make):
    model, x = make()
    train(model, [x], device="jax")


def test_recurrent_layers_are_loops():
    with torch._dynamo.config.patch(allow_rnn=True):
        model, x = lstm()
        train(model, [x], device="jax")


def test_batch_norm_without_gradients():
    model, x = cnn()
    other = copy.deepcopy(model)
    run = compiled(model)
    with torch.no_grad():
        same(run(x), other(x))
    same(list(model.buffers()), list(other.buffers()))
    model.eval(), other.eval()
    with torch.inference_mode():
        y = run(x)
        assert y.is_inference()
        same(y, other(x))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_whole_training_step(optimizer):
    ours, theirs = mlp()[0], None
    theirs = copy.deepcopy(ours)

    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run, made = compiled(step), [optimizer(m.parameters(), lr=0.01) for m in (ours, theirs)]
    for _ in range(3):
        x = torch.randn(5, 8)
        same(run(ours, made[0], x), step(theirs, made[1], x), 1e-4)
    same(list(ours.parameters()), list(theirs.parameters()), 1e-4)


def test_autocast():
    model, x = mlp()
    run = compiled(model)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = run(x), model(x)
    assert ours.dtype == torch.bfloat16
    same(ours, theirs, 2e-2)
    grads = [torch.autograd.grad(y.float().sum(), list(model.parameters())) for y in (ours, theirs)]
    same(*grads, 5e-2)


# ---- shapes ----------------------------------------------------------------------------------------------------------


def test_dynamic_shapes_are_one_graph():
    counter = CompileCounterWithBackend("tensorgraft")
    model = GPT(layers=1)
    run = torch.compile(model, backend=counter, dynamic=True)
    frames = []
    for n in (12, 7, 9, 12):
        tokens = torch.randint(50, (2, n))
        same(run(tokens), model(tokens), 1e-4)
        frames.append(counter.frame_count)
    assert frames == frames[:1] * 4
    train(model, [torch.randint(50, (2, n)) for n in (12, 7)], dynamic=True)


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_marked_dimensions_and_sizes_as_results(device):
    def fn(x):
        return x.sum(0), x.shape[0] * 2, x.reshape(-1)[: x.shape[0]], torch.ones(x.shape[0] + 1)

    run = compiled(fn, device)
    for n in (4, 5, 9):
        x = torch.randn(n, 3)
        torch._dynamo.mark_dynamic(x, 0)
        same(run(x), fn(x))


@pytest.mark.compiled
def test_many_sizes_are_worth_a_word():
    run = compiled(lambda x: x * 2, "jax", dynamic=True)
    for n in range(2, 17):
        run(torch.ones(n))
    with pytest.warns(UserWarning, match=r"compiled for 16 different sizes.*The last: \(17,\)"):
        run(torch.ones(17))


def test_results_as_large_as_values_say():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        for fn in (lambda x: (x * 2)[x > 0] + 1, lambda x: torch.arange(int(x.abs().max() * 9) + 1) * 2 + x.sum()):
            run = compiled(fn, "jax", fullgraph=True)
            for _ in range(2):
                x = torch.randn(9)
                same(run(x), fn(x))
    assert not tg.torch.fallbacks().get("nonzero")


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_memory_is_shared_as_in_pytorch(device):
    def fn(x):
        z = x * 2
        return z.t(), z[1:], x.t(), x.view(-1)[2:], x, z.clone(), x.clone(), x + 0, torch.zeros(3), torch.zeros(3)

    x = torch.randn(3, 4)
    start, run = x.clone(), compiled(fn, device)
    ours = run(x)
    same(ours, fn(x))
    address = [t.untyped_storage().data_ptr() for t in ours]
    assert address[0] == address[1] and address[2:5] == [x.data_ptr()] * 3
    assert len({*address, x.data_ptr()}) == 7  # the others have memory of their own
    for i, t in enumerate(ours[5:]):
        t.fill_(i)
    assert [t.unique().tolist() for t in ours[5:]] == [[i] for i in range(5)]
    same(x, start)
    same(run(x), fn(x))


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_inputs_are_written(device):
    def fn(x, y):
        x.add_(y)
        y[0] = 7
        return x * 2

    ours, theirs = ([torch.arange(12.0).view(3, 4), torch.ones(3, 4)] for _ in range(2))
    same((compiled(fn, device)(*ours), ours), (fn(*theirs), theirs))


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_strides(device):
    big = torch.randn(6, 8)
    inputs = [big[::2, 1::2], big.t()[:4, :3].t(), torch.randn(4).expand(3, 4), torch.randn(3, 1).expand(3, 4)]
    inputs += [torch.randn(4, 3).t(), torch.randn(13)[1:].view(3, 4), torch.zeros(0, 4), torch.randn(3, 4)[1]]
    for x in inputs:
        torch._dynamo.reset()
        y = torch.randn(4)
        same(compiled(lambda x, y: (x + y, x * 2, x.sum(0)), device)(x, y), (x + y, x * 2, x.sum(0)))


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_parameters_are_found_anew(device):
    """Their memory is taken once: what is written there counts, and so does other memory."""
    linear = nn.Linear(4, 4)
    run, x = compiled(linear, device), torch.randn(2, 4)
    for change in (
        lambda: None,
        lambda: linear.weight.data.mul_(2),
        lambda: linear.weight.detach().numpy().fill(3),
        lambda: setattr(linear.weight, "data", torch.randn(4, 4)),
        lambda: setattr(linear.weight, "data", torch.randn(17)[1:].view(4, 4)),  # not aligned
        lambda: linear.weight.data.mul_(2),
        lambda: setattr(linear, "weight", nn.Parameter(torch.randn(4, 4))),
    ):
        change()
        with torch.no_grad():
            same(run(x), linear(x))
    seen = weakref.ref(linear.weight)
    linear.weight = nn.Parameter(torch.zeros(4, 4))
    gc.collect()
    assert seen() is None


def test_a_saved_input_that_is_written_is_an_error():
    w, x = torch.ones(3, requires_grad=True), torch.ones(3)
    y = compiled(lambda x, w: x * w)(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ---- values ----------------------------------------------------------------------------------------------------------

DTYPES = ["float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"]


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_dtypes(device):
    def fn(x):
        return x * x, x.sum(), x.t().contiguous(), x == x

    for name in DTYPES:
        torch._dynamo.reset()
        x = torch.randint(0, 2, (3, 4)).to(getattr(torch, name))
        same(compiled(fn, device)(x), fn(x))
    x = torch.randn(4).to(torch.float8_e4m3fn)
    same(compiled(lambda x: x.to(torch.float32) * 2, device)(x), x.to(torch.float32) * 2)


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_lazy_conjugates(device):
    def fn(x):
        return x * 2, x.imag + 1, x.conj(), (x * 2).conj()

    x = torch.randn(3, dtype=torch.complex64).conj()
    ours, theirs = compiled(fn, device)(x), fn(x)
    same(ours, theirs)
    assert [t.is_conj() for t in ours] == [t.is_conj() for t in theirs]


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_random_numbers(device):
    model, x = nn.Sequential(nn.Linear(50, 50), nn.Dropout(0.5)), torch.randn(20, 50)
    run = compiled(model, device)
    torch.manual_seed(1)
    first, second = run(x), run(x)
    torch.manual_seed(1)
    assert torch.equal(run(x), first) and not torch.equal(first, second)
    assert 0.4 < (first == 0).float().mean() < 0.6
    ones = torch.ones(20, 50, requires_grad=True)
    y = compiled(lambda x: F.dropout(x, 0.5).sin(), device)(ones)
    y.sum().backward()
    assert torch.equal(y == 0, ones.grad == 0)
    state = torch.get_rng_state()
    compiled(lambda x: x * 2, device)(x)
    assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_checkpointed_dropout_is_drawn_again(device):
    def layer(x, w):
        return F.dropout(torch.sin(x @ w), 0.5) * 2

    x, w = torch.ones(6, 6), torch.randn(6, 6, requires_grad=True)
    run = compiled(lambda x, w: torch.utils.checkpoint.checkpoint(layer, x, w, use_reentrant=False), device)
    y = run(x, w)
    (ours,) = torch.autograd.grad(y.sum(), w)
    (theirs,) = torch.autograd.grad((torch.sin(x @ w) * (y != 0) * 4).sum(), w)
    same(ours, theirs)


SHAPES = [(2, 2, 3, 5, False), (4, 2, 3, 3, True), (2, 2, 4, 3, True)]  # heads, those of keys, queries, keys, causal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_attention_of_the_cpu(dtype):
    for heads, groups, rows, columns, causal in SHAPES:
        q, k, v = (
            torch.randn(2, h, n, 4, dtype=dtype, requires_grad=True)
            for h, n in ((heads, rows), (groups, columns), (groups, columns))
        )
        mask = None
        if not causal:
            mask = torch.zeros(rows, columns, dtype=dtype)
            mask[1], mask[0, 2] = -torch.inf, -torch.inf

        def fn(q, k, v, mask=mask, causal=causal):
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=0.3, enable_gqa=True)

        torch._dynamo.reset()
        ours, theirs = compiled(fn)(q, k, v), fn(q, k, v)
        tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
        same(ours, theirs, tolerance)
        g = torch.randn_like(ours)
        grads = [torch.autograd.grad(y, (q, k, v), g) for y in (ours, theirs)]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# ---- programs --------------------------------------------------------------------------------------------------------


def test_graph_breaks():
    def fn(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1 if y.sum() > 0 else y - 1

    run = compiled(fn)
    for x in (torch.ones(3), -torch.ones(3)):
        same(run(x), fn(x))


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_checks_with_effects_are_made(device):
    run = compiled(lambda x: torch.linalg.cholesky(x) * 2, device)
    same(run(torch.eye(3)), 2 * torch.linalg.cholesky(torch.eye(3)))
    with pytest.raises(torch.linalg.LinAlgError, match="leading minor of order 1 is not positive-definite"):
        run(-torch.eye(3))


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_control_flow(device):
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    w = torch.ones(3, requires_grad=True)

    def branch(x, w):
        return torch.cond(x.sum() > 0, lambda x, w: (x * w).sin(), lambda x, w: (x * w).cos(), (x, w))

    def repeat(x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.1), (torch.zeros((), dtype=torch.int64), x))

    def add_up(x):
        return scan(lambda c, x: (c + x, c * x), torch.zeros(3), x, dim=0)

    run = compiled(branch, device, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        same(torch.autograd.grad(run(x, w).sum(), w), torch.autograd.grad(branch(x, w).sum(), w))
    x = torch.randn(4, 3)
    for fn in (repeat, add_up):
        same(compiled(fn, device, fullgraph=True)(x), fn(x))


@torch.library.custom_op("tensorgraft_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)


@torch.library.custom_op("tensorgraft_test::increase", mutates_args=("x",))
def increase(x: torch.Tensor) -> None:
    x.add_(1)


twice.register_fake(torch.empty_like)
increase.register_fake(lambda x: None)


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_operators_without_a_kernel_are_pytorchs(device):
    def fn(x):
        y = twice(x.sin()).cos() + twice(x)
        increase(y)
        return y * 3

    before = tg.torch.fallbacks().get("twice", 0)
    run, x = compiled(fn, device), torch.randn(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fallback, "_counts", type(fallback._counts)())
        with pytest.warns(tg.torch.FallbackWarning, match="aten::(twice|increase) has no kernel") as warned:
            same(run(x), fn(x))
        assert len(warned) == 2
        same(run(x), fn(x))
        assert tg.torch.fallbacks()["twice"] == 4
        tg.torch.set_fallback("error")
        try:
            with pytest.raises(tg.FallbackError, match="twice"):
                run(x)
        finally:
            tg.torch.set_fallback("warn")
    assert tg.torch.fallbacks().get("twice", 0) == before


# ---- options ---------------------------------------------------------------------------------------------------------

REFUSED = [
    ({"options": {"devise": "jax"}}, ValueError, r"unknown option 'devise'. The only option is \"device\""),
    (
        {"options": {"device": "tensorflow9"}},
        tg.BackendNotAvailableError,
        "there is no backend 'tensorflow9'. Installed: ",
    ),
    ({"options": {"device": 3}}, TypeError, "must be the name of a device, as in tensorgraft.device, got 3"),
    ({"options": {"device": "jax:7"}}, ValueError, "the backend jax has 1 device here"),
    ({"mode": "quick"}, ValueError, "mode='quick' is not one of 'default', 'reduce-overhead'"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_options_that_do_not_fit(options, error, message):
    with pytest.raises(error, match=message):
        torch.compile(lambda x: x * 2, backend="tensorgraft", **options)  # already before it is called


def test_modes_of_pytorch_are_taken():
    same(
        torch.compile(lambda x: x * 2, backend="tensorgraft", mode="max-autotune")(torch.ones(3)), torch.full((3,), 2.0)
    )


def test_dtypes_that_no_backend_has():
    with pytest.raises(TypeError, match=r"tensors of torch.float8_e8m0fnu cannot be"):
        compiled(lambda x: x.to(torch.float32) * 2)(torch.ones(3).to(torch.float8_e8m0fnu))


def test_the_name_is_known_to_pytorch():
    code = 'import torch; print(torch.compile(lambda x: x * 2, backend="tensorgraft")(torch.ones(2)).tolist())'
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert made.stdout == "[2.0, 2.0]\n", made.stderr


# ---- models on the device --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"backend": "tensorgraft"}, {}])
@pytest.mark.parametrize("name", ["numpy", "jax"])
def test_models_on_the_device(name, options):
    device = tg.device(name)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU()).to(device)
    other, x = copy.deepcopy(model), torch.randn(5, 4).to(device)
    ours, theirs = torch.compile(model, **options)(x), other(x)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    same(ours, theirs)
    same([p.grad for p in model.parameters()], [p.grad for p in other.parameters()], 1e-4)
    same(list(model.buffers()), list(other.buffers()))


def test_devices_that_are_named_in_the_graph():
    device = tg.device("numpy")
    made = torch.compile(lambda x: torch.ones(3, device=device) * x)(2.0)
    assert made.device == device and made.tolist() == [2, 2, 2]
    same(compiled(lambda x: (x * 2).cpu())(torch.ones(3, device=device)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match=r"compiled for jax, but an input is on graft"):
        compiled(lambda x: x * 2, "jax")(torch.ones(3, device=device))


def test_a_result_without_elements_is_an_out_of_any_size():
    def fn(a, b):
        c = a * b
        torch.ops.aten.linalg_tensorinv.out(c, 1, out=torch.empty(0))  # Dynamo leaves it to eager PyTorch
        return c

    a, b = torch.rand(2, 2, requires_grad=True), torch.rand(2, 2, requires_grad=True)
    same(compiled(fn, "jax")(a, b), a * b)
