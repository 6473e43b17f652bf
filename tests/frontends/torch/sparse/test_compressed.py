"""Compressed sparse tensors (CSR, CSC, BSR, BSC) on the device do what they do on the CPU: parts, layouts, values,
errors."""

import functools
import itertools

import pytest
import torch

import tensorgraft as tg
import tensorgraft.frontends.torch

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),  # beta state; invariant checks are implicitly disabled
    pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated"),
]
DENSE = torch.tensor([[1.0, 0, 2, 0], [0, 0, 3, 0], [0, 4, 0, 5], [0, 0, 0, 6]])
OTHER = torch.tensor([[0.0, 1, 2, 0], [0, 7, 0, 0], [0, 4, 0, 0], [1, 0, 0, 6]])
PARTS = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


@functools.cache
def layouts(x):
    return {
        "csr": x.to_sparse_csr(),
        "csc": x.to_sparse_csc(),
        "bsr": x.to_sparse_bsr((2, 2)),
        "bsc": x.to_sparse_bsc((2, 2)),
        "coo": x.to_sparse(),
        "dense": x,
    }


@functools.cache
def operands():
    batch, hybrid = torch.stack([DENSE, DENSE]), torch.stack([DENSE, DENSE * 2], -1)
    csr = DENSE.to_sparse_csr()
    narrow = torch.sparse_csr_tensor(csr.crow_indices().int(), csr.col_indices().int(), csr.values(), (4, 4))
    return layouts(DENSE) | {
        "batched csr": batch.to_sparse_csr(),
        "batched bsc": batch.to_sparse_bsc((1, 2)),
        "hybrid csc": hybrid.to_sparse_csc(dense_dim=1),
        "hybrid bsr": hybrid.to_sparse_bsr((2, 2), dense_dim=1),
        "int32 indices": narrow,
        "integers": csr.int(),
        "complex": csr.cfloat() * (1 + 2j),
        "empty": torch.zeros(4, 4).to_sparse_csr(),
    }


def described(x):
    """Everything that a program can see of a result; elements of a row in the order of columns."""
    if isinstance(x, tuple | list):
        return [described(y) for y in x]
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach().cpu()
    if x.layout is torch.sparse_coo:
        x = x.coalesce()
        parts = x.indices(), x.values()
    elif x.layout in PARTS and not x.dense_dim() and x.dim() == 2 and x.layout in (torch.sparse_csr, torch.sparse_csc):
        names = PARTS[x.layout]
        lines = [getattr(x, names[0]), getattr(x, names[1])]
        lines = [line() for line in lines]
        dense_keys = torch.repeat_interleave(lines[0].diff().long()) * max(x.size()) + lines[1]
        order = dense_keys.argsort(stable=True)
        parts = lines[0], lines[1][order], x.values()[order]
    else:
        parts = [getattr(x, name)() for name in PARTS[x.layout]] if x.layout in PARTS else [x]
    return [str(x.layout), tuple(x.size()), x.dtype, [(part.dtype, numbers(part)) for part in parts]]


def numbers(x):
    x = torch.view_as_real(x) if x.is_complex() else x
    return torch.round(x, decimals=5).tolist() if x.is_floating_point() else x.tolist()


def outcome(function, *args):
    try:
        return described(function(*args))
    except (RuntimeError, NotImplementedError, ValueError, IndexError) as error:
        if isinstance(error, NotImplementedError):
            return NotImplementedError  # whose words name the device
        return type(error), str(error).splitlines()[0]


