"""Sparse tensors inside `tg.jit`, lazy mode and grafted modules do what they do in PyTorch on the CPU: as arguments,
captured, as results and gradients; and a trace is not used again for other indices, layouts or flags."""

import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.errors import TracedValueError

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # beta state; invariant checks are implicitly disabled

COMPILING = ["jax", "tensorflow", "torch"]
BACKENDS = [*COMPILING, "numpy"]
DENSE = torch.tensor([[1.0, 0, 2, 0], [0, 0, 3, 0], [0, 4, 0, 5]])
X = torch.arange(12.0).reshape(4, 3) / 3 - 1
LAYOUTS = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda x: x.to_sparse_bsr((1, 1)),
}


def close(a, b):
    torch.testing.assert_close(a.to_dense().cpu(), b.to_dense(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_products_of_arguments_and_captured_tensors(backend, layout):
    device = tg.device(backend)
    a, x = LAYOUTS[layout](DENSE).to(device), X.to(device)
    of_arguments, captured = tg.jit(lambda a, x: a @ x), tg.jit(lambda x: a @ x)
    for _ in range(3):
        close(of_arguments(a, x), DENSE @ X)
        close(captured(x), DENSE @ X)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_are_sparse(layout):
    device = tg.device("jax")
    a = LAYOUTS[layout](DENSE)
    for _ in range(2):
        found, other = tg.jit(lambda a: (a * 2, {"x": a * 3}), compile="first")(a.to(device))
        wanted = a * 2
        assert found.layout is wanted.layout and found.shape == wanted.shape and found.device == device
        assert found._nnz() == wanted._nnz()
        assert not a.is_sparse or found.is_coalesced() == wanted.is_coalesced()
        close(found, wanted)
        close(other["x"], a * 3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_are_transposes_and_values_of_arguments(layout):
    a = LAYOUTS[layout](DENSE).to(tg.device("jax"))
    for run in (torch.Tensor.t, lambda a: a._values() if a.is_sparse else a.values()):
        compiled = tg.jit(run, compile="first")
        for _ in range(2):
            assert compiled(a).layout is run(LAYOUTS[layout](DENSE)).layout
            close(compiled(a), run(LAYOUTS[layout](DENSE)))
    if layout != "coo":
        compiled(a).mul_(2)  # the values of a compressed tensor are its own
        close(a, 2 * DENSE)


def test_a_result_that_is_an_argument_runs_uncompiled():
    a = DENSE.to_sparse_csr().to(tg.device("jax"))
    with pytest.warns(UserWarning, match="returns a sparse argument itself"):
        assert tg.jit(lambda a: a, compile="first")(a) is a


def test_made_of_traced_parts():
    device = tg.device("jax")
    i, v = DENSE.to_sparse().indices(), DENSE.to_sparse().values()

    def fn(i, v, x):
        s = torch.sparse_coo_tensor(i, v, DENSE.shape)
        return s @ x, s, torch.sparse.mm(s.t(), s @ x)

    compiled = tg.jit(fn)
    for k in (1.0, 2.0, 3.0):
        for found, wanted in zip(
            compiled(i.to(device), (v * k).to(device), X.to(device)), fn(i, v * k, X), strict=True
        ):
            close(found, wanted)


@pytest.mark.parametrize("captured", [False, True])
def test_gradients_of_values_and_of_dense_operands(captured):
    device = tg.device("jax")
    parts = DENSE.to_sparse_csr()
    crow, col = parts.crow_indices(), parts.col_indices()

    def loss(v, x, crow, col):
        a = torch.sparse_csr_tensor(crow, col, v, DENSE.shape)
        return ((a @ x) ** 2).sum()

    def gradients(fn, device):
        v, x = parts.values().clone().to(device).requires_grad_(), X.clone().to(device).requires_grad_()
        out = fn(v, x, crow.to(device), col.to(device))
        return torch.autograd.grad(out, (v, x))

    wanted = gradients(loss, "cpu")
    compiled = tg.jit(
        loss if not captured else lambda *args: torch.utils.checkpoint.checkpoint(loss, *args, use_reentrant=False)
    )
    for _ in range(2):
        for a, b in zip(gradients(compiled, device), wanted, strict=True):
            close(a, b)


# ---- between calls ---------------------------------------------------------------------------------------------------


def test_another_number_of_values_another_layout_and_flag():
    device = tg.device("jax")
    x = X.to(device)
    compiled = tg.jit(lambda a, x: a @ x, compile="first")
    other = DENSE.clone()
    other[0, 1] = 7
    double = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2]), (3, 4))
    operands = [
        DENSE.to_sparse(),
        other.to_sparse(),
        DENSE.to_sparse_csr(),
        other.to_sparse_csr(),
        DENSE.to_sparse_csc(),
    ]
    operands += [double, double.coalesce(), torch.zeros(3, 4).to_sparse(), torch.zeros(3, 4).to_sparse_csr(), DENSE]
    for _ in range(3):
        for a in operands:
            close(compiled(a.to(device), x), a.to_dense() @ X)


