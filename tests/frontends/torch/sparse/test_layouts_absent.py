"""Nested, mkldnn and PyTorch's own quantised tensors are not there, and every way says so."""

import pytest
import torch

import tensorgraft as tg
import tensorgraft.frontends.torch

D = tg.device("numpy")
X = torch.eye(4, device=D)
WAYS = {
    "mkldnn": {"to_mkldnn": lambda: X.to_mkldnn()},
    "nested": {"to": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to(D)},
    r"quantised \(qint8\)": {"to": lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8).to(D)},
}


@pytest.mark.parametrize("layout", WAYS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*quantize")
def test_every_way_says_so(layout):
    for name, way in WAYS[layout].items():
        with pytest.raises(NotImplementedError, match=f"{layout} tensors are not supported on the device 'graft'"):
            way()
            pytest.fail(name)


def test_dense_tensors_are_what_they_were():
    assert X.layout is torch.strided and not (X.is_sparse or X.is_nested or X.is_quantized or X.is_mkldnn)
    assert torch.equal(X.to_dense(), X) and torch.eye(4).to_sparse().to_dense().to(D).tolist() == X.tolist()
