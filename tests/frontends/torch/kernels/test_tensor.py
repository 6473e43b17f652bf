"""Operators on tensors against CPU PyTorch: products, reductions, indexing, sorting, linear algebra, transforms and
special functions; results, dtypes, gradients and errors, on every backend. A case is a line."""

import warnings

import pytest
import torch
from torch import linalg, special
from torch.testing import assert_close

import tensorgraft as tg
import tensorgraft.frontends.torch as front

CASES = {}


@pytest.fixture(params=["jax", "numpy"])
def device(request):
    return tg.device(request.param)


def case(name, fn, *args, tol=1e-4, grad=True):
    assert name not in CASES
    CASES[name] = (fn, args, tol, grad)


def _random(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator, dtype=dtype)


def _ints(high, *shape, low=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape)))


V, W, M, N, Q = _random(5), _random(5) + 1, _random(3, 5), _random(5, 4), _random(4, 4)
B, C, T3 = _random(2, 3, 5), _random(2, 5, 4), _random(2, 3, 4)
SPD = Q @ Q.T + 4 * torch.eye(4)
BATCH = _random(2, 4, 4) + 3 * torch.eye(4)
HERMITIAN = torch.complex(SPD, Q - Q.T)
J, L, K = _ints(6, 3, 5), _ints(5, 7), _ints(40, 6, 7)
MASK = M > 0
HALF = M.bfloat16()
BIT = torch.tensor([True, False, True])
NANS = torch.tensor([[1.0, float("nan"), -2.0, 3.0], [0.5, 0.25, float("nan"), float("nan")], [4.0, 1.0, 2.0, 3.0]])
TIED = torch.tensor([[2.0, 2.0, 1.0, 1.0, 3.0], [0.0, 1.0, 0.0, 1.0, 0.0]])

# ---- products --------------------------------------------------------------------------------------------------------

case("mm", torch.mm, M, N)
case("mm integers", torch.mm, J, J.T)
case("mm bfloat16", torch.mm, HALF, N.bfloat16(), tol=2e-2)
case("bmm", torch.bmm, B, C)
case("matmul broadcast", torch.matmul, B, N)
case("mv", torch.mv, M, V)
case("dot", torch.dot, V, W)
case("vdot", torch.vdot, torch.complex(V, W), torch.complex(W, V))
case("addmm", lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=2), _random(3, 4), M, N)
case("addmm beta 0", lambda x, a, b: torch.addmm(x, a, b, beta=0), torch.full((4,), torch.nan), M, N, grad=False)
case("baddbmm", lambda x, a, b: torch.baddbmm(x, a, b, alpha=2), _random(2, 3, 4), B, C)
case("addbmm", torch.addbmm, _random(3, 4), B, C)
case("addmv", torch.addmv, _random(3), M, V)
case("addr", torch.addr, _random(3, 5), _random(3), V)
case("linear", torch.nn.functional.linear, B, _random(4, 5), _random(4))
case("linear vector", torch.nn.functional.linear, V, _random(4, 5))
case("lazy conjugate", lambda x, y: x.conj() @ y.mH, HERMITIAN, HERMITIAN)
case("einsum", lambda x, y: torch.einsum("bij,bjk->ik", x, y), B, C)

# ---- reductions ------------------------------------------------------------------------------------------------------

for op in (torch.sum, torch.mean, torch.prod, torch.amax, torch.amin, torch.var, torch.std, torch.nansum):
    case(f"{op.__name__}", op, M)
    case(f"{op.__name__} dim", lambda x, op=op: op(x, 1, keepdim=True), M)
for op in (torch.max, torch.min, torch.median, torch.nanmedian, torch.mode, torch.cummax, torch.cummin):
    case(f"{op.__name__} pair", lambda x, op=op: tuple(op(x, 1)), M)
    case(f"{op.__name__} ties", lambda x, op=op: op(x, 1)[0], TIED, grad=False)
