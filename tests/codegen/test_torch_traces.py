"""Traces of PyTorch modules: what they compute (by `replay`, with gradients), what they are made of, and names."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.codegen.replay import replay, run, value
from torch import nn

from tensorgraft.codegen.program import size_groups
from tensorgraft.codegen.trace import Frame, SourceStep, SourceTrace, prune, steps
from tensorgraft.codegen.words import WORDS
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.codegen.tracing import trace_module
from tensorgraft.hub import registry
from tensorgraft.hub.operations.neural import Neural
from tensorgraft.hub.recorded.block import Var, leaves

Tensor = torch.Tensor


def flat(x: Any) -> list[Any]:
    if isinstance(x, dict):
        return [e for v in x.values() for e in flat(v)]
    return [e for v in x for e in flat(v)] if isinstance(x, tuple | list) else [x]


def check(module: nn.Module, *args: Any, training: bool = False, gradients: bool = True) -> SourceTrace:
    """The trace computes what the module does, and its derivative in the parameters is the module's."""
    module.train(training)
    trace = trace_module(module, args)
    prune(trace)
    got, written = replay(trace, *[a.numpy() for a in flat(args) if isinstance(a, Tensor)])
    state = {name: t.detach().clone() for name, t in module.state_dict().items()}
    wanted = module(*args)
    for w, g in zip(flat(wanted), flat(got), strict=True):
        np.testing.assert_allclose(g, w.detach().numpy(), rtol=1e-5, atol=1e-6)
        assert (g.shape, g.dtype) == (tuple(w.shape), w.detach().numpy().dtype)
    after = {name: t for name, t in module.state_dict().items() if not torch.equal(t, state[name])}
    assert written.keys() == after.keys()
    for name, t in after.items():
        np.testing.assert_allclose(written[name], t.numpy(), rtol=1e-5, atol=1e-6)
    if gradients and trace.parameters:
        compare_gradients(trace, module, args, flat(wanted))
    return trace


def compare_gradients(trace: SourceTrace, module: nn.Module, args: Any, wanted: list[Tensor]) -> None:
    xp = registry.get("torch")
    own = {name: torch.tensor(trace.weights[name], requires_grad=True) for name in trace.parameters}
    env: dict[Var, Any] = {v: own[name] for name, v in trace.parameters.items()}
    env |= {v: torch.tensor(trace.weights[name]) for name, v in trace.buffers.items()}
    given = [v for v in leaves([t for _, t in trace.arguments]) if type(v) is Var]
    env |= dict(zip(given, [a for a in flat(args) if isinstance(a, Tensor)], strict=True))
    words = dict(WORDS)
    WORDS["stop_gradient"] = lambda xp, x: x.detach()
    WORDS["embedding"] = lambda xp, weight, i, padding=None: F.embedding(i, weight, padding)
    try:
        with xp.scope(), torch.enable_grad():
            run(xp, list(steps(trace.root)), env)
            got = flat(value(xp, trace.result, env))
    finally:
        WORDS.update(words)
    total = sum((g * torch.cos(torch.arange(g.numel())).reshape(g.shape)).sum() for g in got if g.requires_grad)
    truth = sum((w * torch.cos(torch.arange(w.numel())).reshape(w.shape)).sum() for w in wanted if w.requires_grad)
    names = list(own)
    parameters = dict(module.named_parameters())
    a = torch.autograd.grad(total, [own[n] for n in names], allow_unused=True)  # type: ignore[arg-type]
    b = torch.autograd.grad(truth, [parameters[n] for n in names], allow_unused=True)  # type: ignore[arg-type]
    for name, x, y in zip(names, a, b, strict=True):
        x, y = (torch.zeros_like(own[name]) if g is None else g for g in (x, y))
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5, msg=name)


def methods(trace: SourceTrace) -> list[str]:
    return [step.method for step in steps(trace.root)]


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Attention(nn.Module):
    """Causal self-attention. With more."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(c, dim=2)
        q = q.view(b, t, 2, 4).transpose(1, 2)
        k, v = (y.view(b, t, 2, 4).transpose(1, 2) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(8), Attention()
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(x)}


def test_a_transformer_reads_as_it_was_written() -> None:
    trace = check(Language(), torch.tensor([[1, 2, 0, 4], [5, 0, 7, 8]]))
    assert trace.aliases == {"head.weight": "embed.weight"}
    frames = {f.path: f for f in trace.root.calls if isinstance(f, Frame)}
    attention = next(f for f in frames["blocks.1"].calls if isinstance(f, Frame) and f.name == "attn")
    assert (attention.kind, attention.path, attention.doc) == ("Attention", "blocks.1.attn", "Causal self-attention")
    assert [name for name, _ in attention.arguments] == ["x"]
    own = [c for c in attention.calls if isinstance(c, SourceStep)]
    assert [c.method for c in own] == [
        "split", "reshape", "permute_dims", "reshape", "permute_dims", "reshape", "permute_dims",
        "dot_product_attention", "permute_dims", "reshape",
    ]  # fmt: skip
    assert own[0].names == ("q", "k", "v")
    assert own[2].names == ("q",)
    assert own[7].names == ("y",)
    assert own[0].place.startswith("test_torch_traces.py:")
    assert frames["blocks.0"].names == ("x",)
    assert trace.containers["blocks"] == "list"
    assert "arange" in methods(trace)


def halves(x: Tensor) -> Tensor:
    """Turned by a quarter. And so on."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rotated(q: Tensor, k: Tensor, angle: float, model: nn.Module | None = None) -> tuple[Tensor, Tensor]:
    return q * 2 + halves(q) * angle, k + halves(k) * angle


