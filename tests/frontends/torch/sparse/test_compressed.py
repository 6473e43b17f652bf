"""Compressed sparse tensors (CSR, CSC, BSR, BSC) on the device do what they do on the CPU: parts, layouts, values,
errors."""

import copy
import functools
import io
import itertools
import pickle

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
    return str((torch.round(x, decimals=5) if x.is_floating_point() else x).tolist())  # NaN equals NaN


def outcome(function, *args):
    try:
        return described(function(*args))
    except (RuntimeError, NotImplementedError, ValueError, IndexError, BufferError) as error:
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
    ("triangular_solve", "bsr", "coo"),  # the CPU's error is about a block size
    ("triangular_solve", "bsr", "csr"),
    ("triangular_solve", "bsr", "csc"),
    ("triangular_solve", "bsr", "bsr"),
    ("triangular_solve", "bsr", "bsc"),
    ("triangular_solve", "bsr", "dense"),  # MKL ignores `unitriangular` for blocks
    ("sparse.mm", "csc", "csc"),  # the CPU's result has no elements
    ("addmm", "csc", "csc"),  # and here it has row pointers that do not fit
}


@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name):
    device = tg.device("numpy")
    for kind, x in operands().items():
        if kind in ("coo", "dense") and not name.startswith("to_sparse"):
            continue
        assert outcome(UNARY[name], x.to(device)) == outcome(UNARY[name], x.clone()), kind


def test_triangular_blocks():
    device = tg.device("numpy")
    a = torch.triu(DENSE + torch.eye(4))
    for upper in (True, False):
        for unitriangular in (True, False):
            dense = a if upper else a.T.contiguous()
            expected = torch.triangular_solve(OTHER, dense, upper=upper, unitriangular=unitriangular)[0]
            sparse = dense.to_sparse_bsr((2, 2)).to(device)
            x = torch.triangular_solve(OTHER.to(device), sparse, upper=upper, unitriangular=unitriangular)[0]
            torch.testing.assert_close(x.cpu(), expected)


@pytest.mark.parametrize("name", BINARY)
def test_two_operands(name):
    device, function = tg.device("numpy"), BINARY[name]
    for (kind, x), (other, y) in itertools.product(operands().items(), layouts(OTHER).items()):
        if {kind, other} <= {"coo", "dense"} or (name.removesuffix("_"), kind, other) in UNLIKE:
            continue
        expected = outcome(function, x.clone(), y)
        assert outcome(function, x.to(device), y.to(device)) == expected, (kind, other)


# ---- constructors and their checks -----------------------------------------------------------------------------------


def of(device, *lists):
    return [torch.tensor(x, device=device) if isinstance(x, list) else x for x in lists]


