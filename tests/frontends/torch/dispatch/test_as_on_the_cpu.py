"""What programs see of the device's operators is what they see of the CPU's: sums in 16 bits, windows, NaN, modes."""

import warnings

import pytest
import torch
from torch.testing import assert_close

import tensorgraft as tg

pytestmark = [
    pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter"),
    pytest.mark.filterwarnings("ignore:.*_embedding_bag_backward"),
]


@pytest.fixture(params=["jax", "numpy", "torch", "tensorflow"])
def device(request):
    return tg.device(request.param)


@pytest.fixture(params=["tiered", "compiled"], autouse=True)
def _mode(request):
    with tg.eager(request.param):
        yield


def sums(device, dtype, n=1000):
    index, ones = torch.zeros(n, dtype=torch.long, device=device), torch.ones(n, dtype=dtype, device=device)
    zero, row = (torch.zeros(shape, dtype=dtype, device=device) for shape in ((1,), (1, 4)))
    read = zero.clone().requires_grad_()
    read.gather(0, index).sum().backward()
    rows = row.clone().requires_grad_()
    rows.index_select(0, index).sum().backward()
    return [
        zero.scatter_add(0, index, ones),
        *(
            zero.scatter_reduce(0, index, ones, how, include_self=own)
            for how in ("sum", "mean")
            for own in (True, False)
        ),
        (zero + 1).scatter_reduce(0, index, ones * 1.0078125, "prod"),
        zero.scatter(0, index, ones, reduce="add"),
        read.grad,
        rows.grad,
        row.index_add(0, index, torch.ones(n, 4, dtype=dtype, device=device)),
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scattered_sums_of_sixteen_bits(device, dtype):
    for ours, theirs in zip(sums(device, dtype), sums("cpu", dtype), strict=True):
        assert_close(ours.cpu(), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_sparse_gradients_of_bags(device, mode):
    def gradient(where):
        bag = torch.nn.EmbeddingBag(10, 3, mode=mode, sparse=True)
        torch.nn.init.ones_(bag.weight)
        bag = bag.to(where)
        bag(torch.tensor([1, 2, 4, 4]).to(where), torch.tensor([0, 2]).to(where)).sum().backward()
        torch.optim.SGD(bag.parameters(), 0.1).step()
        return bag.weight.grad, bag.weight

    (ours, new), (theirs, wanted) = gradient(device), gradient("cpu")
    assert ours.layout == torch.sparse_coo and ours.device == device
    assert_close(ours.to_dense().cpu(), theirs.to_dense())
    assert_close(new.cpu(), wanted)


@pytest.mark.parametrize("name", ["kaiser", "hann", "hamming", "bartlett", "blackman"])
def test_windows(device, name):
    make = getattr(torch, f"{name}_window")
    for periodic in (True, False):
        for dtype in (None, torch.float64):
            wanted = make(8, periodic, dtype=dtype, requires_grad=True)
            with torch.device(device):
                inside = make(8, periodic, dtype=dtype, requires_grad=True)
            for ours in (inside, make(8, periodic, dtype=dtype, requires_grad=True, device=device)):
                assert ours.device == device and ours.requires_grad
                assert_close(ours.detach().cpu(), wanted.detach())


CALLS = ["uniform_(2.0, 1.0)", "random_(5, 2)", "random_(0, 300)", "random_(0, 2**30)", "random_(100000, 100002)"]
CALLS += ["random_(70000)", "normal_(0.0, -1.0)", "exponential_(0.0)", "geometric_(2.0)", "bernoulli_(2.0)"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8], ids=str)
def test_numbers_of_random_operators(device, call, dtype):
    def said(where):
        x = torch.zeros(3, dtype=dtype, device=where)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                eval(f"x.{call}", {"x": x})
            except (RuntimeError, NotImplementedError) as error:
                return type(error), str(error)
        return [str(w.message).partition(" (Triggered")[0] for w in heard]

    wanted = said("cpu")
    ours = said(device)
    assert ours == wanted or (isinstance(wanted, tuple) and "not implemented for" in wanted[1])
