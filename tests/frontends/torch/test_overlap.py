"""Writes into memory that is also read: PyTorch refuses some, and allows others."""

import pytest
import torch

import tensorgraft as tg

# name -> what is done to a tensor of 12 elements
PROGRAMS = {
    "itself in place": lambda x: x.add_(x),
    "itself as out": lambda x: torch.mul(x, x, out=x),
    "another view of the same elements": lambda x: x[:4].add_(x[0:4]),
    "disjoint halves": lambda x: x[:6].add_(x[6:]),
    "shifted in place": lambda x: x[1:].add_(x[:-1]),
    "shifted as out": lambda x: torch.add(x[1:], x[:-1], out=x[1:]),
    "shifted copy": lambda x: x[1:].copy_(x[:-1]),
    "a copy of itself": lambda x: x.copy_(x),
    "transposed copy": lambda x: x[:9].view(3, 3).copy_(x[:9].view(3, 3).t()),
    "transposed addition": lambda x: x[:9].view(3, 3).add_(x[:9].view(3, 3).t()),
    "another offset in addcmul_": lambda x: x[1:].addcmul_(x[1:], x[:-1]),
    "take": lambda x: torch.take(x, torch.arange(12, device=x.device), out=x),
    "masked_select": lambda x: torch.masked_select(x, x > 3, out=x[:8]),
    "cumsum": lambda x: torch.cumsum(x[1:], 0, out=x[:-1]),
    "kthvalue": lambda x: torch.kthvalue(x, 1, out=(x[0], torch.zeros((), dtype=torch.int64, device=x.device))),
    "index_copy_": lambda x: x[:4].index_copy_(0, torch.arange(3, device=x.device), x[1:4]),
    "scatter_": lambda x: x[:4].scatter_(0, torch.arange(3, device=x.device), x[1:4]),
    "masked_fill_ of an expanded tensor": lambda x: x[:1].expand(3).masked_fill_(x[:3] > 0, 1.0),
    "setitem": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "other bytes of one storage": lambda x: x[:4].view(torch.int32).add_(x[8:].view(torch.int32)),
}


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def outcome(program, x):
    try:
        program(x)
    except Exception as error:
        return type(error), str(error), x.tolist()
    return x.tolist()


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors")
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", PROGRAMS)
def test_overlap(name, device):
    x = torch.arange(12.0)
    assert outcome(PROGRAMS[name], x.to(device)) == outcome(PROGRAMS[name], x.clone())