for op in (torch.max, torch.min, torch.median, torch.nanmedian, torch.amax, torch.argmax, torch.argmin):
    case(f"{op.__name__} nan", op, NANS, grad=False)
for op in (torch.any, torch.all, torch.count_nonzero, torch.argmax, torch.argmin):
    case(f"{op.__name__}", op, J)
    case(f"{op.__name__} dim", lambda x, op=op: op(x, 0), J)
case("sum integers", torch.sum, J.int())
case("sum dtype", lambda x: torch.sum(x, dtype=torch.float64), M)
case("sum bfloat16", torch.sum, HALF, tol=2e-2)
case("var correction", lambda x: torch.var(x, (0, 2), correction=0), B)
case("std_mean", torch.std_mean, M)
case("aminmax", torch.aminmax, M)
case("logsumexp", lambda x: torch.logsumexp(x, 1), M)
case("norm", torch.norm, M)
for p in (0, 0.5, 1, 2, 3, float("inf"), -float("inf")):
    case(f"vector_norm {p}", lambda x, p=p: linalg.vector_norm(x, p, dim=1), M)
case("trace", torch.trace, Q)

# ---- scans -----------------------------------------------------------------------------------------------------------

case("cumsum", lambda x: torch.cumsum(x, 1), M)
case("cumsum bool", lambda x: torch.cumsum(x, 1), MASK)
case("cumprod", lambda x: torch.cumprod(x, 1), M)
case("cummax nan", lambda x: torch.cummax(x, 1), NANS, grad=False)
case("logcumsumexp", lambda x: torch.logcumsumexp(x, 1), M)
case("scalar", lambda x: torch.cumsum(x, 0), V.sum())

# ---- indexing --------------------------------------------------------------------------------------------------------

case("index", lambda x: x[[0, -1, 1]], M)
case("index grid", lambda x: x[:, [[0], [1]], [2, -1]], B)
case("index apart", lambda x: x[[0, 1], :, [2, -1]], B)
case("index mask", lambda x, m: x[m], M, MASK)
case("index mask and integer", lambda x, m: x[m, 2], M, BIT)
case("index_put", lambda x, v: x.index_put((torch.tensor([0, 2], device=x.device),), v), M, _random(2, 5))
case("index_put add", lambda x, i, v: x.index_put((i,), v, accumulate=True), V, L, _random(7))
case("setitem mask", lambda x, m: x.clone().masked_fill_(m, 2.0), M, MASK)
case("index_put mask values", lambda x, m, v: x.index_put((m,), v), M, MASK, _random(int(MASK.sum())))
case("index_put mask rows", lambda x, m, v: x.index_put((m,), v), M, BIT, _random(2, 5))
case("index_select", lambda x, i: x.index_select(1, i), M, L)
case("index_add", lambda x, i, s: x.index_add(1, i, s, alpha=2), M, L, _random(3, 7))
case("index_copy", lambda x, s: x.index_copy(0, torch.tensor([2, 0], device=x.device), s), M, _random(2, 5))
case("index_fill", lambda x: x.index_fill(1, torch.tensor([-1, 0], device=x.device), 2.0), M)
for reduce in ("prod", "mean", "amax", "amin"):
    case(f"index_reduce {reduce}", lambda x, i, s, r=reduce: x.index_reduce(1, i, s, r, include_self=False), M, L,
         _random(3, 7), grad=False)  # fmt: skip
case("gather", lambda x, i: x.gather(1, i % 5), M, J)
case("scatter", lambda x, s: x.scatter(1, torch.tensor([[0, 4], [1, 2]], device=x.device), s), M, _random(2, 2))
case("scatter value", lambda x, i: x.scatter(1, i % 5, 3.0), M, J)
case("scatter_add", lambda x, i, s: x.scatter_add(1, i % 5, s), M, J, M)
for reduce in ("sum", "prod", "mean", "amax", "amin"):
    for own in (True, False):
        case(f"scatter_reduce {reduce} {own}",
             lambda x, i, s, r=reduce, own=own: x.scatter_reduce(1, i % 5, s, r, include_self=own),
             M, J, M + 1)  # fmt: skip
