"""Bad input raises what CPU PyTorch raises, before anything is changed."""

import gc
import math
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F

import tensorgraft as tg

pytestmark = pytest.mark.sampled

DEVICES = tg.backends()


def tensor(device, *shape, dtype=torch.float32):
    n = torch.Size(shape).numel()
    return torch.arange(n, dtype=dtype).reshape(shape).clone().to(device)


def numbers(device, *values):
    return torch.tensor(values).to(device)


# name -> (program, whether the text is PyTorch's own to the letter)
PROGRAMS = {
    "shapes that do not fit": (lambda d: tensor(d, 4, 6) + tensor(d, 3, 6), True),
    "inner extents of a product": (lambda d: tensor(d, 4, 6) @ tensor(d, 5, 2), True),
    "dtypes of a product": (lambda d: tensor(d, 2, 2) @ tensor(d, 2, 2, dtype=torch.int64), True),
    "batches of a product": (lambda d: torch.bmm(tensor(d, 2, 3, 4), tensor(d, 3, 4, 5)), False),
    "view of a transposed tensor": (lambda d: tensor(d, 4, 6).t().view(24), True),
    "view of another size": (lambda d: tensor(d, 4, 6).view(5, 5), True),
    "reshape to another size": (lambda d: tensor(d, 4, 6).reshape(7, -1), True),
    "in place on a leaf": (lambda d: tensor(d, 3).requires_grad_().add_(1), True),
    "in place of another shape": (lambda d: tensor(d, 3).add_(tensor(d, 2, 3)), True),
    "in place of a wider dtype": (lambda d: tensor(d, 3, dtype=torch.int64).add_(1.5), True),
    "a write through an expanded view": (lambda d: tensor(d, 1, 3).expand(2, 3).add_(1), True),
    "a dimension out of range": (lambda d: tensor(d, 4, 6).sum(2), True),
    "a dimension twice": (lambda d: tensor(d, 4, 6).sum((0, 0)), False),
    "an index out of range": (lambda d: tensor(d, 4, 6)[4], True),
    "an index tensor out of range": (lambda d: tensor(d, 4)[torch.tensor([1, 9]).to(d)], True),
    "index_select out of range": (lambda d: tensor(d, 4).index_select(0, torch.tensor([9]).to(d)), False),
    "gather out of range": (lambda d: tensor(d, 4).gather(0, torch.tensor([9]).to(d)), False),
    "embedding out of range": (lambda d: F.embedding(torch.tensor([9]).to(d), tensor(d, 4, 2)), True),
    "a boolean mask of another shape": (lambda d: tensor(d, 4, 6)[torch.ones(5, dtype=torch.bool).to(d)], True),
    "cat of other ranks": (lambda d: torch.cat([tensor(d, 2, 3), tensor(d, 3)]), False),
    "stack of other shapes": (lambda d: torch.stack([tensor(d, 2), tensor(d, 3)]), True),
    "channels of a convolution": (lambda d: F.conv2d(tensor(d, 1, 3, 8, 8), tensor(d, 4, 2, 3, 3)), False),
    "backward of a tensor that needs no gradient": (lambda d: tensor(d, 3).sum().backward(), True),
    "backward of a vector": (lambda d: (tensor(d, 3).requires_grad_() * 2).backward(), True),
    "backward twice": (lambda d: [y.backward() for y in [tensor(d, 3).requires_grad_().sin().sum()] * 2], True),
    "the truth of several elements": (lambda d: bool(tensor(d, 3)), True),
    "item of several elements": (lambda d: tensor(d, 3).item(), True),
    "softmax of a dimension out of range": (lambda d: tensor(d, 3).softmax(1), True),
    "a singular matrix": (lambda d: torch.linalg.inv(torch.zeros(2, 2).to(d)), False),
    "out= of a narrower dtype": (
        lambda d: torch.add(tensor(d, 3), 1.5, out=torch.empty(3, dtype=torch.int64, device=d)),
        True,
    ),
    "squeeze of a dimension out of range": (lambda d: tensor(d, 3).squeeze(4), True),
    "a probability above one": (lambda d: F.dropout(tensor(d, 3), 1.5), True),
    "an integer to a negative power": (lambda d: tensor(d, 3, dtype=torch.int64) ** -1, True),
    "an integer to a negative power in place": (lambda d: tensor(d, 3, dtype=torch.int64).pow_(-1), True),
    "integers to a negative power": (lambda d: torch._foreach_pow([tensor(d, 3, dtype=torch.int64)], -1), True),
    "a division of integers by zero": (lambda d: tensor(d, 3, dtype=torch.int64) // 0, True),
    "a division of integers by a tensor": (lambda d: tensor(d, 2, dtype=torch.int64) % numbers(d, 0, 1), True),
    "a truncated division": (
        lambda d: torch.div(tensor(d, 2, dtype=torch.int64), numbers(d, 1, 0), rounding_mode="trunc"),
        True,
    ),
    "a loss of no probability": (lambda d: F.binary_cross_entropy(numbers(d, 0.5, 1.5), numbers(d, 0.0, 1.0)), True),
    "a loss of no target": (lambda d: F.binary_cross_entropy(numbers(d, 0.5, 0.5), numbers(d, 0.0, 2.0)), True),
    "probabilities above one": (lambda d: torch.bernoulli(numbers(d, 0.5, 1.5)), True),
    "a negative deviation": (lambda d: torch.normal(0.0, numbers(d, 1.0, -1.0)), True),
    "a negative rate": (lambda d: torch.poisson(numbers(d, 1.0, -1.0)), True),
    "a negative weight": (lambda d: torch.multinomial(numbers(d, 1.0, -1.0), 1), True),
    "weights without a sum": (lambda d: torch.multinomial(numbers(d, 0.0, 0.0), 2, True), True),
    "an infinite weight": (lambda d: torch.multinomial(numbers(d, 1.0, math.inf), 2, True), True),
    "a class out of range": (lambda d: F.multi_margin_loss(tensor(d, 2, 3), numbers(d, 0, 5)), True),
    "a label out of range": (lambda d: F.multilabel_margin_loss(tensor(d, 1, 3), numbers(d, 5, 0, -1)[None]), True),
    "a bag that begins late": (
        lambda d: F.embedding_bag(numbers(d, 1, 2), tensor(d, 3, 2), numbers(d, 1)),
        True,
    ),
    "a bag that ends late": (lambda d: F.embedding_bag(numbers(d, 1, 2), tensor(d, 3, 2), numbers(d, 0, 5)), True),
    "parts of two dtypes": (lambda d: torch.complex(tensor(d, 3), tensor(d, 3).double()), True),
    "parts of a wider dtype than out=": (
        lambda d: torch.complex(*[tensor(d, 3).double()] * 2, out=torch.empty(3, dtype=torch.complex64, device=d)),
        True,
    ),
    "narrow_copy of a dimension out of range": (lambda d: torch.narrow_copy(tensor(d, 3), 3, 0, 1), False),
    "an empty out= that is read": (lambda d: [torch.cat((x, tensor(d, 3)), out=x) for x in [tensor(d, 0)]], True),
    "the least along one of 65 axes": (lambda d: torch.ones([1] * 65).to(d).amin(-1), True),
    "out= of another dtype than aminmax's": (
        lambda d: torch.aminmax(tensor(d, 3), out=(tensor(d), tensor(d, dtype=torch.float64))),
        True,
    ),
    "out= of another dtype than cummax's": (
        lambda d: torch.cummax(tensor(d, 3), 0, out=(tensor(d, 3), tensor(d, 3, dtype=torch.int32))),
        True,
    ),
    "out= of another dtype than masked_select's": (
        lambda d: torch.masked_select(tensor(d, 3), tensor(d, 3) > 1, out=tensor(d, 0, dtype=torch.int64)),
        True,
    ),
    "out= of numbers for a truth": (lambda d: torch.all(tensor(d, 3), out=tensor(d)), True),
    "a histogram without end": (lambda d: torch.histc(numbers(d, 1.0, math.inf)), True),
    "a histogram with edges without end": (lambda d: torch.histogram(numbers(d, 1.0, math.inf), 5), True),
    "class weights of another dtype": (
        lambda d: F.nll_loss(tensor(d, 2, 3), numbers(d, 0, 1), tensor(d, 3).half()),
        True,
    ),
    "a maximum from outside": (
        lambda d: F.max_unpool2d(tensor(d, 1, 1, 1, 2), numbers(d, 0, 99).view(1, 1, 1, 2), 2),
        True,
    ),
    "a negative size": (lambda d: torch.empty(-1, device=d), False),
}


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("what", PROGRAMS)
def test_the_same_error_as_on_the_cpu(name, what):
    program, same_text = PROGRAMS[what]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as native:
            program("cpu")
        with pytest.raises(Exception) as ours:
            program(tg.device(name))
    assert isinstance(ours.value, native.type), f"{ours.value!r}, on the CPU {native.value!r}"
    if same_text:
        assert str(ours.value).splitlines()[0] == str(native.value).splitlines()[0]


# operator -> (program, shapes of its tensors): which dtypes it takes beside each other, and in which words it refuses
BESIDE = {
    "mm": (torch.mm, (2, 3), (3, 2)),
    "matmul of a vector": (torch.matmul, (2, 3), (3,)),
    "matmul of batches": (torch.matmul, (2, 2, 3), (3, 2)),
    "bmm": (torch.bmm, (2, 2, 3), (2, 3, 2)),
    "mv": (torch.mv, (2, 3), (3,)),
    "dot": (torch.dot, (3,), (3,)),
    "vdot": (torch.vdot, (3,), (3,)),
    "addmm": (torch.addmm, (2,), (2, 3), (3, 2)),
    "addmv": (torch.addmv, (2,), (2, 3), (3,)),
    "addbmm": (torch.addbmm, (2, 2), (2, 2, 3), (2, 3, 2)),
    "baddbmm": (torch.baddbmm, (2, 2, 2), (2, 2, 3), (2, 3, 2)),
    "mm into out=": (lambda x, y: torch.mm(x, y, out=x.new_empty(0)), (2, 3), (3, 2)),
    "einsum": (lambda x, y: torch.einsum("ij,jk", x, y), (2, 3), (3, 2)),
    "tensordot": (lambda x, y: torch.tensordot(x, y, 1), (2, 3), (3, 2)),
    "linear": (F.linear, (2, 3), (4, 3), (4,)),
    "bilinear": (F.bilinear, (2, 3), (2, 4), (5, 3, 4)),
    "conv1d": (F.conv1d, (1, 2, 5), (3, 2, 3)),
    "conv2d": (F.conv2d, (1, 2, 5, 5), (3, 2, 3, 3), (3,)),
    "conv_transpose2d": (F.conv_transpose2d, (1, 2, 5, 5), (2, 3, 3, 3)),
    "scaled_dot_product_attention": (F.scaled_dot_product_attention, (1, 2, 3), (1, 2, 3), (1, 2, 3)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (3,), w, b), (2, 3), (3,), (3,)),
    "scatter": (lambda x, i, s: x.scatter(0, i, s), (3,), (3,), (3,)),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), (3,), (3,), (3,)),
    "gather": (lambda x, i: x.gather(0, i), (3,), (3,)),
    "index_select": (lambda x, i: x.index_select(0, i), (3,), (3,)),
    "index_add": (lambda x, i, s: x.index_add(0, i, s), (3,), (3,), (3,)),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), (3,), (3,), (3,)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1), (3,), (3,)),
    "index_put": (lambda x, i, s: x.index_put((i,), s), (3,), (3,), (3,)),
    "take": (torch.take, (3,), (3,)),
    "put": (lambda x, i, s: x.put(i, s), (3,), (3,), (3,)),
    "masked_scatter": (lambda x, m, s: x.masked_scatter(m, s), (3,), (3,), (3,)),
    "embedding": (F.embedding, (3,), (4, 2)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.5), (3,), (3,)),
    "solve": (lambda x, y: torch.linalg.solve(x + torch.eye(2, dtype=x.dtype, device=x.device), y), (2, 2), (2, 2)),
    "binary_cross_entropy": (F.binary_cross_entropy, (3,), (3,)),
    "add in place": (lambda x, y: x.add_(y), (3,), (3,)),
    "divide in place": (lambda x, y: x.div_(y), (3,), (3,)),
}
_F, _D, _L, _I, _C, _B = torch.float32, torch.float64, torch.int64, torch.int32, torch.complex64, torch.bfloat16
DTYPES = [
    (_F, _D, _F),
    (_F, _L, _F),
    (_L, _F, _L),
    (_F, _F, _D),
    (_F, _L, _L),
    (_F, _I, _F),
    (_F, _C, _F),
    (_B, _F, _B),
]


