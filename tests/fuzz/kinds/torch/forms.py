"""Statements that schemas do not say: views, writes through them, histories and gradients, regions, layers, modules and
optimizers. Each form gives a statement, or "" where there is nothing that it needs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.fuzz.kinds.torch.schemas import SCALARS, Pool

import torch

Tensor = torch.Tensor


def index(t: Tensor, rng: random.Random, pool: Pool, basic: bool = False) -> str:
    """A basic or advanced index of a tensor, without brackets."""
    parts: list[str] = []
    for n in t.shape:
        way = rng.random()
        if way < 0.25:
            parts.append(":")
        elif way < 0.5:
            a, b, step = rng.randint(-1, n), rng.choice(("", rng.randint(-1, n + 1))), rng.choice(("", "", 2))
            parts.append(f"{a if a else ''}:{b}" + (f":{step}" if step else ""))
        elif way < 0.7:
            parts.append(str(rng.randint(-n, n - 1)) if n else ":")
        elif way < 0.78:
            parts.append("None")
            parts.append(":")
        elif way < 0.84 and not basic:
            parts.append(f"I(({rng.randint(1, 3)},), {n}, {pool.seed()})")
        elif way < 0.87 and not basic:
            parts.append(f"[{', '.join(str(rng.randrange(n)) for _ in range(2))}]" if n else ":")
        elif way < 0.9 and not basic:
            parts.append(f"T(({n},), torch.bool, {pool.seed()})")
        else:
            break
    if rng.random() < 0.1:
        parts.insert(rng.randint(0, len(parts)), "...")
    if not basic and rng.random() < 0.05:
        return pool.fresh(t.shape, "bool")
    return ", ".join(parts) if parts else "..."


def view(pool: Pool, rng: random.Random) -> str:
    name = pool.any()
    t, d = pool.tensors[name], max(pool.tensors[name].ndim, 1)
    a, b = rng.randint(-d, d - 1), rng.randint(-d, d - 1)
    n = t.shape[a] if t.ndim else 1
    order = list(range(t.ndim))
    rng.shuffle(order)
    start = rng.randint(0, n)
    shape = [2 if rng.random() < 0.3 and m == 1 else m for m in t.shape]
    said = rng.choice((
        f"[{index(t, rng, pool, basic=True)}]", f"[{index(t, rng, pool, basic=True)}]", f".transpose({a}, {b})",
        f".permute({order})", ".T" if t.ndim == 2 else ".mT", f".select({a}, {rng.randint(-n, max(n - 1, 0))})",
        f".narrow({a}, {start}, {rng.randint(0, n - start)})", f".unsqueeze({rng.randint(-d - 1, d)})", ".squeeze()",
        f".squeeze({a})", f".expand({[3, *shape]})", f".expand({shape})", f".view({list(t.shape)[::-1]})", ".view(-1)",
        f".reshape({[-1, *t.shape[:1]]})", f".unfold({a}, {rng.randint(1, 3)}, {rng.randint(1, 2)})",
        f".diagonal({rng.randint(-1, 1)}, {a}, {b})", f".unbind({a})", f".split({rng.randint(1, 2)}, {a})",
        f".chunk(2, {a})", f".movedim({a}, {b})", ".detach()", ".flatten()", ".view_as_real()" if False else ".real",
        ".imag", f".as_strided({strided(t, rng)})", f".view(torch.{'bool' if t.dtype is torch.bool else pool.dtype('bool')})", ".ravel()", ".conj()", ".t()",
        f".unflatten({a}, (-1, 1))", f".tensor_split({rng.randint(1, 3)}, {a})", f".swapaxes({a}, {b})", ".alias()" if False else "[...]",
        f".contiguous(memory_format=torch.{rng.choice(('contiguous_format', 'channels_last'))})",
        f".to(memory_format=torch.{rng.choice(('channels_last', 'preserve_format'))})", ".expand_as(" + pool.any() + ")",
        f".broadcast_to({shape})", f".to(torch.{pool.dtype()})", ".clone()", ".contiguous()", ".mH", ".adjoint()",
    ))  # fmt: skip
    return f"{name}{said}"


def strided(t: Tensor, rng: random.Random) -> str:
    size = [rng.randint(1, 3) for _ in range(rng.randint(1, 3))]
    stride = [rng.randint(0, 3) for _ in size]
    room = t.untyped_storage().nbytes() // t.element_size()
    last = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    return f"{size}, {stride}, {rng.randint(0, max(room - last - 1, 0))}"


def write(pool: Pool, rng: random.Random) -> str:
    name = pool.any()
    t = pool.tensors[name]
    at = f"{name}[{index(t, rng, pool)}]"
    value = rng.choice((pool.beside(name), pool.beside(name), rng.choice(SCALARS)))
    if rng.random() < 0.3:
        inside = f"{name}[{index(t, rng, pool, basic=True)}]"
        value = f"{pool.any()}[{index(t, rng, pool, basic=True)}]" if rng.random() < 0.5 else value
        return f"{inside}.{rng.choice(('copy_', 'add_', 'mul_', 'copy_', 'sub_'))}({value})"
    return rng.choice((
        f"{at} = {value}", f"{at} = {value}", f"{at} += {value}", f"{at} *= {value}", f"{name} += {value}",
        f"{name} *= {value}", f"{name} -= {value}", f"{name}.copy_({value})", f"{name}.fill_({rng.choice(SCALARS)})",
        f"{name}.zero_()", f"{at}.zero_()", f"{name}.masked_fill_({pool.fresh(t.shape, 'bool')}, {rng.choice(SCALARS)})",
        f"{name}.t_()", f"{name}.transpose_(0, {max(t.ndim - 1, 0)})", f"{name}.squeeze_()", f"{name}.unsqueeze_(0)",
        f"{name}.index_put_((I((2,), {t.shape[0] if t.ndim else 1}, {pool.seed()}),), {value}, accumulate=True)",
        f"{name}.detach_()", f"{name}.data.mul_(2)", f"{name}.detach().add_(1)", f"{name} /= {value}",
        f"{name} **= 2", f"{name} |= {value}", f"{name}.set_({pool.any()})" if rng.random() < 0.2 else f"{name}.clamp_(-1, 1)",
        f"{name}.swapaxes_(0, -1)",
    ))  # fmt: skip


def history(pool: Pool, rng: random.Random) -> str:
    """`requires_grad`, gradients, hooks."""
    name = pool.floating()
    if name is None:
        return ""
    with_history = [n for n in pool.names if pool.tensors[n].requires_grad]
    leaves = [n for n in with_history if pool.tensors[n].is_leaf]
    if not with_history or rng.random() < 0.2:
        return f"{name}.requires_grad_({'False' if rng.random() < 0.1 else ''})"
    y, x = rng.choice(with_history), rng.choice(with_history)
    leaf = rng.choice(leaves) if leaves else x
    graded = pool.tensors[leaf].is_leaf and pool.tensors[leaf].grad is not None
    again = rng.choice(("", ", retain_graph=True", ", retain_graph=True", ", create_graph=True"))
    t = pool.tensors[y]
    seed = pool.fresh(t.shape, str(t.dtype)[6:])
    inner = again.removeprefix(", ")
    return rng.choice((
        f"{y}.sum().backward({inner})", f"{y}.sum().backward({inner})", f"{y}.backward({seed}{again})",
        f"({y} * {y}).sum().backward({inner})",
        f"{{new}} = torch.autograd.grad({y}.sum(), {x}{again}, allow_unused=True)[0]",
        f"{{new}} = torch.autograd.grad({y}, [{x}, {leaf}], {seed}{again}, allow_unused=True)",
        f"{{new}} = torch.autograd.grad({y}.square().sum(), {leaf}, create_graph=True)[0]",
        f"{{new}} = torch.autograd.grad({y}.exp().sum(), {leaf}, create_graph=True)[0]",
        f"{leaf}.grad = None", f"{leaf}.grad.zero_()", f"{{new}} = {leaf}.grad", f"{x}.retain_grad()",
        f"{x}.grad_fn; {x}.register_hook(lambda g: g * 2)", f"{x}.grad_fn; {x}.register_hook(lambda g: g.clamp(-1, 1))",
        f"{leaf}.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))", f"{{new}} = {x}.detach()",
        f"with torch.no_grad(): {leaf}.sub_({leaf}.grad)", f"with torch.no_grad(): {leaf}.mul_(0.5)",
        f"{{new}} = torch.utils.checkpoint.checkpoint(lambda t: t.sin() * t, {x}, use_reentrant=False)",
        f"{{new}} = torch.nn.utils.clip_grad_norm_([{leaf}], 1.0)" if graded else f"{leaf}.square_()",
        f"{leaf}.data = {name}.data" if pool.tensors[leaf].is_inference() == pool.tensors[name].is_inference() else "",
        f"{{new}} = torch.func.grad(lambda t: (t.sin() * {name}).sum())({x})",
        f"{{new}} = torch.func.vmap(lambda t: t.cos().sum())({x})",
        f"{{new}} = torch.func.jvp(torch.tanh, ({x},), ({seed},))[1]" if x == y else f"{x}.requires_grad_()",
    ))  # fmt: skip


def layer(pool: Pool, rng: random.Random) -> str:
    """Operators of neural networks, with operands that fit."""
    dtype = rng.choice(("float32", "float32", "float32", "float64", "bfloat16", "float16"))
    n = rng.randint(1, 3)
    batch, c, o = rng.randint(1, 2), rng.choice((1, 2, 4)), rng.choice((2, 4))
    spatial = [rng.randint(3, 6) for _ in range(n)]
    x = pool.fresh((batch, c, *spatial), dtype)
    those = [m for m in pool.names if pool.tensors[m].ndim == n + 2 and str(pool.tensors[m].dtype)[6:] == dtype]
    if those and rng.random() < 0.6:
        x = rng.choice(those)
        c, spatial = pool.tensors[x].shape[1], list(pool.tensors[x].shape[2:])
    k, stride, pad, dil = rng.randint(1, 3), rng.randint(1, 2), rng.randint(0, 1), rng.choice((1, 1, 2))
    g = rng.choice([d for d in (1, 2, 4) if c % d == 0 and o % d == 0])
    w, b = pool.fresh((o, c // g, *[k] * n), dtype), pool.fresh((o,), dtype)
    wt = pool.fresh((c, o // g, *[k] * n), dtype)
    cc = pool.fresh((c,), dtype)
    flat = pool.fresh((batch, 3, 4), dtype)
    q, kv = (pool.fresh((batch, 2, m, 4), dtype) for m in (3, 5))
    labels, low, bools = (
        f"I(({batch},), {max(c, 1)}, {pool.seed()})",
        rng.choice(("mean", "sum", "none")),
        ("True", "False"),
    )
    two = f"I(({batch}, {', '.join(map(str, spatial))}), {max(c, 1)}, {pool.seed()})"
    modes = {
        1: ("linear", "nearest", "nearest-exact"),
        2: ("bilinear", "bicubic", "nearest", "area"),
        3: ("trilinear", "nearest"),
    }
    mode = rng.choice(modes[n])
    corners = ", align_corners=True" if mode.endswith(("linear", "cubic")) and rng.random() < 0.5 else ""
    return "{new} = " + rng.choice((
        f"F.conv{n}d({x}, {w}, {rng.choice((b, 'None'))}, stride={stride}, padding={pad}, dilation={dil}, groups={g})",
        f"F.conv{n}d({x}, {w}, {rng.choice((b, 'None'))}, stride={stride}, padding={pad}, dilation={dil}, groups={g})",
        f"F.conv{n}d({x}, {w}, padding='same', groups={g})",
        f"F.conv_transpose{n}d({x}, {wt}, stride={stride}, padding={pad}, groups={g})",
        f"F.avg_pool{n}d({x}, {k}, {stride}, {min(pad, k // 2)}, ceil_mode={rng.choice(bools)}, count_include_pad={rng.choice(bools)})",
        f"F.max_pool{n}d({x}, {k}, {stride}, {min(pad, k // 2)}, ceil_mode={rng.choice(bools)})",
        f"F.adaptive_avg_pool{n}d({x}, {rng.randint(1, 3)})", f"F.adaptive_max_pool{n}d({x}, {rng.randint(1, 3)})",
        f"F.lp_pool{n}d({x}.abs() + 0.5, 2, {k})" if n < 3 else f"F.relu({x}, inplace=True)",
        f"F.batch_norm({x}, {cc}.clone(), {cc}.abs() + 0.5, {cc}, {cc}, training={rng.choice(bools)})",
        f"F.instance_norm({x})", f"F.group_norm({x}, {rng.choice((1, g))}, {cc})", f"F.local_response_norm({x}, 2)",
        f"F.layer_norm({x}, {spatial[-1:]})", f"F.rms_norm({x}, {spatial[-1:]})",
        f"F.interpolate({x}, scale_factor={rng.choice((2, 0.5, 1.5))}, mode={mode!r}{corners})",
        f"F.interpolate({x}, size={[rng.randint(1, 7) for _ in range(n)]}, mode={mode!r}{corners})",
        f"F.pad({x}, {[rng.randint(-1, 2) for _ in range(2 * rng.randint(1, n))]}, value={rng.choice(SCALARS)})",
        f"F.pad({x}, {[rng.randint(0, 2) for _ in range(2 * n)]}, mode={rng.choice(('reflect', 'replicate', 'circular'))!r})",
        f"F.cross_entropy({x}, {two}, reduction={low!r}, label_smoothing={rng.choice((0.0, 0.1))})",
        f"F.nll_loss({x}.log_softmax(1), {two}, reduction={low!r})",
        f"F.linear({flat}, {pool.fresh((3, 4), dtype)}, {pool.fresh((3,), dtype)})",
        f"F.scaled_dot_product_attention({q}, {kv}, {kv}, is_causal={rng.choice(bools)})",
        f"F.scaled_dot_product_attention({q}, {kv}, {kv}, attn_mask={pool.fresh((3, 5), 'bool')})",
        f"F.embedding({labels}, {pool.fresh((max(c, 1), 3), dtype)}, padding_idx={rng.choice(('None', '0'))})",
        f"F.embedding_bag({two}.flatten(1), {pool.fresh((max(c, 1), 3), dtype)}, mode={rng.choice(('sum', 'mean', 'max'))!r})",
        f"F.one_hot({labels}, {max(c, 1) + 1})", f"F.normalize({flat}, dim={rng.randint(-2, 2)})",
        f"F.pixel_shuffle({x}, 2)", f"F.unfold({x}, {k}, padding={pad})", f"F.grid_sample({x}, {pool.fresh((batch, *[3] * n, n), dtype)})",
        f"F.smooth_l1_loss({flat}, {pool.fresh((batch, 3, 4), dtype)}, reduction={low!r})",
        f"F.binary_cross_entropy_with_logits({flat}, {pool.fresh((batch, 3, 4), dtype)}.sigmoid(), reduction={low!r})",
        f"F.kl_div({flat}.log_softmax(-1), {pool.fresh((batch, 3, 4), dtype)}.softmax(-1), reduction='batchmean')",
        f"F.gelu({x})", f"F.silu({x}, inplace=True)", f"F.softmax({x}, {rng.randint(0, n + 1)})",
        f"F.log_softmax({x}, {rng.randint(0, n + 1)}, dtype=torch.float64)", f"F.glu({flat}, -1)", f"F.hardswish({x})",
        f"F.leaky_relu({x}, 0.2, inplace={rng.choice(bools)})", f"F.prelu({x}, {cc})", f"F.elu({x})",
        f"torch.einsum('bij,bkj->bik', {flat}, {flat})", f"torch.bmm({flat}, {flat}.mT)",
        f"torch.cdist({flat}, {pool.fresh((batch, 2, 4), dtype)})", f"torch.cummax({flat}, {rng.randint(-1, 2)})",
        f"torch.addmm({pool.fresh((3,), dtype)}, {pool.fresh((2, 4), dtype)}, {pool.fresh((4, 3), dtype)}, beta=0.5, alpha=2)",
        f"torch.linalg.solve({pool.fresh((3, 3), 'float64')} + 9 * torch.eye(3, dtype=torch.float64, device=D), {pool.fresh((3, 2), 'float64')})",
        f"torch.linalg.cholesky({pool.fresh((3, 3), 'float64')} * 0.1 + 9 * torch.eye(3, dtype=torch.float64, device=D))",
        f"torch.linalg.inv({pool.fresh((2, 3, 3), 'float64')} + 9 * torch.eye(3, dtype=torch.float64, device=D))",
        f"torch.unique({flat}, return_inverse=True, return_counts=True)", f"torch.unique({flat}.round(), dim={rng.randint(-1, 1)})",
        f"torch.unique_consecutive({flat}.round(), return_counts=True, dim={rng.choice(('None', '0', '1'))})",
        f"torch.fft.rfft({flat}.float())", f"torch.where({flat} > 0, {flat}, {rng.choice(SCALARS)})",
        f"torch.arange({rng.randint(0, 6)}, device=D)", f"torch.full({pool.shape()}, {rng.choice(SCALARS)}, device=D)",
        f"torch.linspace(0, 1, {rng.randint(1, 6)}, device=D)", f"torch.zeros({pool.shape()}, dtype=torch.{pool.dtype()}, device=D)",
        f"torch.tensor({[[1, 2.5], [3, 4]] if rng.random() < 0.5 else [True, False]}, device=D)", f"torch.eye({rng.randint(0, 3)}, device=D)",
    ))  # fmt: skip


MODULES: dict[str, tuple[str, tuple[int, ...]]] = {  # what makes it -> the shape that it takes
    "nn.Linear(4, 3)": ("M", (2, 4)), "nn.Conv2d(2, 4, 3, padding=1)": ("M", (2, 2, 5, 5)), "nn.Conv1d(2, 4, 2, stride=2)": ("M", (2, 2, 6)),
    "nn.BatchNorm2d(2)": ("M", (2, 2, 3, 3)), "nn.BatchNorm1d(4, momentum=None)": ("M", (3, 4)), "nn.LayerNorm(4)": ("M", (2, 3, 4)),
    "nn.GroupNorm(2, 4)": ("M", (2, 4, 3)), "nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))": ("M", (2, 4)),
    "nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten())": ("M", (2, 2, 4, 4)),
    "nn.LSTM(4, 3, batch_first=True)": ("M", (2, 3, 4)), "nn.GRU(4, 3, bidirectional=True)": ("M", (3, 2, 4)),
    "nn.RNN(4, 3)": ("M", (3, 2, 4)), "nn.MultiheadAttention(4, 2, batch_first=True)": ("attention", (2, 3, 4)),
    "nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)": ("M", (2, 3, 4)), "nn.PReLU(4)": ("M", (2, 4)),
    "nn.Bilinear(4, 4, 3)": ("twice", (2, 4)), "nn.ConvTranspose2d(2, 3, 2, stride=2)": ("M", (1, 2, 3, 3)),
    "nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))": ("M", (2, 4)), "nn.InstanceNorm2d(2, affine=True, track_running_stats=True)": ("M", (2, 2, 3, 3)),
    "nn.RMSNorm(4)": ("M", (2, 4)), "nn.Conv3d(1, 2, 2)": ("M", (1, 1, 3, 3, 3)),
}  # fmt: skip
# whether they step on lists is said: PyTorch's default is another one on the CPU
OPTIMIZERS = (
    "SGD({p}, lr=0.1, momentum=0.9, nesterov=True, foreach={f})", "SGD({p}, lr=0.1, weight_decay=0.1, foreach={f})",
    "Adam({p}, lr=0.01, foreach={f})", "AdamW({p}, lr=0.01, amsgrad=True, foreach={f})",
    "RMSprop({p}, lr=0.01, centered=True, foreach={f})", "Adagrad({p}, lr=0.1, foreach={f})", "Adadelta({p}, foreach={f})",
    "Adamax({p}, foreach={f})", "NAdam({p}, foreach={f})", "RAdam({p}, foreach={f})", "ASGD({p}, foreach={f})",
    "Rprop({p}, foreach={f})", "Adafactor({p}, foreach={f})", "SGD({p}, lr=0.1, maximize=True, foreach={f})",
    "SGD({p}, lr=0.1, momentum=0.5, dampening=0.1, foreach={f})",
)  # fmt: skip


def module(pool: Pool, rng: random.Random, names: dict[str, Any]) -> str:
    """A module, a call of it, a step of an optimizer; the names of modules begin with m, of optimizers with o."""
    modules = [n for n, v in names.items() if isinstance(v, torch.nn.Module)]
    optimizers = [n for n, v in names.items() if isinstance(v, torch.optim.Optimizer)]
    if not modules:
        return f"m = prepared({rng.choice(list(MODULES))}, {pool.seed()}, D)"
    if not optimizers and rng.random() < 0.3:
        made = rng.choice(OPTIMIZERS).format(p="m.parameters()", f=rng.random() < 0.5)
        return f"o = torch.optim.{made}"
    said = names["_made"]
    shape = MODULES[said][1]
    x = pool.fresh(shape, "float32" if rng.random() < 0.95 else pool.dtype())
    those = [n for n in pool.names if tuple(pool.tensors[n].shape) == shape and pool.tensors[n].dtype is torch.float32]
    if those and rng.random() < 0.7:
        x = rng.choice(those)
    kind = MODULES[said][0]
    called = f"m({', '.join([x] * {'M': 1, 'twice': 2, 'attention': 3}[kind])})"
    first = f"first({called})"
    cast = rng.choice(("", "", f"with torch.autocast(D.type, dtype=torch.bfloat16, enabled={rng.random() < 0.8}): "))
    if optimizers and rng.random() < 0.6:
        return rng.choice(
            (
                f"o.zero_grad(); {first}.square().mean().backward(); o.step()",
                "o.step()",
                "o.zero_grad(set_to_none=False)",
            )
        )
    return rng.choice((
        f"{cast}{{new}} = {called}", f"{cast}{{new}} = {called}", f"{{new}} = {called}", f"{first}.sum().backward()",
        "m.train()", "m.eval()", "m.eval()", "m.zero_grad()", "m.requires_grad_(False)", f"with torch.no_grad(): {{new}} = {called}",
        f"with torch.inference_mode(): {{new}} = {called}", "m.double()" if rng.random() < 0.2 else "m.eval()",
        f"{{new}} = torch.func.functional_call(m, {{{{k: v * 2 for k, v in m.named_parameters()}}}}, ({', '.join([x] * {'M': 1, 'twice': 2, 'attention': 3}[kind])}, ))",
        "m.load_state_dict({{k: v * 2 for k, v in m.state_dict().items()}})", "{new} = list(m.parameters())",
        "for p in m.parameters(): p.register_hook(lambda g: g * 0.5)", "m.to(memory_format=torch.channels_last)",
        "{new} = [p.grad for p in m.parameters()]", "import copy; m = copy.deepcopy(m)",
    ))  # fmt: skip


Form = Callable[[Pool, random.Random], str]