def scored(x: Tensor, layer: nn.Linear) -> Tensor:
    return layer(x).relu() + x


class Rotates(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        q, k = rotated(x, self.weight.sum() + x, 0.5, self)
        return scored(q * k, self.inner)


def test_functions_of_the_program_are_frames() -> None:
    module = Rotates(4, 4)
    module.inner = nn.Linear(4, 4)
    trace = check(module, rand(3, 4))
    (frame,) = [call for call in trace.root.calls if isinstance(call, Frame) and not call.is_module]
    assert (frame.kind, frame.names, frame.is_module) == ("rotated", ("q", "k"), False)
    assert [name for name, _ in frame.arguments] == ["q", "k", "angle", "model"][:3]
    inner = [call for call in frame.calls if isinstance(call, Frame)]
    assert [(f.kind, f.doc) for f in inner] == [("halves", "Turned by a quarter")] * 2


def test_labels_go_with_the_batch() -> None:
    def merged(*shapes: tuple[int, ...]) -> list[list[tuple[int, int]]]:
        return [group.axes for group in size_groups(shapes)]

    assert merged((4, 3), (4,)) == [[(0, 0), (1, 0)], [(0, 1)]]
    assert merged((4, 3), (3,)) == [[(0, 0)], [(0, 1), (1, 0)]]
    assert merged((4, 4), (4,)) == [[(0, 0)], [(0, 1), (1, 0)]]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)) + x, inplace=True)


@pytest.mark.parametrize("training", [False, True])
def test_a_convolutional_network_gives_its_statistics(training: bool) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), Residual(), nn.MaxPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d(1),
                        nn.Flatten(), nn.Linear(4, 5))  # fmt: skip
    trace = check(net, rand(2, 3, 9, 9), training=training)
    expected = {"1.norm.running_mean", "1.norm.running_var", "1.norm.num_batches_tracked"} if training else set()
    assert trace.written.keys() == expected
    assert trace.training == training
    words = [m for m in methods(trace) if m in WORDS or hasattr(Neural, m)]
    norm = "batch_norm_training" if training else "batch_norm"
    assert words == ["conv", "conv", norm, "relu", "max_pool", "flatten", "linear"]


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_words(cell: str) -> None:
    trace = check(getattr(nn, cell)(3, 4, num_layers=2, bidirectional=True, batch_first=True), rand(2, 5, 3))
    assert methods(trace).count(cell.lower()) == 4


class Attends(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(8, 2, **options)
        self.cross = nn.MultiheadAttention(8, 4, kdim=6, vdim=5, bias=False, **options)

    def forward(self, x: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> tuple[Tensor, ...]:
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1 if self.own.batch_first else 0])
        y, _ = self.own(x, x, x, need_weights=False, attn_mask=causal, is_causal=True)
        z, weights = self.own(x, y, y, attn_mask=causal < 0)
        each = self.own(x, x, x, attn_mask=causal, average_attn_weights=False)[1]
        return y, z, weights, each, *self.cross(z, k, v, key_padding_mask=padding)


@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention_is_written_plainly(batch_first: bool) -> None:
    first = (3, 5) if batch_first else (5, 3)
    keys = (3, 4) if batch_first else (4, 3)
    padding = torch.tensor([[False, False, True, True], [False] * 4, [False, True, False, True]])
    trace = check(Attends(batch_first=batch_first), rand(*first, 8), rand(*keys, 6), rand(*keys, 5), padding)
    frame = next(f for f in trace.root.calls if isinstance(f, Frame) and f.name == "own")
    named = [name for call in frame.calls if isinstance(call, SourceStep) for name in call.names]
    assert {"q", "k", "v", "y"} <= set(named)


