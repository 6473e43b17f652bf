"""Small models written by hand, each with what a kind of architecture is made of: forward, gradients, an optimizer step
and greedy generation as on CPU PyTorch, eagerly and under `tg.jit`."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import tensorgraft as tg
from tensorgraft.frontends.torch import fallbacks

pytestmark = pytest.mark.sampled

VOCABULARY, WIDTH = 17, 8


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tokens(*shape, seed=0):
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


# ---- text ------------------------------------------------------------------------------------------------------------


class Decoder(nn.Module):
    """A block with rotary positions, grouped keys, RMS norms, a gated layer, a cache, and tied weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.norm = nn.RMSNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, n, bias=False) for n in (WIDTH, WIDTH // 2, WIDTH // 2))
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("frequencies", 10.0 ** -torch.arange(2.0), persistent=False)

    def rotate(self, x, at):
        angle = at[:, None] * self.frequencies
        first, second = x.chunk(2, -1)
        return torch.cat(
            [first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1
        ).type_as(x)

    def forward(self, ids, mask=None, cache=None):
        start = 0 if not cache else cache[0].shape[2]
        at = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.embedding(ids)
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.query, self.key, self.value))
        q, k = self.rotate(q, at), self.rotate(k, at)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = k, v
        allowed = torch.arange(k.shape[2], device=ids.device) <= at[:, None]
        if mask is not None:
            allowed = allowed & mask[:, None, None, :].bool()
        x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True).transpose(1, 2).flatten(2)
        return self.head(x + self.down(F.silu(self.gate(x)) * self.up(x)))

    def loss(self, ids, mask):
        logits = self(ids, mask)
        labels = ids.masked_fill(mask == 0, -100)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Experts(nn.Module):
    """Tokens go to two of four experts, sorted into groups, as transformers does it."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.up, self.down = (nn.Parameter(randn(4, WIDTH, WIDTH, seed=s) / 3) for s in (1, 2))

    def forward(self, x):
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        expert, order = torch.sort(chosen.flatten())
        sizes = torch.histc(expert.float() if x.device.type == "cpu" else expert.int(), bins=4, min=0, max=3)
        ends = sizes.cumsum(0, dtype=torch.int32)
        h = F.silu(torch._grouped_mm(flat[order // 2], self.up, offs=ends))
        h = torch._grouped_mm(h, self.down, offs=ends) * weights.flatten()[order, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=x.device)
        return h[back].unflatten(0, (-1, 2)).sum(1).view_as(x)


class StateSpace(nn.Module):
    """A causal convolution and a selective scan, written into a tensor step by step."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH, padding=2)
        self.delta, self.b, self.c = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)
        self.log_a = nn.Parameter(torch.arange(1.0, 5).log().repeat(WIDTH, 1))

    def forward(self, x):
        n = x.shape[1]
        x = F.silu(self.conv(x.mT)[..., :n]).mT
        delta, b, c = F.softplus(self.delta(x)), self.b(x), self.c(x)
        decay = torch.exp(delta[..., None] * -self.log_a.exp())
        given = (delta * x)[..., None] * b[:, :, None]
        state, out = x.new_zeros(x.shape[0], WIDTH, 4), []
        for t in range(n):
            state = decay[:, t] * state + given[:, t]
            out.append(torch.einsum("bds,bs->bd", state, c[:, t]))
        return torch.stack(out, 1)


