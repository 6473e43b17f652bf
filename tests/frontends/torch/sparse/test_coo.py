"""Sparse tensors (COO) on the device do what they do on the CPU: values, indices, flags, gradients, errors."""

import copy
import io
import math
import pickle
import re

import pytest
import torch

import tensorgraft as tg
import tensorgraft.frontends.torch

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support"),  # the CPU's products of two sparse tensors use it
]

# of u, not coalesced, c and e, coalesced, h with a dense dimension, dense d and i, and b, of booleans
SAME = """
c.to_dense()|u.to_dense()|h.to_dense()|b.to_dense()|c.to_dense(dtype=torch.float64)|u.coalesce()|h.coalesce()
b.coalesce()|u._nnz()|u.values()|c.values()|c.indices()|u._indices()|c.dim()|h.dense_dim()|h.sparse_dim()|len(c)
c.stride()|repr(c)|c.clone()|u.detach()|c.to(torch.float64)|c.int()|c.cdouble()|c.half()|torch.zeros_like(c)
torch.empty_like(c)|c.zero_()|c.clone().copy_(e)|e.copy_(u)|d.copy_(c)|c.copy_(d)|c.is_same_size(u)|c.resize_as_(h)
c.sparse_resize_((3, 4), 2, 0)|c.t()|c.T|u.transpose(0, 1)|h.permute(1, 0)|h.transpose(0, 1)|c.permute(0, 1)
c.permute(0)|c.permute(0, 0)|c.t_()|c.unsqueeze(-1)|torch.stack([c, e])|torch.cat([c, u], 1)|torch.cat([h, h])
torch.vstack([c, e])|torch.cat([c, d])|c.narrow_copy(1, 1, 2)|c[0]|u[1]|u[1, 1]|c[0, 2]|list(c)|c.select(1, 2)|h[1]
c[0:1]|c[5]|c.index_select(1, i)|u.index_select(0, i.clamp(max=1))|h.index_select(0, i)|h.index_select(1, i - 1)
c.index_select(0, i + 5)|c.index_select(3, i)|c.index_select(1, -i)|u + u|c + e|u - c|c - e.double()|d + u|d - c|i + c
torch.add(d, u, alpha=2)|torch.add(c, e, alpha=-3)|c + d|c + 1|torch.ones(3) + c|c + e.t()|d.add_(u)|d.int().add_(u)
d.sub_(c, alpha=2)|c.add_(e)|h + h|torch.add(c, e, out=c.clone())|c * 2|c * 2.5|2 * u|c.int() * 2.5|c.double() * 0.1
c.half() * 0.1|c * 1j|b * 2|c.mul_(3)|c * torch.tensor(2.0)|c.int() * torch.tensor(2.0)|c * e|u * u|u * c|c * u|h * h
c * e.t()|c.mul_(e)|c * d|d * u|c * d[0]|h * h.to_dense()|c / 3|c.int() / 3|c.div_(2)|c / d|c // 2
torch.div(u, 2, rounding_mode="floor")|c.floor_divide_(2)|c**2|u**2|c.pow(0.5)|c.pow(0)|torch.pow(c, 3, out=e)
c @ d.t()|u @ d.t()|u.double() @ d.t().double()|c @ d.t().double()|c @ d|d.t() @ c|c @ d[0]|d[:, 0] @ c|h @ d
torch.mv(c, d[0])|torch.sparse.mm(c, d.t())|torch.sparse.mm(u, u.t())|c @ e.t()|c @ c
torch.mm(c, d.t(), out=torch.empty(0))|torch.addmm(d[:, :2], c, d.t(), beta=2, alpha=3)
torch.addmm(d[0, :2], c, d.t())|torch.addmm(d, d, c.t())|torch.addmm(c, c, c)|torch.sparse.addmm(d[:, :2], u, d.t())
d[:, :2].clone().addmm_(u, d.t())|torch.bmm(torch.stack([c, e]), torch.stack([d.t(), d.t()]))
torch.bmm(torch.stack([d, d]), torch.stack([c, e]).transpose(1, 2))|torch.bmm(c, d)|c.sum()|u.sum(dtype=torch.float64)
u.sum(1)|c.sum(0, keepdim=True)|u.int().sum(1)|torch.sum(c, (0, 1))|torch.sparse.sum(h, 0)|c.norm()
torch.sparse.sum(h, 1)|torch.sparse.sum(u, 0)|c.norm(1)|b.any()|torch.sparse.softmax(u, 1)
torch.sparse.log_softmax(h, 0)|torch.sparse.softmax(h, 1)|d.sparse_mask(u)|u.sparse_mask(e)|c.sparse_mask(u)
h.to_dense().sparse_mask(h)|c.sparse_mask(h)|torch.ops.aten._sparse_mask_projection(c, u, True)|c.abs()|u.neg()
c.sin_()|u.sin_()|torch.sqrt(c, out=e)|c.relu()|u.sgn()|c.isnan()|torch.tanh(u)|c.abs_()|c.int().sin()|c.conj()
torch.nan_to_num(c)|d.to_sparse()|d.to_sparse(1)|(d > 3).to_sparse()|c.to_sparse()|torch.tensor(3.0).to_sparse()
torch.zeros(2, 3).to_sparse()|c.to_sparse(1)|torch.zeros_like(d, layout=torch.sparse_coo)
torch.sparse_coo_tensor((2, 3))|torch.sparse_coo_tensor(i[None], d[0, :2])
torch.sparse_coo_tensor(i[None] - 3, d[0, :2])|torch.sparse_coo_tensor(i[None], d[0, :2], (2,))
torch.sparse_coo_tensor(i[None], d.t()[:2])|torch.sparse_coo_tensor(i, d[0])
torch.empty(2, 3, layout=torch.sparse_coo)|c.numpy()|c.new(i[None], d[0, :2], (5,))|c.new(2, 3)|c.new_zeros((2, 3))
torch.ops.aten._sparse_broadcast_to(c.unsqueeze(1), (2, 4, 3))|torch.ops.aten._sparse_broadcast_to(h, (2, 4, 2))
torch.hspmm(u, d.t())|torch.smm(u, d.t())|torch.sspaddmm(c @ e.t(), u, d.t(), beta=2, alpha=3)|torch.hspmm(d, c)
torch.hspmm(c, d)|torch.nn.functional.linear(d, c)|c.item()|torch.equal(c, c)|c.reshape(6)|c.exp()|c.max()|c == c
"""
ON_JAX = re.compile(
    r"coalesce|c @ |u \+ u|c \+ e|d \+ u|u \* c|u\.index|d\.to_sparse|sum\(u|max\(u|u\.sparse_mask|repr|0\.1"
)
ROWS = [row.strip() for line in SAME.strip().splitlines() for row in line.split("|")]