@pytest.mark.parametrize("what", BESIDE)
def test_dtypes_beside_each_other(what):
    program, *shapes = BESIDE[what]

    def outcome(device, dtypes):
        tensors = [torch.zeros(s).to(dtype).to(device) for s, dtype in zip(shapes, dtypes, strict=False)]
        try:
            result = program(*tensors)
        except Exception as error:
            return type(error), str(error).splitlines()[0]
        return result.dtype, result.shape

    for dtypes in DTYPES:
        if what.startswith("conv") and _C in dtypes:
            continue  # PyTorch names the type of tensors there, which is the device's
        assert outcome(tg.device("numpy"), dtypes) == outcome("cpu", dtypes), dtypes


@pytest.mark.parametrize("name", DEVICES)
def test_operands_on_two_devices(name):
    here = tg.device(name)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device, but found at least two"):
        torch.ones(3).to(here) + torch.ones(3)
    assert (torch.ones(3).to(here) * torch.tensor(2.0)).tolist() == [2.0] * 3  # a CPU scalar is allowed, as on CUDA
    for other in tg.backends():
        if other != name:
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                torch.ones(3).to(here) + torch.ones(3).to(tg.device(other))


@pytest.mark.parametrize("name", DEVICES)
def test_a_failed_write_changes_nothing(name):
    x = torch.arange(3.0).to(tg.device(name))
    version = x._version
    for bad in (lambda: x.add_(torch.ones(2, 3, device=x.device)), lambda: x.copy_(torch.ones(4))):
        with pytest.raises(RuntimeError):
            bad()
    assert x.tolist() == [0.0, 1.0, 2.0]
    assert x._version - version <= 2