case("take", lambda x: x.take(torch.tensor([[0, -1], [3, 3]], device=x.device)), M)
case("put", lambda x, s: x.put(torch.tensor([0, -1], device=x.device), s, accumulate=True), M, _random(2))
case("masked_fill", lambda x, m: x.masked_fill(m, -1), M, MASK)
case("masked_select", torch.masked_select, M, MASK)
case("masked_scatter", torch.masked_scatter, M, MASK, _random(20))
case("nonzero", torch.nonzero, J % 2)
case("nonzero_static", lambda x: torch.nonzero_static(x, size=9, fill_value=-1), J % 2)
case("repeat_interleave", lambda x: x.repeat_interleave(torch.tensor([2, 0, 1], device=x.device), 0), M)
case("embedding", lambda i, w: torch.nn.functional.embedding(i, w, padding_idx=2), L, _random(6, 3))
case("embedding by frequency", lambda i, w: torch.nn.functional.embedding(i, w, scale_grad_by_freq=True), L,
     _random(6, 3))  # fmt: skip
for mode in ("sum", "mean", "max"):
    case(f"embedding_bag {mode}",
         lambda i, w, m=mode: torch.nn.functional.embedding_bag(i, w, i.new_tensor([0, 3, 3]), mode=m, padding_idx=1),
         L, _random(6, 3))  # fmt: skip
case("embedding_bag weights", lambda i, w, s: torch.nn.functional.embedding_bag(
    i, w, i.new_tensor([0, 2]), mode="sum", per_sample_weights=s), L, _random(6, 3), _random(7))  # fmt: skip

# ---- sorting and counting --------------------------------------------------------------------------------------------