def operands(device):
    def coo(indices, values, size):
        return torch.sparse_coo_tensor(torch.tensor(indices, device=device), torch.tensor(values, device=device), size)

    u = coo([[1, 0, 1], [1, 2, 1]], [1.0, 2.0, 3.0], (2, 3))
    return {
        "torch": torch,
        "u": u,
        "c": u.coalesce(),
        "e": coo([[0, 1], [2, 0]], [1.0, 2.0], (2, 3)).coalesce(),
        "h": coo([[3, 0, 3]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], (4, 2)),
        "b": coo([[1, 1, 0], [0, 0, 2]], [True, True, False], (2, 3)),
        "d": torch.arange(6.0, device=device).reshape(2, 3),
        "i": torch.tensor([2, 1], device=device),
    }


def described(x):
    """What can be compared of a result. Nonzeros that are not coalesced have no order of their own."""
    if isinstance(x, torch.Tensor) and x.is_sparse:
        assert x._indices().device == x._values().device == x.device
        host = x.cpu()
        assert host.is_coalesced() == x.is_coalesced()
        whole = host.coalesce()
        flags = x.is_coalesced(), x.sparse_dim(), x.dense_dim(), tuple(x.shape), x.dtype
        return flags, whole.indices().tolist(), whole.values().detach()
    if isinstance(x, torch.Tensor):
        return tuple(x.shape), x.dtype, x.detach().cpu()
    if isinstance(x, list | tuple):
        return [described(each) for each in x]
    return re.sub(r"\s*device='graft:\d+',", "", x) if isinstance(x, str) else x


def same(got, want):
    if isinstance(want, torch.Tensor):
        tolerance = 1e-3 if want.dtype == torch.float16 else 1e-5
        return got.dtype == want.dtype and torch.allclose(got, want, tolerance, 1e-6, equal_nan=True)
    if isinstance(want, list | tuple):
        return type(got) is type(want) and len(got) == len(want) and all(map(same, got, want))
    return got == want