def test_the_flag_of_coalesced_tensors_is_part_of_the_key():
    device = tg.device("jax")
    compiled = tg.jit(lambda a, x: x * (2 if a.is_coalesced() else 3))
    a = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 1]]), torch.tensor([1.0, 2]), (3, 4)).to(device)
    b = a.coalesce()
    for _ in range(2):
        assert compiled(a, X.to(device)).cpu().equal(X * 3) and compiled(b, X.to(device)).cpu().equal(X * 2)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_captured_tensor_gets_other_parts(layout):
    device = tg.device("jax")
    x, other = X.to(device), DENSE * 2
    other[2, 0] = 9
    module = nn.Module()
    module.register_buffer("a", LAYOUTS[layout](DENSE).to(device))
    compiled = tg.jit(lambda x: module.a @ x)
    for _ in range(3):
        close(compiled(x), DENSE @ X)
    module.a.values().mul_(3)  # the same storage
    close(compiled(x), DENSE * 3 @ X)
    module.a = LAYOUTS[layout](other).to(device)  # another object
    for _ in range(2):
        close(compiled(x), other @ X)
    if layout == "coo":
        module.a.copy_(LAYOUTS[layout](DENSE).to(device))  # other parts of the same object
    else:
        module.a.resize_as_sparse_(LAYOUTS[layout](DENSE).to(device)).copy_(LAYOUTS[layout](DENSE).to(device))
    for _ in range(2):
        close(compiled(x), DENSE @ X)


def test_what_changes_the_number_of_values_is_an_error():
    device = tg.device("jax")
    i, v = torch.tensor([[0, 0], [1, 1]]).to(device), torch.tensor([1.0, 2]).to(device)
    with pytest.raises(TracedValueError, match=r"coalesces a sparse tensor.*\n.*call x.coalesce\(\) outside"):
        for _ in range(3):
            tg.jit(lambda i, v: torch.sparse_coo_tensor(i, v, (3, 4)).coalesce().values().sum(), compile="first")(i, v)
    with pytest.raises(TracedValueError):
        for _ in range(3):
            tg.jit(lambda x: x.to_sparse() @ x.t(), compile="first")(X.to(device))
    a = DENSE.to_sparse_csr().to(device)
    with pytest.raises(TracedValueError, match=r"number of elements depends on values(.|\n)*same indices"):
        tg.jit(lambda a, x: a + x.to_sparse_csr(), compile="first")(a, DENSE.flip(0).to(device))


@pytest.mark.parametrize("compiled", [False, True])
def test_operands_with_the_same_indices_have_one_structure(compiled):
    a = DENSE.to_sparse_csr()
    for fn in (
        lambda a: a + a * 2,
        lambda a: torch.add(a * 2, a, alpha=0.5),
        lambda a: (a * 3).add_(a, alpha=-1),
        lambda a: a * (a * 2),
        lambda a: a + a.detach(),
    ):
        got = (tg.jit(fn, compile="first") if compiled else fn)(a.to(tg.device("jax")))
        assert got.layout is a.layout and got._nnz() == fn(a)._nnz()
        close(got, fn(a))


def test_elements_that_cancel_are_kept():
    a = DENSE.to_sparse().to(tg.device("jax"))
    assert (a - a)._nnz() == 5 and not (a - a).to_dense().any()


def test_detached_on_a_device_that_is_not_the_current_one():
    assert torch.graft.current_device() != tg.device("tensorflow").index
    a = DENSE.to_sparse().to(tg.device("tensorflow"))
    close(tg.jit(lambda a: a.detach() * 2, compile="first")(a), DENSE * 2)


# ---- training --------------------------------------------------------------------------------------------------------