case("sort", lambda x: torch.sort(x, 1), M)
case("sort descending", lambda x: torch.sort(x, dim=1, descending=True, stable=True), TIED, grad=False)
case("sort nan", lambda x: torch.sort(x, 1, descending=True)[0], NANS, grad=False)
case("argsort", lambda x: torch.argsort(x, 0), M)
case("msort", torch.msort, M)
case("topk", lambda x: torch.topk(x, 2), M)
case("topk least", lambda x: torch.topk(x, 3, 0, largest=False), M)
case("kthvalue", lambda x: torch.kthvalue(x, 2), M)
case("median even", lambda x: torch.median(x, 0), _random(4, 3))
case("nanmedian dim", lambda x: torch.nanmedian(x, 1)[0], NANS, grad=False)
case("quantile", lambda x: torch.quantile(x, 0.3, dim=1), M)
case("unique", lambda x: torch.unique(x, return_inverse=True, return_counts=True), K)
case("unique rows", lambda x: torch.unique(x % 2, dim=0, return_inverse=True, return_counts=True), K[:, :2])
case("unique_consecutive", lambda x: torch.unique_consecutive(x % 2, return_inverse=True, return_counts=True), K)
case("searchsorted", lambda x, v: torch.searchsorted(x.sort()[0], v), M, M, grad=False)
case("searchsorted right", lambda x, v: torch.searchsorted(x.unique(), v, right=True), K, K)
case("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], device=x.device)), M, grad=False)
case("isin", lambda x: torch.isin(x, torch.tensor([1, 3], device=x.device)), J)
case("histc", lambda x: torch.histc(x, 5), M, grad=False)
case("histc of a range", lambda x: torch.histc(x * 1.7, 7, min=-2, max=3), M, grad=False)
case("histogram", lambda x: torch.histogram(x, 4, range=(-1.0, 1.0), density=True), M, grad=False)
case("bincount", lambda x, w: torch.bincount(x, w, minlength=9), L, _random(7), grad=False)

# ---- distances -------------------------------------------------------------------------------------------------------

for p in (0.0, 1.0, 1.5, 2.0, float("inf")):
    case(f"cdist {p}", lambda x, y, p=p: torch.cdist(x, y, p), B, _random(2, 4, 5))
    case(f"pdist {p}", lambda x, p=p: torch.nn.functional.pdist(x, p), M)
case("renorm", lambda x: torch.renorm(x, 2, 0, 1.0), M)

# ---- linear algebra --------------------------------------------------------------------------------------------------

case("cholesky", linalg.cholesky, SPD)
case("cholesky upper", lambda x: linalg.cholesky(x, upper=True), HERMITIAN + 8 * torch.eye(4), grad=False)
case("cholesky_ex info", lambda x: linalg.cholesky_ex(x)[1], torch.diag(torch.tensor([1.0, 2.0, -1.0])), grad=False)
case("cholesky_solve", lambda b, x: torch.cholesky_solve(b, linalg.cholesky(x)), Q, SPD, tol=1e-3)
case("cholesky_inverse", lambda x: torch.cholesky_inverse(linalg.cholesky(x)), SPD, tol=1e-3)
case("qr", linalg.qr, N)
case("qr complete", lambda x: linalg.qr(x, "complete"), N, grad=False)
case("geqrf", torch.geqrf, N, grad=False)
case("ormqr", lambda a, b: torch.ormqr(*torch.geqrf(a), b, transpose=True), N, _random(5, 2), grad=False)
case("householder_product", lambda a, t: linalg.householder_product(a.tril(-1), t), N, _random(4).abs() / 8)
case("svd", lambda x: (linalg.svd(x, full_matrices=False)[1], linalg.svd(x, full_matrices=False)[2].abs()), M)
case("svdvals", linalg.svdvals, B)
case("eigh", lambda x: (linalg.eigh(x)[0], linalg.eigh(x)[1].abs()), SPD, tol=1e-3)
case("eigvalsh upper", lambda x: linalg.eigvalsh(x, "U"), SPD)
case("eigvals", lambda x: linalg.eigvals(x).abs().sort()[0], Q, tol=1e-3)
case("eig", lambda x: linalg.eig(x)[1].abs().sum(), BATCH, tol=1e-3)
case("lu", linalg.lu, BATCH)
case("lu_factor", lambda x: linalg.lu_factor(x), Q)
case("lu_unpack", lambda x: torch.lu_unpack(*linalg.lu_factor(x)), BATCH)
for adjoint in (True, False):
    for left in (True, False):
        case(f"lu_solve {left} {adjoint}", lambda x, b, left=left, adjoint=adjoint: linalg.lu_solve(
            *linalg.lu_factor(x), b, left=left, adjoint=adjoint), BATCH, Q, tol=1e-3)  # fmt: skip
case("solve", linalg.solve, BATCH, Q, tol=1e-3)
case("solve vector", linalg.solve, SPD, _random(4), tol=1e-3)
case("inv", linalg.inv, BATCH, tol=1e-3)
case("det", linalg.det, Q)
case("slogdet", linalg.slogdet, BATCH)
case("solve_triangular", lambda a, b: linalg.solve_triangular(a, b, upper=True), Q.triu() + 3 * torch.eye(4), Q)
case("triangular_solve", lambda b, a: torch.triangular_solve(b, a)[0], Q, Q.triu() + 3 * torch.eye(4))
case("lstsq", lambda a, b: linalg.lstsq(a, b).solution, N, _random(5, 2), tol=1e-3)
case("pinv", linalg.pinv, M, tol=1e-3)
case("matrix_exp", linalg.matrix_exp, BATCH, tol=1e-2)
if hasattr(linalg, "polar"):  # PyTorch 2.15
    case("matrix_sqrth", linalg.matrix_sqrth, SPD, tol=1e-3)
    case("polar", linalg.polar, M.mT, tol=1e-3)
case("matrix_power", lambda x: linalg.matrix_power(x, 3), Q, tol=1e-3)
case("cross", linalg.cross, _random(4, 3), _random(4, 3) + 1)

# ---- Fourier transforms ----------------------------------------------------------------------------------------------

for norm in ("forward", "backward", "ortho"):
    for op in (torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.irfft, torch.fft.hfft, torch.fft.ihfft):
        case(f"{op.__name__} {norm}", lambda x, op=op, norm=norm: op(x, norm=norm), M)
case("fft2", torch.fft.fft2, B)
case("rfftn irfftn", lambda x: torch.fft.irfftn(torch.fft.rfftn(x), s=x.shape), B)

# ---- special functions -----------------------------------------------------------------------------------------------

LINE = torch.cat([torch.linspace(-12, 12, 49), torch.tensor([0.0, 0.3, float("inf"), float("nan")])])
BESSEL = ["bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "spherical_bessel_j0"]
BESSEL += [f"modified_bessel_{kind}" for kind in ("i0", "i1", "k0", "k1")]
BESSEL += ["scaled_modified_bessel_k0", "scaled_modified_bessel_k1"]
for name in (*BESSEL, "airy_ai", "erfcx"):
    case(f"special.{name}", getattr(special, name), LINE, grad=False)
case("special.ndtri", special.ndtri, torch.cat([torch.linspace(0, 1, 30), torch.logspace(-30, -1, 20)]))
case("special.log_ndtr", special.log_ndtr, LINE[:49])
POINTS = torch.tensor([[-1.5], [-1.0], [0.25], [1.0]])
POLYNOMIALS = [f"{s}chebyshev_polynomial_{kind}" for s in ("", "shifted_") for kind in "tuvw"]
for name in (*POLYNOMIALS, "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l"):
    case(f"special.{name}", getattr(special, name), POINTS, torch.arange(-1.0, 11), tol=1e-3, grad=False)
case("special.legendre_polynomial_p", special.legendre_polynomial_p, POINTS, torch.arange(0.0, 9), grad=False)


# ---- the comparison --------------------------------------------------------------------------------------------------


def _outputs(made):
    return [t for t in (made if isinstance(made, list | tuple) else [made]) if isinstance(t, torch.Tensor)]


def _run(fn, args, grad):
    """(the results, the gradients by the differentiable arguments for a fixed cotangent)."""
    args = [a.clone().requires_grad_(grad and (a.is_floating_point() or a.is_complex())) for a in args]
    made = _outputs(fn(*args))
    loss = sum((t.abs() * torch.arange(1, t.numel() + 1, device=t.device).reshape(t.shape)).sum() for t in made
               if t.requires_grad)  # fmt: skip
    leaves = [a for a in args if a.requires_grad]
    if not isinstance(loss, torch.Tensor):
        return made, []
    return made, torch.autograd.grad(loss, leaves, allow_unused=True)


@pytest.mark.parametrize("name", CASES)
def test_operator(name, device):
    fn, args, tol, grad = CASES[name]
    before = front.fallbacks()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, slopes = _run(fn, args, grad)
        made, ours = _run(fn, [a.to(device) for a in args], grad)
    assert len(made) == len(expected)
    for mine, theirs in zip([*made, *ours], [*expected, *slopes], strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert mine.device == device
            assert_close(mine.cpu(), theirs, rtol=tol, atol=tol, equal_nan=True)
    assert front.fallbacks() == before, "an operator ran on the CPU"


REFUSED = {
    "index": lambda x, i: x[i + 10],
    "index negative": lambda x, i: x[i - 10],
    "index second axis": lambda x, i: x[:, i + 10],
    "index too many": lambda x, i: x[i, i, i],
    "index shapes": lambda x, i: x[i, i.new_zeros(4)],
    "index float": lambda x, i: x[x[0]],
    "index mask": lambda x, i: x[x[0] > 0],
    "setitem": lambda x, i: x.index_put_((i + 3,), x.new_tensor(1.0)),
    "setitem mask": lambda x, i: x.index_put_((x > -9,), x.new_ones(7)),
    "index_select": lambda x, i: x.index_select(0, i + 3),
    "gather": lambda x, i: x.gather(0, i.expand(3, 2) + 2),
    "gather dtype": lambda x, i: x.gather(0, i.expand(3, 2).short()),
    "scatter": lambda x, i: x.scatter(0, i.expand(3, 2) - 1, 1.0),
    "scatter_add": lambda x, i: x.scatter_add(1, i.expand(3, 2) + 5, x),
    "embedding": lambda x, i: torch.nn.functional.embedding(i + 3, x),
    "take": lambda x, i: x.take(i + 20),
    "put": lambda x, i: x.put_(i + 20, x.new_ones(2)),
    "index_add": lambda x, i: x.index_add(0, i + 3, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i + 3, x[:2]),
    "index_fill": lambda x, i: x.index_fill(0, i + 3, 1.0),
    "masked_scatter": lambda x, i: x.masked_scatter(x > -9, x[0]),
    "mm": lambda x, i: x @ x,
    "mm dtypes": lambda x, i: x @ x.double().T,
    "topk": lambda x, i: x.topk(9),
    "cholesky": lambda x, i: linalg.cholesky(-torch.eye(3, device=x.device)),
    "inv": lambda x, i: linalg.inv(torch.zeros(3, 3, device=x.device)),
    "max of nothing": lambda x, i: x[:0].max(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name, device):
    """The exception's type and text are the CPU's, and what was to be written is untouched."""
    x, i = _random(3, 5), torch.tensor([0, 1])
    with pytest.raises(Exception) as theirs:
        REFUSED[name](x.clone(), i)
    mine = x.to(device)
    with pytest.raises(type(theirs.value)) as ours:
        REFUSED[name](mine, i.to(device))
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]
    assert_close(mine.cpu(), x)


def test_indices_on_the_cpu(device):
    """As with CUDA, a CPU tensor may index a tensor of the device."""
    x, i = _random(3, 5), torch.tensor([2, 0])
    assert_close(x.to(device)[i].cpu(), x[i])
    assert_close(x.to(device)[x > 0].cpu(), x[x > 0])
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 3"):
        x.to(device)[i + 5]


OUTS = {
    "linspace": lambda out: torch.linspace(4.3, -3, 50, out=out),
    "logspace": lambda out: torch.logspace(0, 1.2, 4, 5.0, out=out),
    "arange": lambda out: torch.arange(0.5, 6, 1.5, out=out),
    "eye": lambda out: torch.eye(3, out=out),
    "full": lambda out: torch.full((2,), 3, out=out),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float64])
@pytest.mark.parametrize("name", OUTS)
def test_out_decides_the_dtype(name, dtype, device):
    made, expected = (OUTS[name](torch.empty(0, dtype=dtype, device=d)) for d in (device, "cpu"))
    assert_close(made.cpu(), expected)


def test_arange_of_numbers_that_are_cut(device):
    assert torch.arange(5.9, dtype=torch.int64, device=device).tolist() == [0, 1, 2, 3, 4]
    assert torch.arange(5.9, dtype=torch.int32, device=device).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**31, 2**31 - 1, 256, 255, -1, float("inf"), 2.5])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_numbers_that_fit(device, dtype, value):
    """As C++ converts them: exactly."""

    def filled(where):
        def given(make):
            try:
                return make(torch.zeros(3, dtype=dtype, device=where)).cpu()
            except RuntimeError as error:
                return str(error)

        def assigned(x):
            x[:2] = value
            return x

        full = lambda x: torch.full((2,), value, dtype=dtype, device=where)  # noqa: E731
        return [given(f) for f in (assigned, lambda x: x.fill_(value), full)]

    for a, b in zip(filled(device), filled("cpu"), strict=True):
        assert a == b if isinstance(b, str) else torch.equal(a, b)


def test_absolute_values_of_truths(device):
    """As on CUDA, also in a list; the CPU has no kernel for them."""
    x = torch.tensor([True, False], device=device)
    lists = torch._foreach_abs([x]), [x.clone()]
    torch._foreach_abs_(lists[1])
    assert all(torch.equal(x, y) for y in (torch.abs(x), lists[0][0], lists[1][0]))
