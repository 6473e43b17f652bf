"""Inside `tg.jit`, results whose number of elements follows from the indices of sparse tensors from outside are what
PyTorch gives on the CPU; other indices are another trace; copies of indices count as the same ones."""

import numpy as np
import pytest
import torch

import tensorgraft as tg
from tensorgraft.errors import TracedValueError

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # beta state; invariant checks are implicitly disabled

COMPILING = ["jax", "tensorflow", "torch"]
DENSE = torch.tensor([[1.0, 0, 2, 0], [0, 0, 3, 0], [0, 4, 0, 5]])
OTHER = torch.tensor([[0.0, 1, 0, 0], [2, 0, 3, 0], [0, 0, 0, 6]])
COO = {
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "difference of three": lambda a, b: a - b - a,
    "select": lambda a, b: a[1],
    "select a column": lambda a, b: a.select(1, 2),
    "sum of columns": lambda a, b: torch.sparse.sum(a, 0),
    "sum of a sum": lambda a, b: torch.sparse.sum(a + b, 1),
    "softmax": lambda a, b: torch.sparse.softmax(a, 1),
    "log_softmax": lambda a, b: torch.sparse.log_softmax(a, 0),
    "hspmm": lambda a, b: torch.hspmm(a, torch.ones(4, 2, device=a.device)),
    "matmul": lambda a, b: a @ b.t(),
    "index_select": lambda a, b: a.index_select(0, torch.tensor([2, 0], device=a.device)),
    "mask": lambda a, b: a.sparse_mask(b),
    "to csr": lambda a, b: a.to_sparse_csr(),
    "to blocks": lambda a, b: a.to_sparse_bsr((1, 2)),
    "count": lambda a, b: b * (a + b)._nnz(),
    "rows that occur": lambda a, b: a.indices()[0].unique(),
    "concatenated": lambda a, b: torch.cat([a, b.t().t()]).coalesce(),
    "unsqueezed": lambda a, b: (a + b).unsqueeze(0),
}
CSR = {
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "select": lambda a, b: a[1],
    "select a column": lambda a, b: a.select(1, 2),
    "sum of rows": lambda a, b: a.sum(1, keepdim=True),
    "product of columns": lambda a, b: torch._sparse_csr_prod(a, [0], True),
    "matmul": lambda a, b: a @ b.t(),
    "mask": lambda a, b: a.sparse_mask(b),
    "to csc": lambda a, b: a.to_sparse_csc(),
    "to coo": lambda a, b: a.to_sparse_coo(),
    "to blocks": lambda a, b: a.to_sparse_bsr((1, 2)),
    "degrees": lambda a, b: torch.repeat_interleave(a.crow_indices().diff()),
}
COPIES = {
    "negative": lambda a: a + (-a),
    "scaled": lambda a: a + a * 2,
    "clone": lambda a: a * a.clone(),
    "unary": lambda a: a + a.sin(),
    "relu": lambda a: torch.relu(a) + a,
}
COPIES_OF_COO = {
    "divided": lambda a: a - a / 2,
    "power": lambda a: a**2 + a,
    "dtype": lambda a: a + a.to(torch.float64),
}


def on_each(names):
    """Return pairs of a backend and a name: each on JAX, a third of them on the others."""
    return [(backend, name) for backend in COMPILING for name in [*names][:: 1 if backend == "jax" else 3]]


def same(found, wanted):
    assert found.layout is wanted.layout and found.dtype is wanted.dtype and found.shape == wanted.shape
    if wanted.layout is not torch.strided:
        assert found._nnz() == wanted._nnz()
    if wanted.layout is torch.sparse_coo:
        assert found.is_coalesced() == wanted.is_coalesced()
    torch.testing.assert_close(found.cpu().to_dense(), wanted.to_dense())


@pytest.mark.parametrize(("backend", "name"), on_each(COO))
def test_coordinates(backend, name):
    device, compiled = tg.device(backend), tg.jit(COO[name], compile="first")
    for k in (1, 2):  # the second call runs the program with other values
        a, b = DENSE.to_sparse() * k, OTHER.to_sparse() * k
        same(compiled(a.to(device), b.to(device)), COO[name](a, b))
    assert compiled.report.traces == 1


@pytest.mark.parametrize(("backend", "name"), on_each(CSR))
def test_compressed_rows(backend, name):
    device, compiled = tg.device(backend), tg.jit(CSR[name], compile="first")
    for k in (1, 2):
        a, b = DENSE.to_sparse_csr() * k, OTHER.to_sparse_csr() * k
        same(compiled(a.to(device), b.to(device)), CSR[name](a, b))
    assert compiled.report.traces == 1


@pytest.mark.parametrize("backend", COMPILING)
def test_coalescing(backend):
    compiled = tg.jit(lambda a: a.coalesce(), compile="first")
    for k in (1, 2):
        a = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.tensor([1.0, 2, 3 * k]), (3, 4))
        same(compiled(a.to(tg.device(backend))), a.coalesce())
    assert compiled.report.traces == 1


