"""Compressed sparse, nested, mkldnn and PyTorch's own quantised tensors are not there, and every way says so."""

import pytest
import torch

import tensorgraft as tg
import tensorgraft.frontends.torch

D = tg.device("numpy")
X = torch.eye(4, device=D)
VALUES = torch.ones(2)
ROWS, COLUMNS = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
WAYS = {
    r"compressed sparse \(CSR, CSC, BSR, BSC\)": {
        "to, csr": lambda: torch.eye(3).to_sparse_csr().to(D),
        "to, bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)).to(D),
        "to_sparse(layout)": lambda: X.to_sparse(layout=torch.sparse_csr),
        "to_sparse_csr": lambda: X.to_sparse_csr(),
        "to_sparse_csc": lambda: X.to_sparse_csc(),
        "to_sparse_bsr": lambda: X.to_sparse_bsr((2, 2)),
        "to_sparse_csr of a sparse one": lambda: X.to_sparse().to_sparse_csr(),
        "to_sparse(layout) of a sparse one": lambda: X.to_sparse().to_sparse(layout=torch.sparse_csr),
        "sparse_csr_tensor": lambda: torch.sparse_csr_tensor(ROWS, COLUMNS, VALUES, device=D),
        "sparse_csr_tensor of ours": lambda: torch.sparse_csr_tensor(ROWS.to(D), COLUMNS.to(D), VALUES.to(D)),
        "sparse_csc_tensor": lambda: torch.sparse_csc_tensor(ROWS, COLUMNS, VALUES, device=D),
        "zeros, csr": lambda: torch.zeros(2, 2, layout=torch.sparse_csr, device=D),
        "product, csr": lambda: torch.eye(4).to_sparse_csr() @ X,
    },
    "mkldnn": {"to_mkldnn": lambda: X.to_mkldnn()},
    "nested": {"to": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to(D)},
    r"quantised \(qint8\)": {"to": lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8).to(D)},
}


@pytest.mark.parametrize("layout", WAYS)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:Sparse BSR", "ignore:Sparse CSC")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*quantize")
def test_every_way_says_so(layout):
    for name, way in WAYS[layout].items():
        with pytest.raises(NotImplementedError, match=f"{layout} tensors are not supported on the device 'graft'"):
            way()
            pytest.fail(name)


def test_dense_tensors_are_what_they_were():
    assert X.layout is torch.strided and not (X.is_sparse or X.is_nested or X.is_quantized or X.is_mkldnn)
    assert torch.equal(X.to_dense(), X) and torch.eye(4).to_sparse().to_dense().to(D).tolist() == X.tolist()
