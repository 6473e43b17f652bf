"""What libraries of graph networks compute with a CSR adjacency: its edges, normalisation, sums, means and extremes of
neighbours, and their gradients."""

import pytest
import torch

import tensorgraft as tg

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # beta state; invariant checks are implicitly disabled

N = 12
ADJACENCY = ((torch.arange(N * N).reshape(N, N) * 7) % 11 == 1).float() + torch.eye(N)
X = torch.arange(N * 3.0).reshape(N, 3).sin()
WEIGHT = torch.arange(6.0).reshape(3, 2).cos()


def edges(adjacency):
    """Return the rows and columns of a CSR tensor."""
    starts = adjacency.crow_indices()
    rows = torch.arange(starts.numel() - 1, device=starts.device).repeat_interleave(starts.diff())
    return torch.stack([rows, adjacency.col_indices()])


def normalised(adjacency):
    rows, columns = edges(adjacency)
    degrees = torch.zeros(adjacency.size(0), device=adjacency.device).scatter_add(0, rows, adjacency.values())
    scale = degrees.pow_(-0.5).masked_fill_(degrees == float("inf"), 0)
    values = scale[rows] * adjacency.values() * scale[columns]
    return torch.sparse_csr_tensor(adjacency.crow_indices(), adjacency.col_indices(), values, adjacency.shape)


def convolution(adjacency, x, weight):
    return torch.relu(adjacency @ (x @ weight))


def normalising_convolution(adjacency, x, weight):
    return convolution(normalised(adjacency), x, weight)


def extremes(adjacency, x, weight):
    h = x @ weight
    return torch.stack([torch.sparse.mm(adjacency, h, reduce) for reduce in ("sum", "mean", "amax", "amin")])


def results(layer, device, compiled=False, normalise=False):
    adjacency = ADJACENCY.to_sparse_csr().to(device)
    adjacency = normalised(adjacency) if normalise else adjacency
    x, weight = X.clone().to(device).requires_grad_(), WEIGHT.clone().to(device).requires_grad_()
    run = tg.jit(layer) if compiled else layer
    for _ in range(3):
        out = run(adjacency, x, weight)
        gradients = torch.autograd.grad(out.square().sum(), (x, weight))
    return [t.detach().cpu() for t in (out, *gradients)]


@pytest.mark.parametrize(
    ("layer", "normalise"), [(convolution, True), (normalising_convolution, False), (extremes, False)]
)
@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_layers(backend, layer, normalise):
    wanted = results(layer, "cpu", normalise=normalise)
    for compiled in (False, True):
        for a, b in zip(results(layer, tg.device(backend), compiled, normalise), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