class Relative(nn.Module):
    """Encoder and decoder with cross-attention and relative positions by bucket."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(8, 2)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        n = x.shape[1]
        distance = torch.arange(n, device=x.device)[None] - torch.arange(n, device=x.device)[:, None]
        far = 2 + (distance.abs().clamp(min=2).float() / 2).log() / math.log(4) * 2
        bucket = torch.where(distance.abs() < 2, distance.abs(), far.long().clamp(max=3)) + 4 * (distance > 0)
        bias = self.bias(bucket).permute(2, 0, 1).repeat(x.shape[0], 1, 1)
        memory, _ = self.attention(x, x, x, attn_mask=bias, need_weights=False)
        causal = nn.Transformer.generate_square_subsequent_mask(n, device=x.device)
        return self.decoder(x, memory, tgt_mask=causal, tgt_is_causal=True)


# ---- images and sound ------------------------------------------------------------------------------------------------


class Windows(nn.Module):
    """Patches, shifted windows, and features sampled at learnt places."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(2, WIDTH, 2, stride=2)
        self.norm = nn.GroupNorm(2, WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.places = nn.Linear(WIDTH, 2)
        self.class_token = nn.Parameter(randn(1, 1, WIDTH))

    def forward(self, x):
        x = self.norm(self.patches(x))
        b, c, h, w = x.shape
        y = torch.roll(x, (-1, -1), (2, 3)).unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 4, 5, 1)
        q, k, v = self.attention(y.reshape(-1, 4, c)).chunk(3, -1)
        y = (q @ k.mT / c**0.5).softmax(-1) @ v
        y = y.reshape(b, h // 2, w // 2, 2, 2, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)
        x = x + torch.roll(y, (1, 1), (2, 3))
        seen = F.grid_sample(x, self.places(x.permute(0, 2, 3, 1)).tanh(), align_corners=False, padding_mode="border")
        x = F.interpolate(x + seen, scale_factor=2, mode="bilinear")
        x = torch.cat([self.class_token.expand(b, -1, -1), x.flatten(2).mT], 1)
        return F.normalize(x[:, 0] + x.mean(1), dim=-1)


class Speech(nn.Module):
    """Weight-normalised convolution over positions, a mask in the middle, and CTC."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv1d(1, WIDTH, 4, stride=2)
        self.position = parametrizations.weight_norm(nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=2), dim=2)
        self.masked = nn.Parameter(randn(WIDTH))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x):
        x = self.features(x[:, None]).mT
        x = torch.where(torch.arange(x.shape[1], device=x.device)[:, None] % 5 == 0, self.masked, x)
        x = F.gelu(x + self.position(x.mT).mT)
        lengths = torch.full((x.shape[0],), x.shape[1], device=x.device)
        targets = torch.tensor([[1, 2, 3], [4, 4, 1]], device=x.device)
        out = F.log_softmax(self.head(x), -1).transpose(0, 1)
        return F.ctc_loss(out, targets, lengths, torch.tensor([3, 2]), zero_infinity=True)[None]


# ---- adapters --------------------------------------------------------------------------------------------------------


class LowRank(nn.Module):
    """A frozen layer and a trained product of two thin matrices beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.a, self.b = nn.Parameter(randn(2, WIDTH)), nn.Parameter(randn(WIDTH, 2, seed=1))

    def forward(self, x):
        return torch.tanh(self.base(x)) + F.linear(F.linear(x, self.a), self.b)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).mT

    def right_inverse(self, x):
        return x.triu()


def parametrized():
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    parametrizations.orthogonal(model[1], orthogonal_map="cayley")
    parametrizations.spectral_norm(model[2])
    parametrizations.weight_norm(model[3])
    return model


SEQUENCE = (randn(2, 6, WIDTH, seed=3),)
MODELS = {
    "experts": (Experts, SEQUENCE),
    "state space": (StateSpace, SEQUENCE),
    "relative": (Relative, SEQUENCE),
    "windows": (Windows, (randn(2, 2, 8, 8, seed=3),)),
    "speech": (Speech, (randn(2, 26, seed=3),)),
    "low rank": (LowRank, SEQUENCE),
    "parametrized": (parametrized, SEQUENCE),
}


def built(name):
    torch.manual_seed(0)
    return MODELS[name][0]()


def trained(model, inputs, wrap=lambda f: f, steps=2):
    """(outputs of each step, the first gradients, the parameters afterwards)"""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, eps=1e-2)

    def step(*inputs):
        optimizer.zero_grad()
        out = model(*inputs)
        out.square().sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        return out, gradients

    step = wrap(step)
    taken = [step(*inputs) for _ in range(steps)]
    return [out.detach() for out, _ in taken], taken[0][1], [p.detach() for p in model.parameters()]


def close(got, want, tol=1e-4):
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        torch.testing.assert_close(x.cpu(), y, rtol=tol, atol=tol * max(1.0, float(y.abs().max())))