CONSTRUCTORS = {
    "csr": lambda d: torch.sparse_csr_tensor(*of(d, [0, 2, 3], [0, 1, 1], [1.0, 2, 3], (2, 2))),
    "lists": lambda d: torch.sparse_csr_tensor([0, 2, 3], [0, 1, 1], [1.0, 2, 3], device=d),
    "csc": lambda d: torch.sparse_csc_tensor(*of(d, [0, 2, 3], [0, 1, 1], [1.0, 2, 3]), dtype=torch.float64),
    "bsr": lambda d: torch.sparse_bsr_tensor(*of(d, [0, 1], [0], [[[1.0, 2], [3, 4]]])),
    "compressed": lambda d: torch.sparse_compressed_tensor(
        *of(d, [0, 1], [0], [[[1.0, 2], [3, 4]]], (2, 2)), layout=torch.sparse_bsc
    ),
    "zeros": lambda d: torch.zeros(2, 3, layout=torch.sparse_csc, device=d),
    "zeros in blocks": lambda d: torch.zeros(2, 2, layout=torch.sparse_bsr, device=d),
    "strided layout": lambda d: torch.sparse_compressed_tensor(
        *of(d, [0, 1], [0], [1.0], (1, 1)), layout=torch.strided
    ),
    "no layout": lambda d: torch.sparse_compressed_tensor(*of(d, [0, 1], [0], [1.0], (1, 1))),
    "first pointer": lambda d: torch.sparse_csr_tensor(*of(d, [1, 2, 3], [0, 1, 1], [1.0, 2, 3], (2, 2))),
    "last pointer": lambda d: torch.sparse_csr_tensor(*of(d, [0, 2, 2], [0, 1, 1], [1.0, 2, 3], (2, 2))),
    "descending pointers": lambda d: torch.sparse_csr_tensor(*of(d, [0, 4, 3], [0, 1, 1], [1.0, 2, 3], (2, 2))),
    "number of pointers": lambda d: torch.sparse_csr_tensor(*of(d, [0, 3], [0, 1, 1], [1.0, 2, 3], (2, 2))),
    "column twice": lambda d: torch.sparse_csr_tensor(*of(d, [0, 2, 3], [1, 1, 1], [1.0, 2, 3], (2, 2))),
    "column out of range": lambda d: torch.sparse_csr_tensor(*of(d, [0, 2, 3], [0, 7, 1], [1.0, 2, 3], (2, 2))),
    "row out of range": lambda d: torch.sparse_csc_tensor(*of(d, [0, 2, 3], [0, 7, 1], [1.0, 2, 3], (2, 2))),
    "number of values": lambda d: torch.sparse_csr_tensor(*of(d, [0, 2, 3], [0, 1, 1], [1.0, 2], (2, 2))),
    "float indices": lambda d: torch.sparse_csr_tensor(*of(d, [0.0, 2, 3], [0.0, 1, 1], [1.0, 2, 3], (2, 2))),
    "index dtypes": lambda d: torch.sparse_csr_tensor(
        torch.tensor([0, 1], dtype=torch.int32, device=d), *of(d, [0], [1.0], (1, 1))
    ),
    "block that does not fit": lambda d: torch.sparse_bsr_tensor(*of(d, [0, 1], [0], [[[1.0], [2]]], (3, 1))),
    "arguments": lambda d: torch._validate_sparse_compressed_tensor_args(
        *of(d, [0, 1], [5], [1.0], (1, 1)), torch.sparse_csr
    ),
    "batches of different sizes": lambda d: torch.stack([DENSE, DENSE * 0]).to(d).to_sparse_csr(),
    "dense dimensions": lambda d: DENSE.to(d).to_sparse_csr(dense_dim=3),
    "diagonals": lambda d: torch.sparse.spdiags(
        *of(d, [[1.0, 2, 3], [4, 5, 6]], [0, -1], (3, 3)), layout=torch.sparse_csr
    ),
    "65 dimensions": lambda d: torch.sparse_coo_tensor(size=(1,) * 65, device=d).shape,
    "other layout": lambda d: torch.empty_like(DENSE.to_sparse_csr().to(d), layout=torch.sparse_csc),
    "semi-structured": lambda d: torch.sparse.to_sparse_semi_structured(torch.ones(32, 32, device=d).half()),
    "export": lambda d: DENSE.to_sparse_csr().to(d).__dlpack__(),
    "storage": lambda d: DENSE.to_sparse_csr().to(d).untyped_storage(),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors(name):
    device = tg.device("numpy")

    def construct(d):
        with torch.sparse.check_sparse_tensor_invariants():
            return CONSTRUCTORS[name](d)

    expected, result = outcome(construct, "cpu"), outcome(construct, device)
    if isinstance(expected, tuple):
        result = result[0], result[1].replace(str(device), "cpu")
    assert result == expected


# ---- copies, views, files --------------------------------------------------------------------------------------------


@pytest.fixture(params=["csr", "csc", "bsr", "bsc", "batched csr", "hybrid bsr", "int32 indices"])
def x(request):
    return operands()[request.param].to(tg.device("numpy"))


def test_copies_and_files(x):
    file = io.BytesIO()
    torch.save({"x": x, "parameter": torch.nn.Parameter(x)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    file.seek(0)
    on_host = torch.load(file, map_location="cpu", weights_only=True)["x"]
    assert on_host.device.type == "cpu" and isinstance(loaded["parameter"], torch.nn.Parameter)
    for y in (*loaded.values(), copy.deepcopy(x), pickle.loads(pickle.dumps(x)), x.cpu().to(x.device)):
        assert y.device == x.device and described(y.detach()) == described(x) == described(on_host)


def test_views_share_values(x):
    expected = x.values() * 2 + 1
    (x if x.dense_dim() else x.transpose(-2, -1)).values().mul_(2)
    x.detach().values().add_(1)
    assert torch.equal(x.values(), expected)


def test_printing(x):
    on_host = repr(x.cpu()).replace(", size=", f", device='{x.device}', size=")
    assert "".join(repr(x).split()) == "".join(on_host.split())


def test_an_in_place_sum_replaces_the_structure():
    a, b = (layouts(y)["csr"].to(tg.device("numpy")) for y in (DENSE, OTHER))
    version = a._version
    assert a.add_(b) is a and a._version > version
    assert a._nnz() == 9 and torch.equal(a.to_dense().cpu(), DENSE + OTHER)


def test_batches_of_products():
    device = tg.device("numpy")
    batch, dense = torch.stack([DENSE, DENSE.T]), torch.arange(24.0).reshape(2, 4, 3)
    for sparse in (batch.to_sparse_csr(), batch.to_sparse_bsr((2, 2))):
        assert torch.equal(torch.bmm(sparse.to(device), dense.to(device)).cpu(), torch.bmm(batch, dense))
    with pytest.raises(RuntimeError, match=r"bmm: sizes \[2, 4, 4\] and \[2, 3, 4\] do not fit"):
        torch.bmm(batch.to_sparse_csr().to(device), dense.transpose(1, 2).to(device))


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_sums_of_sparse_products_have_each_element_once(layout):
    device = tg.device("numpy")
    x, a, b = (y.to_sparse(layout=layout).to(device) for y in (torch.ones(4, 4), DENSE, DENSE.T))
    result = torch.addmm(x, a, b, beta=2)
    expected = torch.addmm(torch.ones(4, 4), DENSE, DENSE.T, beta=2)
    assert torch.equal(result.to_dense().cpu(), expected) and result._nnz() == 16


def test_sums_of_batches_of_products():
    device = tg.device("numpy")
    batch, dense = torch.stack([DENSE, DENSE.T]), torch.arange(24.0).reshape(2, 4, 3)
    x, y = torch.ones(2, 4, 3, device=device), dense.to(device)
    a = batch.to_sparse_csr().to(device)
    expected = torch.baddbmm(torch.ones(3), batch, dense, beta=0.5, alpha=2)
    assert torch.equal(torch.baddbmm(x[0, 0], a, y, beta=0.5, alpha=2).cpu(), expected)
    assert torch.equal(torch.baddbmm(x, a, y, beta=0.5, alpha=2, out=torch.empty_like(x)).cpu(), expected)
    assert torch.equal(x.baddbmm_(a, y, beta=0.5, alpha=2).cpu(), expected)
    assert torch.equal(torch.baddbmm(torch.full_like(y, torch.nan), a, y, beta=0).cpu(), torch.bmm(batch, dense))
    assert torch.equal(torch.bmm(a, y, out=torch.empty(0, device=device)).cpu(), torch.bmm(batch, dense))
    with pytest.raises(RuntimeError, match="Input dtypes must be the same"):
        torch.baddbmm(x.double(), a, y)


def test_operands_are_on_one_device():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        DENSE.to_sparse_csr().to(tg.device("numpy")) @ DENSE


# ---- gradients -------------------------------------------------------------------------------------------------------

WEIGHT = torch.arange(16.0, dtype=torch.float64).reshape(4, 4) + 1
OF_SPARSE = {
    "to_dense": lambda a, w: a.to_dense(),
    "to_dense, not masked": lambda a, w: a.to_dense(masked_grad=False),
    "product": lambda a, w: a @ w,
    "sparse.mm": torch.sparse.mm,
    "left product": lambda a, w: w @ a,
    "mean of products": lambda a, w: torch.sparse.mm(a, w, "mean"),
    "greatest product": lambda a, w: torch.sparse.mm(a, w, "amax"),
    "addmm": lambda a, w: torch.addmm(w, a, w),
    "sparse.addmm": lambda a, w: torch.sparse.addmm(w, a, w),
    "sampled_addmm": lambda a, w: torch.sparse.sampled_addmm(a, w, w),
    "linear": lambda a, w: torch.nn.functional.linear(w, a, w[0]),
    "scaled": lambda a, w: a * 2,
    "sum of two": lambda a, w: a + a,
    "plus dense": lambda a, w: w + a,
    "times dense": lambda a, w: a * w,
    "sin": lambda a, w: torch.sin(a),
    "sum": lambda a, w: a.sum().reshape(1),
    "values": lambda a, w: a.values(),
    "transpose": lambda a, w: a.transpose(0, 1),
    "select": lambda a, w: a[0],
    "to_sparse_csr": lambda a, w: a.to_sparse_csr(),
    "to_sparse": lambda a, w: a.to_sparse(),
    "float": lambda a, w: a.to(torch.float32),
    "sparse_mask": lambda a, w: w.sparse_mask(a.detach()),
    "masked sum": lambda a, w: torch.masked.sum(a, 1, keepdim=True),
}


@pytest.mark.parametrize("name", OF_SPARSE)
def test_gradients(name):
    device = tg.device("numpy")
    for kind in ("csr", "csc", "bsr", "bsc"):
        x = layouts(DENSE)[kind].double()

        def gradients(d, x=x):
            leaves = x.to(d).detach().requires_grad_(), WEIGHT.to(d).detach().requires_grad_()
            y = OF_SPARSE[name](*leaves)
            y = y.to_dense() if y.is_sparse else y if y.layout is torch.strided else y.values()
            (y * torch.arange(1.0, y.numel() + 1, device=d).reshape(y.shape)).sum().backward()
            return [leaf.grad for leaf in leaves]

        assert outcome(gradients, device) == outcome(gradients, "cpu"), kind


@pytest.mark.parametrize("masked", [True, False])
def test_gradcheck(masked):
    for kind in ("csr", "csc", "bsr", "bsc"):
        x = layouts(DENSE)[kind].double().to(tg.device("numpy")).requires_grad_()
        assert torch.autograd.gradcheck(lambda a: (a * 2).to_dense(masked_grad=masked), (x,), masked=masked)


def test_gradients_of_values():
    results = []
    for device in ("cpu", tg.device("numpy")):
        values = torch.arange(1.0, 4, device=device, requires_grad=True)
        x = torch.sparse_csr_tensor(*of(device, [0, 2, 3], [0, 1, 1]), values, (2, 2))
        (x.to_dense() * torch.arange(4.0, device=device).reshape(2, 2)).sum().backward()
        results.append(values.grad.tolist())
    assert results[0] == results[1]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_layer_with_sparse_weights_learns(backend):
    results = []
    for device in ("cpu", tg.device(backend)):
        layer = torch.nn.Linear(4, 4).to(device)
        layer.weight = torch.nn.Parameter(DENSE.to_sparse_csr().to(device))
        layer.bias.data.fill_(1)
        optimizer = torch.optim.SGD([layer.bias], 0.5)
        y = layer(torch.arange(8.0, device=device).reshape(2, 4))
        y.sum().backward()
        optimizer.step()
        results.append([y.detach(), layer.weight.grad, layer.bias.detach()])
    for expected, result in zip(*results, strict=True):
        torch.testing.assert_close(result.cpu(), expected)


def test_operators_as_programs_of_xla():
    device = tg.device("jax")
    with tg.eager("compiled"):
        for name, x in operands().items():
            on_jax = x.to(device)
            assert on_jax.to_dense().cpu().equal(x.to_dense()), name
            if "hybrid" not in name:
                assert on_jax.to_sparse().coalesce().to_dense().cpu().equal(x.to_dense()), name
        y = torch.rand(4, 3)
        for name in ("csr", "csc", "bsr", "coo"):
            x = layouts(DENSE)[name]
            torch.testing.assert_close((x.to(device) @ y.to(device)).cpu(), DENSE @ y)


def test_a_sum_of_blocks_of_one_element_has_blocks():
    """PyTorch 2.13's has values without the dimensions of blocks, which its own operators refuse."""
    a = torch.tensor([[1.0, 0, 2], [0, 3, 0]])
    x = a.to_sparse_bsr((1, 1)).to(tg.device("jax"))
    for total in (x + x.clone(), x + x * 2):
        assert total.values().shape == (3, 1, 1)
    assert total.to_dense().cpu().equal(3 * a)