def trained(optimizer, device, compiled, maximize=False, steps=4):
    embedding = nn.Embedding(10, 4, sparse=True)
    with torch.no_grad():
        embedding.weight.copy_(torch.arange(40.0).reshape(10, 4).sin())
    embedding = embedding.to(device)
    optimizer = optimizer(embedding.parameters(), lr=0.1, maximize=maximize)

    def step(i):
        optimizer.zero_grad()
        loss = (embedding(i) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = tg.jit(step) if compiled else step
    # row 0 has moments before rows are left over
    batches = [torch.tensor([[min(k, 1), 2], [2, (3 + k) % 10]]).to(device) for k in range(steps)]
    return torch.stack([run(i).cpu() for i in batches]), embedding.weight.detach(), embedding.weight.grad


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_gradients_of_an_embedding(backend, optimizer):
    wanted = trained(optimizer, "cpu", compiled=False)
    for compiled in (False, True):
        found = trained(optimizer, tg.device(backend), compiled)
        assert found[2].layout is torch.sparse_coo and found[2]._nnz() == wanted[2]._nnz()
        for a, b in zip(found, wanted, strict=True):
            close(a, b)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_padding_keep_their_numbers(backend, optimizer):
    def run(device, compiled):
        embedding = nn.Embedding.from_pretrained(
            torch.arange(24.0).reshape(8, 3).cos(), freeze=False, padding_idx=2, sparse=True
        ).to(device)
        steps = optimizer(embedding.parameters(), lr=0.1)

        def step(i):
            steps.zero_grad()
            (embedding(i) ** 2).sum().backward()
            steps.step()

        step = tg.jit(step) if compiled else step
        for k in range(4):
            step(torch.tensor([0, 2, 2, 5, 3 + k]).to(device))
        return embedding.weight.detach(), embedding.weight.grad

    for found, wanted in zip(run(tg.device(backend), True), run("cpu", False), strict=True):
        close(found, wanted)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_gradients_of_bags(backend, mode):
    def run(device, compiled):
        bags = nn.EmbeddingBag(10, 4, mode=mode, sparse=True)
        with torch.no_grad():
            bags.weight.copy_(torch.arange(40.0).reshape(10, 4).sin())
        bags = bags.to(device)
        optimizer = torch.optim.SparseAdam(bags.parameters(), lr=0.1)

        def step(i, offsets):
            optimizer.zero_grad()
            (bags(i, offsets) ** 2).sum().backward()
            optimizer.step()

        step = tg.jit(step) if compiled else step
        for k in range(4):
            step(torch.tensor([min(k, 1), 2, 2, 3 + k]).to(device), torch.tensor([0, 3]).to(device))
        assert bags.weight.grad.layout is torch.sparse_coo
        return bags.weight.detach(), bags.weight.grad

    for compiled in (False, True):
        for found, wanted in zip(run(tg.device(backend), compiled), run("cpu", False), strict=True):
            close(found, wanted)
    assert "_embedding_bag_backward" not in " ".join(tg.torch.fallbacks())


def test_maximizing_with_sparse_adam():
    found = trained(torch.optim.SparseAdam, tg.device("jax"), compiled=True, maximize=True)
    for a, b in zip(found, trained(torch.optim.SparseAdam, "cpu", compiled=False, maximize=True), strict=True):
        close(a, b)


def test_backward_outside_of_the_compiled_function():
    def gradient(device, compiled):
        embedding = nn.Embedding.from_pretrained(torch.arange(12.0).reshape(4, 3), freeze=False, sparse=True).to(device)
        run = tg.jit(lambda i: (embedding(i) ** 2).sum()) if compiled else lambda i: (embedding(i) ** 2).sum()
        for _ in range(3):
            embedding.zero_grad()
            run(torch.tensor([1, 2, 2]).to(device)).backward()
        return embedding.weight.grad

    found, wanted = gradient(tg.device("jax"), True), gradient("cpu", False)
    assert found.layout is torch.sparse_coo
    close(found, wanted)


# ---- other modes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lazy(layout):
    device = tg.device("jax")
    with tg.lazy():
        a, x = LAYOUTS[layout](DENSE).to(device), X.to(device)
        out = a @ (x + 1)
    close(out, DENSE @ (X + 1))


class GCN(nn.Module):
    """A graph convolution: the normalised adjacency times features times weights."""

    def __init__(self, adjacency):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(6.0).reshape(2, 3).cos())
            self.linear.bias.copy_(torch.tensor([0.1, -0.2]))
        self.register_buffer("adjacency", adjacency)

    def forward(self, x):
        return torch.relu(self.adjacency @ self.linear(x))


def normalised(n=6):
    dense = (torch.arange(n * n).reshape(n, n) % 5 == 1).float()
    dense = dense + dense.T + torch.eye(n)
    return dense / dense.sum(1, keepdim=True)


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_graph_convolution(backend, layout):
    adjacency, x = LAYOUTS[layout](normalised()), torch.arange(18.0).reshape(6, 3).sin()

    def steps(device, compiled):
        model = GCN(adjacency).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

        def step(x):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = tg.jit(step) if compiled else step
        losses = [run(x.to(device)).cpu() for _ in range(4)]
        return torch.stack(losses), model.linear.weight.detach(), model.linear.weight.grad

    wanted = steps("cpu", False)
    for compiled in (False, True):
        for a, b in zip(steps(tg.device(backend), compiled), wanted, strict=True):
            close(a, b)