# On NumPy eagerly, on JAX as one program, which takes its time to compile.
ON = {"numpy": MODELS, "jax": ("experts", "windows", "speech", "low rank")}


@pytest.mark.parametrize(("backend", "name"), [(b, name) for b in tg.backends() for name in ON.get(b, ())])
def test_training(backend, name):
    device, inputs, before = tg.device(backend), MODELS[name][1], fallbacks()
    want = trained(built(name), inputs)
    model = built(name).to(device)
    there = [x.to(device) for x in inputs]
    for got, expected in zip(trained(model, there, tg.jit), want, strict=True):
        close(got, expected)
    assert fallbacks() == before
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    here = built(name)
    here.load_state_dict(torch.load(file, map_location="cpu"))
    with torch.no_grad():
        close([model.to("cpu").eval()(*inputs)], [here.eval()(*inputs)])


def greedy(model, ids, n):
    cache, out = [], ids
    with torch.no_grad():
        for _ in range(n):
            ids = model(ids, cache=cache)[:, -1:].argmax(-1)
            out = torch.cat([out, ids], 1)
    return out


def test_generate(device):
    torch.manual_seed(0)
    model = Decoder()
    here, there = greedy(model, tokens(2, 3), 3), greedy(copy.deepcopy(model).to(device), tokens(2, 3).to(device), 3)
    assert torch.equal(there.cpu(), here)


def test_tied_weights_and_masks(device):
    torch.manual_seed(0)
    model, ids = Decoder(), tokens(2, 5)
    ids[1, 3:] = 0
    mask = (ids != 0).long()
    there = copy.deepcopy(model).to(device)
    assert there.head.weight is there.embedding.weight
    for m, where in ((model, "cpu"), (there, device)):
        loss = m.loss(ids.to(where), mask.to(where))
        loss.backward()
    close([p.grad for p in there.parameters()], [p.grad for p in model.parameters()])


# ---- what models ask of the device -----------------------------------------------------------------------------------


def test_grouped_products(device):
    """Of which some groups are empty, and some rows in no group."""
    x, w = randn(12, 8), randn(3, 8, 4, seed=1)
    ends = torch.tensor([5, 5, 9], dtype=torch.int32)
    want = torch._grouped_mm(x, w, offs=ends)[:9]
    got = torch._grouped_mm(x.to(device), w.to(device), offs=ends.to(device)).cpu()
    close([got[:9]], [want])
    assert not got[9:].any()
    flat = torch._grouped_mm(w.mT.to(device), x.mT.to(device), offs=ends.to(device)).cpu()
    close([flat[:, :9]], [want.mT])
    close([torch._grouped_mm(x[:, :4].T.to(device), x.to(device), offs=ends.to(device))],
          [torch._grouped_mm(x[:, :4].T, x, offs=ends)])  # fmt: skip
    for bad, message in (
        ({"mat2": w[:2].to(device)}, "matrix batch sizes have to match"),
        ({"offs": ends.long().to(device)}, "Offsets have to be int32"),
        ({"offs": None}, "Have to provide offsets"),
        ({"self": x.double().to(device)}, "Expected mat_a to be Float32, BFloat16 or Float16 matrix, got Double"),
    ):
        call = {"self": x.to(device), "mat2": w.to(device), "offs": ends.to(device), **bad}
        with pytest.raises(RuntimeError, match=message):
            torch._grouped_mm(call["self"], call["mat2"], offs=call["offs"])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_histogram_of_integers(device, dtype):
    """As CUDA's, in the dtype of the input."""
    x = torch.tensor([0, 1, 1, 3, 7, 9, 2], dtype=dtype)
    for limits in ({"bins": 8, "min": 0, "max": 7}, {"bins": 3}):
        got = torch.histc(x.to(device), **limits)
        assert got.dtype == dtype
        assert torch.equal(got.cpu().float(), torch.histc(x.float(), **limits))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_histogram_counts_exactly_in_half_precision(device, dtype):
    """The CPU's counts stop where half precision no longer adds one."""
    x = torch.full((5000,), 0.5, dtype=dtype, device=device)
    exact = torch.tensor([0.0, 5000.0, 0.0], dtype=dtype)
    assert torch.equal(torch.histc(x, bins=3, min=0, max=1).cpu(), exact)