def outcome(row, device):
    values = operands(device)
    try:
        with torch.device(device):
            return described(eval(row, values))
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_results_are_those_of_the_cpu(backend):
    device = tg.device(backend)
    different = {}
    for row in ROWS:
        if backend == "jax" and not ON_JAX.search(row):
            continue
        want, got = outcome(row, "cpu"), outcome(row, device)
        if "repr" in row:
            want, got = "".join(want.split()), "".join(got.split())
        if not same(got, want):
            different[row] = want, got
    assert different == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32, torch.complex64])
def test_numbers_promote_tensors_without_axes(dtype):
    def program(device):
        s = torch.full((), 3, dtype=dtype, device=device).to_sparse()
        return [described(f(s, n)) for n in (True, 2, 0.5) for f in (torch.mul, torch.div, lambda x, n: n * x)]

    assert same(program(tg.device("numpy")), program("cpu"))


CONSTRUCTORS = {
    "sorted": lambda i, v: torch.sparse_coo_tensor(i, v, (2, 3), is_coalesced=True),
    "sorted, without a size": lambda i, v: torch.sparse_coo_tensor(i, v, is_coalesced=True),
    "not sorted": lambda i, v: torch.sparse_coo_tensor(i.flip(1), v, (2, 3), is_coalesced=True),
    "outside of the size": lambda i, v: torch.sparse_coo_tensor(i, v, (2, 2), is_coalesced=True),
    "checked alone": lambda i, v: torch._validate_sparse_coo_tensor_args(i.flip(1), v, (2, 3), True),
    "narrowed": lambda i, v: torch.sparse_coo_tensor(i, v, (2, 3)).coalesce().narrow_copy(0, 1, 1),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_checks_of_invariants(name):
    def outcome(device):
        indices, values = torch.tensor([[0, 1, 1], [2, 0, 2]], device=device), torch.ones(3, device=device)
        with torch.sparse.check_sparse_tensor_invariants():
            try:
                result = CONSTRUCTORS[name](indices, values)
                return result.is_coalesced(), described(result)
            except RuntimeError as error:
                return str(error)

    assert same(outcome(tg.device("numpy")), outcome("cpu"))


@pytest.mark.parametrize("nnz", [0, 1, 3])
def test_permuted_tensors_are_coalesced_as_on_the_cpu(nnz):
    def flags(device):
        indices = torch.tensor([[0, 1, 1], [2, 0, 2]], device=device)[:, :nnz]
        x = torch.sparse_coo_tensor(indices, torch.ones(nnz, 2, device=device), (2, 3, 2)).coalesce()
        return [x.permute(dims).is_coalesced() for dims in ((0, 1, 2), (1, 0, 2), (-3, -2, -1), (-2, -3, -1))]

    assert flags(tg.device("numpy")) == flags("cpu")


# of leaves: dense values v of a sparse tensor, sparse s, and dense d and e
GRADIENTS = """
x @ d|s @ d|torch.sparse.mm(s, d)|torch.sparse.mm(x, d)|x.to_dense()|s.to_dense()|torch.sparse.sum(s, 0)
torch.sparse.sum(s)|torch.sparse.sum(x.coalesce(), 1)|x.coalesce().values()|torch.sparse.mm(s, s.t())|e + s|e - s
x + s|x * 2.5|s / 3|s * e|s * s|e.sparse_mask(s.detach())|e.to_sparse()|x.t() @ d[:2]
torch.sparse.addmm(e[:, :2], x, d, beta=2, alpha=3)|s.relu()|s**2|torch.bmm(torch.stack([s, s]), torch.stack([d, d]))
x @ d[:, 0]|d.t() @ s.t()|torch.sparse.softmax(s, 1)|torch.sparse.log_softmax(s, 1)|x.clone()|s.double()
x.cpu().to(d.device)|nn.functional.embedding(i, d, sparse=True)|torch.gather(d, 0, i[None, :2], sparse_grad=True)
x @ d + s @ d + torch.sparse.mm(x, d)
"""


def gradients(row, device):
    random = torch.Generator().manual_seed(0)
    v, d, e = (torch.randn(size, generator=random).to(device).requires_grad_() for size in ((4,), (3, 2), (2, 3)))
    indices = torch.tensor([[0, 1, 1, 0], [2, 0, 0, 1]], device=device)
    s = torch.sparse_coo_tensor(indices, v.detach(), (2, 3)).coalesce().requires_grad_()
    x = torch.sparse_coo_tensor(indices, v, (2, 3))
    i = torch.tensor([1, 0, 1], device=device)
    result = eval(row, {"torch": torch, "nn": torch.nn, "x": x, "s": s, "d": d, "e": e, "i": i})
    dense = result.to_dense() if result.is_sparse else result
    weights = torch.arange(1.0, dense.numel() + 1, device=device).reshape(dense.shape)
    (dense * weights).sum().backward()
    grads = [leaf.grad for leaf in (v, s, d, e)]
    layouts = [g if g is None else g.layout for g in grads]
    return [layouts, *(g if g is None else described(g.to_dense()) for g in (dense, *grads))]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_gradients_are_those_of_the_cpu(backend):
    device = tg.device(backend)
    rows = [row.strip() for line in GRADIENTS.strip().splitlines() for row in line.split("|")]
    for row in rows if backend == "numpy" else rows[:12]:
        assert same(gradients(row, device), gradients(row, "cpu")), row


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam])
def test_optimizers_take_sparse_gradients(optimizer):
    weights = []
    for device in ("cpu", tg.device("numpy")):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(5, 3, sparse=True).to(device)
        steps = optimizer(embedding.parameters(), lr=0.1)
        for _ in range(3):
            steps.zero_grad()
            embedding(torch.tensor([0, 2, 2], device=device)).square().sum().backward()
            assert embedding.weight.grad.is_sparse
            steps.step()
        weights.append(embedding.weight.detach().cpu())
    torch.testing.assert_close(*weights)