@pytest.mark.parametrize(("backend", "name"), on_each([*COPIES, *COPIES_OF_COO]))
def test_copies_have_the_same_indices(backend, name):
    fn = {**COPIES, **COPIES_OF_COO}[name]
    for a in [DENSE.to_sparse()] + [DENSE.to_sparse_csr()] * (name in COPIES):
        compiled = tg.jit(fn, compile="first")
        same(compiled(a.to(tg.device(backend))), fn(a))
    moved = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 1]]), torch.tensor([1.0, 2]), (3, 4)).coalesce()
    compiled = tg.jit(fn, compile="first")
    for a in (torch.sparse_coo_tensor([[0, 2], [3, 1]], [1.0, 2], (3, 4)).coalesce(), moved):  # no other trace
        same(compiled(a.to(tg.device(backend))), fn(a))
    assert compiled.report.traces == 1


# ---- other indices ---------------------------------------------------------------------------------------------------


def coalesced(rows, columns):
    return torch.sparse_coo_tensor(torch.tensor([rows, columns]), torch.tensor([1.0, 2]), (3, 4)).coalesce()


@pytest.mark.parametrize("backend", COMPILING)
def test_other_indices_of_arguments_are_another_trace(backend):
    device, compiled = tg.device(backend), tg.jit(lambda a, b: a + b, compile="first")
    pairs = [
        (coalesced([0, 1], [0, 1]), coalesced([0, 1], [0, 1])),
        (coalesced([0, 1], [0, 1]), coalesced([0, 2], [0, 1])),
        (coalesced([0, 1], [0, 1]), coalesced([1, 2], [0, 1])),
    ]
    for _ in range(2):
        for a, b in pairs:
            same(compiled(a.to(device), b.to(device)), a + b)
    assert compiled.report.traces == 3


@pytest.mark.parametrize("backend", COMPILING)
def test_indices_written_in_place_are_another_trace(backend):
    a = coalesced([0, 1], [0, 1]).to(tg.device(backend))
    of_argument, captured = tg.jit(lambda a: torch.sparse.sum(a, 0)), tg.jit(lambda: torch.sparse.sum(a, 0))
    for columns in ([0, 1], [1, 1]):
        a.indices()[1] = torch.tensor(columns, device=a.device)
        for _ in range(2):
            same(of_argument(a), torch.sparse.sum(coalesced([0, 1], columns), 0))
            same(captured(), torch.sparse.sum(coalesced([0, 1], columns), 0))


def test_memory_of_indices_written_by_numpy():
    indices = np.array([[0, 1], [0, 1]])
    a = torch.sparse_coo_tensor(torch.from_numpy(indices), torch.tensor([1.0, 2]), (3, 4)).coalesce()
    compiled = tg.jit(lambda a: torch.sparse.sum(a, 0), compile="first")
    for columns in ([0, 1], [1, 1], [3, 2]):
        indices[1] = columns
        b = torch.sparse_coo_tensor(torch.from_numpy(indices.copy()), a.values(), (3, 4), is_coalesced=True)
        same(compiled(b.to(tg.device("jax"))), torch.sparse.sum(b, 0))


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("backend", COMPILING)
def test_gradients_of_dense_operands(backend, layout, inside):
    square = DENSE[:, :3]
    a = square.to_sparse() if layout == "coo" else square.to_sparse_csr()

    def loss(a, x):
        total = a + a.t().to_sparse(layout=a.layout)
        value = (total @ x).square().sum()
        return torch.autograd.grad(value, x)[0] if inside else value

    compiled, x = tg.jit(loss, compile="first"), torch.arange(6.0).reshape(3, 2)
    found, wanted = x.to(tg.device(backend)).requires_grad_(), x.clone().requires_grad_()
    for _ in range(2):
        values = compiled(a.to(found.device), found), loss(a, wanted)
        gradients = (
            values if inside else [torch.autograd.grad(v, t)[0] for v, t in zip(values, (found, wanted), strict=True)]
        )
        torch.testing.assert_close(gradients[0].cpu(), gradients[1])


@pytest.mark.parametrize(
    "fn",
    [
        lambda i, v: torch.sparse.softmax(torch.sparse_coo_tensor(i, v, (3, 4), is_coalesced=True), 1),
        lambda i, v: torch.hspmm(torch.sparse_coo_tensor(i, v, (3, 4)), v.new_ones(4, 2)),
        lambda i, v: torch.sparse_coo_tensor(i, v, (3, 4)).coalesce(),
        lambda i, v: torch.sparse_coo_tensor(i, v, (3, 4), is_coalesced=True).to_sparse_bsr((1, 2)),
        lambda i, v: v.to_sparse(),
    ],
)
@pytest.mark.parametrize("backend", COMPILING)
def test_indices_that_are_ordinary_arguments_are_not_known(backend, fn):
    device = tg.device(backend)
    i, v = torch.tensor([[0, 1], [1, 1]]).to(device), torch.tensor([1.0, 2]).to(device)
    with pytest.raises(TracedValueError, match=r"elements depends on values(.|\n)*to_dense"):
        tg.jit(fn, compile="first")(i, v)