def test_dropout_of_attention_is_in_words() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True).train()
    trace = trace_module(layer, (rand(2, 5, 8),))
    assert methods(trace).count("dropout") == 4
    assert "attention_weights" in methods(trace)
    got, _ = replay(trace, rand(2, 5, 8).numpy())
    assert np.isfinite(got).all()


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(rand(4, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x * self.weight
        first, rest = y[0], y[1:]
        rest += 1
        first[1:].mul_(2)
        y[:, 0] = x[:, 1] ** 2
        z = y.clone()
        z[y > 1] = 0.5
        z.T[2].copy_(first[:1].expand(4))
        return y, z, z.t().contiguous().view(2, 6), first


def test_views_and_writes_are_exact() -> None:
    check(Writes(), rand(4, 3))


class Stops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.a(x)
        q = torch.round(y)
        y = y + (q - y).detach()
        with torch.no_grad():
            teacher = self.b(y) * 2
        return y * teacher, self.b(x)


def test_gradients_stop_where_the_module_stops_them() -> None:
    trace = check(Stops(), rand(4, 3))
    assert methods(trace).count("stop_gradient") == 2


class Mixed(nn.Module):
    """Dtypes that meet, complex numbers, indices."""

    def forward(self, x: Tensor, i: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        z = torch.view_as_complex(x.reshape(4, 3, 2))
        r = torch.view_as_real(z * z.conj() * torch.polar(torch.ones(3), torch.arange(3.0)))
        return x + i[:, None], x[i, i - 2], x.masked_fill(m, -1), i / 2, i // 3, x > i[:, None], r, x.half() + 1


def test_dtypes_are_pytorchs() -> None:
    trace = check(Mixed(), rand(4, 6), torch.tensor([0, 2, 1, -1]), rand(4, 6) > 0)
    numbers = {"add", "subtract", "multiply", "divide", "where", "greater"}
    for step in steps(trace.root):
        if step.method in numbers:
            arrays = [a for a in step.args[step.method == "where" :] if isinstance(a, Var)]
            assert len({a.dtype for a in arrays}) == 1


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.inner = nn.Dropout(0.5), nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.25))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.drop(x)) + torch.randn_like(x) * torch.rand(3)


def test_random_numbers_come_from_a_key() -> None:
    trace = trace_module(Noisy().train(), (torch.ones(100, 3),))
    assert trace.key is not None
    assert [m for m in methods(trace) if m in ("dropout", "normal", "uniform")] == [
        "dropout",
        "dropout",
        "normal",
        "uniform",
    ]
    frames = [call for call in trace.root.calls if isinstance(call, Frame)]
    for frame in frames:  # each is given a key of its own
        assert not frame.left
        assert [name for name, _ in frame.arguments] == ["input", "key"]
    assert [s.method for s in steps(frames[0])] == ["dropout"]  # which is not split where it is used once
    assert methods(trace).count("split_key") == 4
    got, _ = replay(trace, np.ones((100, 3), np.float32))
    assert got.std() > 0.5
    assert trace_module(Noisy().eval(), (torch.ones(2, 3),)).key is not None


class Asks(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "size":
            n = int(torch.arange(x.shape[0]).sum())
            return x * n if (torch.ones(3) > 0).all() else x
        if self.how == "check":
            assert x.max() > -100, "too small"
            if torch.isnan(x).any():
                raise ValueError("NaN")
            return x + 1
        return x if x.sum() > 0 else -x


def test_values_that_depend_on_sizes_are_known() -> None:
    check(Asks("size"), rand(4, 3))


def test_checks_are_left_out_with_a_note() -> None:
    trace = check(Asks("check"), rand(4, 3))
    assert methods(trace) == ["add"]
    assert len(trace.notes) == 2
    assert "assert x.max() > -100" in trace.notes[0]


def test_values_that_only_running_gives_are_an_error_with_the_line() -> None:
    with pytest.raises(TracedValueError, match=r"test_torch_traces.py:\d+: `return x if x.sum\(\) > 0 else -x`"):
        trace_module(Asks("value"), (rand(4, 3),))


class Detached(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        y.detach().mul_(2)
        return y


def test_a_write_to_what_is_detached_is_an_error() -> None:
    with pytest.raises(TracedValueError, match=r"test_torch_traces.py:\d+: the result of detach\(\) or .data"):
        trace_module(Detached(3, 3), (rand(2, 3),))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * g * ctx.saved_tensors[0]


class Custom(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return Square.apply(super().forward(x))


def test_a_custom_derivative_is_noted() -> None:
    assert "Square" in check(Custom(3, 2), rand(4, 3)).derivative_notes[0]


def test_other_threads_and_devices_compute_as_ever() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    results: list[Any] = []

    class Busy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            def elsewhere() -> None:
                device = torch.device("graft")
                y = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).to(device)(torch.ones(2, 3, device=device))
                results.append((y.device.type, y.cpu().shape))

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            return model(x)

    trace = trace_module(Busy(), (rand(2, 3),))
    assert results == [("graft", (2, 3))]
    assert len(list(steps(trace.root))) < 40


def test_the_module_is_left_as_it_is() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    assert trace_module(net, (rand(2, 3),), training=True).training
    assert not net.training
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert trace_module(net, (rand(2, 3),)).written == {}


class Caches(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.cache: dict[int, Tensor] = {}
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        n = x.shape[1]
        if n not in self.cache:
            self.cache[n] = self.weight.exp() * torch.arange(n)
        return super().forward(x) @ self.cache[n] * self.calls


def test_a_cache_of_the_module_is_not_filled_by_a_trace() -> None:
    module = Caches()
    for _ in range(2):
        assert "exp" in methods(trace_module(module, (rand(2, 3),)))
    assert (module.cache, module.calls) == ({}, 0)
    check(module, rand(2, 3))