def test_masks_are_not_asked_for_values():
    """Libraries skip a mask that hides nothing, but not while a program is captured."""
    pytest.importorskip("jax")

    def capturing():
        try:
            return torch.cuda.is_current_stream_capturing()
        except RuntimeError:  # without CUDA, outside of tg.jit
            return False

    def attended(mask):
        return mask if not capturing() and mask.all() else mask * 2

    x = torch.ones(3, device=tg.device("jax"))
    assert tg.jit(attended)(x).tolist() == [2, 2, 2]
    assert attended(x).tolist() == [1, 1, 1]


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("spoil", ["shape", "missing", "unexpected"])
def test_a_checkpoint_that_does_not_fit(device, spoil, assign):
    """The error is PyTorch's, and nothing has changed."""

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))

    module = make().to(device)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    held = list(module.parameters())
    checkpoint = {name: torch.full_like(t, 7, device="cpu") for name, t in before.items()}
    spoilt = dict(checkpoint)
    if spoil == "shape":
        spoilt["2.weight"] = torch.ones(3, 3)
    elif spoil == "missing":
        del spoilt["2.weight"]
    else:
        spoilt["3.weight"] = torch.ones(1)
    with pytest.raises(RuntimeError) as on_cpu:
        make().load_state_dict(spoilt)
    with pytest.raises(RuntimeError) as raised:
        module.load_state_dict(spoilt, assign=assign)
    assert str(raised.value) == str(on_cpu.value)
    assert all(p is q for p, q in zip(module.parameters(), held, strict=True))
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    module.load_state_dict(checkpoint)
    assert all(bool((t == 7).all()) for t in module.state_dict().values())


# ---- tensor subclasses -----------------------------------------------------------------------------------------------


class Scaled(torch.Tensor):
    """Bytes and scales that look like a floating matrix, as quantisation libraries write them."""

    @staticmethod
    def __new__(cls, values, scales):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scales.dtype, device=values.device)

    def __init__(self, values, scales):
        self.values, self.scales = values, scales

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, x):
        scales = x.abs().amax(1, keepdim=True) / 127
        return cls((x / scales).round().to(torch.int8), scales)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name in ("detach", "clone", "_to_copy"):
            return cls(*(t.to(kwargs.get("device") or t.device) for t in (args[0].values, args[0].scales)))
        if name == "copy_" and isinstance(args[1], cls):
            args[0].values.copy_(args[1].values)
            args[0].scales.copy_(args[1].scales)
            return args[0]
        plain = [a.values.to(a.dtype) * a.scales if isinstance(a, cls) else a for a in args]
        return func(*plain, **kwargs)


def test_wrapper_subclass(device):
    def make(seed=0):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
        model[0].weight = nn.Parameter(Scaled.of(model[0].weight.detach()), requires_grad=False)
        return model

    x, here, there = SEQUENCE[0], make(), make().to(device)
    weight = there[0].weight
    assert isinstance(weight, Scaled)
    assert weight.values.device == weight.scales.device == device
    here(x).sum().backward()
    there(x.to(device)).sum().backward()
    close([there(x.to(device)).detach()], [here(x).detach()])
    close([there[0].bias.grad], [here[0].bias.grad])
    other = make(1).to(device)
    other.load_state_dict(there.state_dict())
    close([other(x.to(device)).detach()], [here(x).detach()])
    close([there.to("cpu")(x).detach()], [here(x).detach()])


def test_quantised_by_torchao(device):
    quantization = pytest.importorskip("torchao.quantization")  # in the group "conformance"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    x = randn(3, 32)
    for config in (quantization.Int8WeightOnlyConfig(), quantization.Int8DynamicActivationInt8WeightConfig()):
        here = copy.deepcopy(model)
        quantization.quantize_(here, config)
        there = copy.deepcopy(here).to(device)
        assert type(there[0].weight) is type(here[0].weight)
        with torch.no_grad():
            close([there(x.to(device))], [here(x)])