UNARY = {
    "to_dense": lambda a: a.to_dense(),
    "to_dense, float64": lambda a: a.to_dense(dtype=torch.float64),
    "to_sparse": lambda a: a.to_sparse(),
    "to_sparse_csr": lambda a: a.to_sparse_csr(),
    "to_sparse_csc": lambda a: a.to_sparse_csc(),
    "to_sparse_bsr": lambda a: a.to_sparse_bsr((2, 2)),
    "to_sparse_bsc, wide": lambda a: a.to_sparse_bsc((1, 2)),
    "to_sparse_bsr, block that does not fit": lambda a: a.to_sparse_bsr((3, 2)),
    "to_sparse, layout": lambda a: a.to_sparse(layout=torch.sparse_csc),
    "transpose": lambda a: a.transpose(0, 1),
    "transpose of the last": lambda a: a.transpose(-2, -1),
    "t": lambda a: a.t(),
    "permute": lambda a: a.permute(1, 0),
    "T": lambda a: a.T,
    "select": lambda a: a[0],
    "select a column": lambda a: a.select(1, 1),
    "element": lambda a: a[0, 2],
    "select_copy": lambda a: torch.select_copy(a, 0, 1),
    "unsqueeze": lambda a: a.unsqueeze(0),
    "clone": lambda a: a.clone(),
    "detach": lambda a: a.detach(),
    "double": lambda a: a.double(),
    "to another dtype": lambda a: a.to(torch.float16),
    "values": lambda a: a.values(),
    "crow_indices": lambda a: a.crow_indices(),
    "ccol_indices": lambda a: a.ccol_indices(),
    "dimensions": lambda a: (a.dense_dim(), a.sparse_dim(), a.dim(), a._nnz(), a.numel(), a.layout, a.is_sparse_csr),
    "stride": lambda a: a.stride(),
    "contiguous": lambda a: a.contiguous(),
    "zero_": lambda a: a.clone().zero_(),
    "fill_": lambda a: a.clone().fill_(2),
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda a: torch.full_like(a, 3),
    "new_zeros": lambda a: a.new_zeros((2, 2)),
    "resize_": lambda a: a.clone().resize_(4, 6),
    "abs": torch.abs,
    "sin": torch.sin,
    "sqrt_": lambda a: a.clone().sqrt_(),
    "neg, out": lambda a: torch.neg(a, out=a.clone()),
    "exp": torch.exp,
    "isnan": torch.isnan,
    "relu": torch.relu,
    "conj": lambda a: a.conj().resolve_conj(),
    "angle": torch.angle,
    "times a number": lambda a: a * 2.5,
    "times a tensor of one": lambda a: a * torch.tensor(2.0),
    "divided": lambda a: a / 2,
    "plus a number": lambda a: a + 1,
    "sum": lambda a: a.sum(),
    "sum of columns": lambda a: a.sum(0, keepdim=True),
    "sum of rows": lambda a: a.sum(1, keepdim=True, dtype=torch.float64),
    "prod of rows": lambda a: torch._sparse_csr_prod(a, (1,), keepdim=True),
    "norm": lambda a: a.norm(),
    "times a vector": lambda a: a @ torch.ones(4, dtype=a.dtype, device=a.device),
    "equal": lambda a: torch.equal(a, a),
    "cat": lambda a: torch.cat([a, a]),
    "greater": lambda a: a > 0,
}
BINARY = {
    "mm": torch.mm,
    "sparse.mm": torch.sparse.mm,
    "addmm of dense": lambda a, b: torch.addmm(torch.ones(4, 4, device=a.device), a, b, beta=2, alpha=3),
    "addmm": lambda a, b: torch.addmm(b, a, b, beta=0.5, alpha=3),
    "addmv": lambda a, b: torch.addmv(b[0], a, b[1], beta=2, alpha=3),
    "linear": torch.nn.functional.linear,
    "sampled_addmm": lambda a, b: torch.sparse.sampled_addmm(a, b, b, beta=2, alpha=3),
    "mean of products": lambda a, b: torch.sparse.mm(a, b, "mean"),
    "greatest product": lambda a, b: torch.sparse.mm(a, b, "amax"),
    "triangular_solve": lambda a, b: torch.triangular_solve(b, a, upper=True, unitriangular=True),
    "add": torch.add,
    "add, alpha": lambda a, b: torch.add(a, b, alpha=-2),
    "add_": lambda a, b: a.clone().add_(b),
    "add, out": lambda a, b: torch.add(a, b, out=a.clone()),
    "sub": torch.sub,
    "mul": torch.mul,
    "mul_": lambda a, b: a.clone().mul_(b),
    "sparse_mask": lambda a, b: a.sparse_mask(b),
    "copy_": lambda a, b: a.clone().copy_(b),
    "resize_as_sparse_": lambda a, b: a.clone().resize_as_sparse_(b)._nnz(),
}
# what CPU PyTorch computes in its own way: operators of COO and dense tensors, which other tests compare, and faults
UNLIKE = {
    ("sparse.mm", "csc", "csc"),  # the CPU's result has no elements
    ("addmm", "csc", "csc"),  # and here it has row pointers that do not fit
    ("triangular_solve", "empty", "dense"),
}


@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name):
    device = tg.device("numpy")
    for kind, x in operands().items():
        if kind in ("coo", "dense") and not name.startswith("to_sparse"):
            continue
        assert outcome(UNARY[name], x.to(device)) == outcome(UNARY[name], x.clone()), kind


@pytest.mark.parametrize("name", BINARY)
def test_two_operands(name):
    device, function = tg.device("numpy"), BINARY[name]
    for (kind, x), (other, y) in itertools.product(operands().items(), layouts(OTHER).items()):
        if {kind, other} <= {"coo", "dense"} or (name.removesuffix("_"), kind, other) in UNLIKE:
            continue
        expected = outcome(function, x.clone(), y)
        assert outcome(function, x.to(device), y.to(device)) == expected, (kind, other)