@pytest.fixture
def s():
    return torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (3,), device=tg.device("numpy"))


def test_it_goes_from_device_to_device(s):
    assert s.is_sparse and s.layout is torch.sparse_coo and s.device == tg.device("numpy")
    for device in ("cpu", tg.device("jax"), tg.device("numpy")):
        there = s.to(device, torch.float64)
        assert there.device == torch.device(device) and there.dtype == torch.float64
        assert there.to_dense().tolist() == [1, 0, 2] == there.to(s.device).to_dense().tolist()
    with pytest.raises(TypeError, match="float8_e8m0fnu"):
        s.cpu().to(s.device, torch.float8_e8m0fnu)


@pytest.mark.parametrize("other", [lambda s: s.cpu() + s, lambda s: torch.ones(3) + s, lambda s: s * torch.ones(3)])
def test_operands_are_on_one_device(s, other):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        other(s)


def test_saved_and_copied(s):
    file = io.BytesIO()
    torch.save({"s": s, "parameter": torch.nn.Parameter(s)}, file)
    loaded = torch.load(io.BytesIO(file.getvalue()))
    on_cpu = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")["s"]
    assert on_cpu.device.type == "cpu" and loaded["parameter"].requires_grad
    for x in (*loaded.values(), copy.deepcopy(s), pickle.loads(pickle.dumps(s))):
        assert x.is_sparse and x.device == s.device and x.is_coalesced() == s.is_coalesced()
        assert x.to_dense().tolist() == [1, 0, 2] == on_cpu.to_dense().tolist()


def test_what_is_not_there_names_the_operator(s):
    with pytest.raises(NotImplementedError, match="aten::exp: not supported for sparse tensors on the device 'graft'"):
        s.exp()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integer_products_convert_their_multiples(dtype):
    a = torch.tensor([[1, 0, 2], [0, 3, 0]], dtype=dtype)
    x, y = torch.ones(2, 2, dtype=dtype), torch.ones(3, 2, dtype=dtype)
    for beta, alpha in ((0.5, 1), (1, 1.9), (2, 3)):
        wanted = torch.addmm(x, a.to_sparse(), y, beta=beta, alpha=alpha)
        device = tg.device("numpy")
        found = torch.addmm(x.to(device), a.to_sparse().to(device), y.to(device), beta=beta, alpha=alpha)
        assert found.dtype is dtype and found.cpu().equal(wanted)


@pytest.mark.parametrize("shape", [(3, 0), (3,), (3, 3)])
def test_gradients_of_linear_layers(shape):
    weight = torch.arange(float(math.prod(shape))).reshape(shape).to_sparse()
    weight = weight if weight.numel() else weight.to_sparse_csr()

    def gradient(device):
        x = torch.arange(2.0 * weight.size(-1)).reshape(2, -1 if weight.size(-1) else 0).to(device).requires_grad_()
        return torch.autograd.grad(torch.nn.functional.linear(x, weight.to(device)).square().sum(), x)[0]

    for backend in ("numpy", "jax"):
        assert gradient(tg.device(backend)).to_dense().cpu().equal(gradient("cpu").to_dense())