def test_an_unknown_backend():
    with pytest.raises(tg.BackendNotAvailableError, match=r"there is no backend 'quantum'\. Installed: .*numpy"):
        tg.device("quantum")


def test_a_backend_that_is_not_installed(monkeypatch):
    from tensorgraft.hub import registry

    absent = registry.BackendInfo("jax", "nowhere:Backend", "no_such_package", installed=False)
    monkeypatch.setattr(registry, "known", lambda: {"jax": absent})
    with pytest.raises(tg.BackendNotAvailableError, match=r'pip install "tensorgraft\[jax\]"'):
        registry.lookup("jax")


def test_a_device_index_that_does_not_exist():
    with pytest.raises(RuntimeError, match="invalid device ordinal 99"):
        torch.empty(2, device="graft:99")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("refused", [
    lambda d: tensor(d, 3, dtype=torch.bool).argmax(),
    lambda d: torch.repeat_interleave(numbers(d, 1, -1)),
    lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
    lambda d: tensor(d, 4, 6) @ tensor(d, 5, 2),
])  # fmt: skip
def test_a_refusal_keeps_no_caller_alive(device, refused):
    """Frames that an exception went through hold what their callers have switched off (functorch, while a tensor is
    printed), and their tensors: until garbage is collected, if one of them names the exception."""

    class Held:
        pass

    def caller():
        held = Held()
        try:
            refused(tg.device(device))
        except RuntimeError:
            return weakref.ref(held)
        raise AssertionError("not refused")

    caller()  # what is imported and planned at first
    gc.collect()
    gc.disable()
    try:
        assert caller()() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("operator", [torch.any, torch.nanmean, torch.norm, torch.logsumexp])
def test_more_axes_than_pytorch_computes_with(operator):
    for device in ("cpu", tg.device("jax")):
        with pytest.raises(RuntimeError, match="only tensors with up to 64 dims are supported"):
            operator(torch.ones([1] * 65, device=device), dim=0)


@pytest.mark.parametrize("find", [torch.nonzero, torch.Tensor.to_sparse])
def test_positions_of_more_axes(find):
    with pytest.raises(RuntimeError, match="only tensors with up to 64 dims are supported"):
        find(torch.ones([1] * 65, device=tg.device("numpy")))


@pytest.mark.parametrize("draw", [torch.Tensor.uniform_, torch.Tensor.normal_, torch.rand_like, torch.bernoulli])
def test_random_numbers_of_more_axes(draw):
    with pytest.raises(RuntimeError, match="only tensors with up to 64 dims are supported"):
        draw(torch.ones([1] * 65).to(tg.device("jax")))
