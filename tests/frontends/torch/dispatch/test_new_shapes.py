"""Operators at sizes that they have not had before: what is known of other sizes says nothing untrue of these."""

import itertools
import warnings

import pytest
import torch
from torch.nn import functional as F

import tensorgraft as tg
from tensorgraft.frontends.torch.dispatch import meta_results, rehearsal


@pytest.fixture
def device():
    return tg.device("numpy")


def alike(device, fn, *tensors):
    """The values, dtype, sizes and strides of CPU PyTorch; or its error."""
    there = [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype).copy_(t).to(device) for t in tensors]
    try:
        expected = fn(*tensors)
    except Exception as error:
        with pytest.raises(type(error)) as said:
            fn(*there)
        assert str(said.value) == str(error)
        return
    actual = fn(*there)
    assert actual.dtype == expected.dtype and actual.size() == expected.size()
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


def values(*size, dtype=torch.float32):
    return (torch.arange(torch.Size(size).numel()) % 7 - 3).reshape(size).to(dtype)


SIZES = [
    ((2, 3), (2, 3)), ((4, 5), (4, 5)), ((4, 5), (5,)), ((4, 5), (4, 1)), ((1, 5), (4, 1)), ((0, 5), (5,)),
    ((4, 5), ()), ((), ()), ((4, 5), (3, 5)), ((4, 5), (4,)), ((1, 1), (1, 1)), ((2, 4, 5), (4, 5)),
    ((300, 500), (500,)), ((300, 500), (300, 500)), ((300, 500), (300, 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float32), (torch.int64, torch.float32), (torch.bool, torch.int8)]
)
def test_elementwise(device, dtypes):
    for sizes in SIZES:
        x, y = (values(*size, dtype=dtype) for size, dtype in zip(sizes, dtypes, strict=True))
        alike(device, torch.add, x, y)
        alike(device, torch.maximum, x, y)
        alike(device, lambda x, y: x.clone().mul_(y), x, y)
        alike(device, torch.atan2, x, y)


@pytest.mark.parametrize("size", [(3, 4, 2, 5), (2, 6, 3, 4), (2, 1, 3, 4), (1, 1, 1, 1), (2, 0, 3, 4)])
def test_strides(device, size):
    x, last = values(*size), values(*size).contiguous(memory_format=torch.channels_last)
    turned = values(*reversed(size)).permute(3, 2, 1, 0)
    for a, b in [(x, last), (last, last), (turned, x), (turned, turned), (last, turned), (turned, values())]:
        alike(device, torch.mul, a, b)
        alike(device, torch.lt, a, b)
    for a in (x, last, turned):
        alike(device, F.gelu, a)
        alike(device, lambda a: a.sum(1), a)


@pytest.mark.parametrize(
    "fn", [lambda x: torch.pow(2.0, x), lambda x: torch.ldexp(x, torch.ones_like(x[0])), torch.exp, lambda x: 3 - x]
)
def test_what_is_seen_of_rows_says_nothing_of_columns(device, fn):
    """Not every elementwise operator of the CPU keeps the order in which its operand lies."""
    for size in ((3, 4), (5, 6), (4, 7)):
        alike(device, fn, values(*size))
    for size in ((3, 4), (10, 5), (7, 3)):
        alike(device, fn, values(*size).t())
        alike(device, fn, values(2, *size).permute(2, 0, 1))
    for size in ((4,), (5,)):
        alike(device, lambda x: fn(x.expand(3, *x.shape)), values(*size))


def test_errors_are_of_the_size(device):
    for n in (3, 4, 5):
        alike(device, torch.matmul, values(2, n), values(n, 3))
        alike(device, torch.matmul, values(2, n), values(n + 1, 3))
        alike(device, lambda x: F.layer_norm(x, (3,)), values(2, n))
        alike(device, lambda x: x.softmax(2), values(2, n))
        alike(device, lambda x: torch.cat((x, values(2, 3).to(x.device))), values(2, n))


def test_small_and_large_tensors(device):
    for n in (3, 4, rehearsal._MOST, rehearsal._MOST + 1):
        alike(device, lambda x: x.sum(0), values(n, 2))
        alike(device, torch.sigmoid, values(n, 2))


def test_an_outer_product_is_not_made_twice(device, monkeypatch):
    monkeypatch.setattr(rehearsal, "_MOST_MADE", 1 << 10)
    alike(device, torch.outer, values(100), values(100))
    alike(device, torch.matmul, values(64, 1), values(1, 64))


def test_meta_functions_are_not_asked_again(device, monkeypatch):
    programs = [
        lambda x: x * 2 + x.t().t(), lambda x: F.layer_norm(x, x.shape[1:]), lambda x: x @ x.t(),
        lambda x: F.gelu(x), lambda x: torch.cat((x, x), 1), lambda x: x.softmax(-1),
    ]  # fmt: skip
    asked = []
    heard = meta_results.call_with_warnings
    monkeypatch.setattr(
        meta_results, "call_with_warnings", lambda op, *args, **kwargs: asked.append(op) or heard(op, *args, **kwargs)
    )
    for n in (3, 11, 13):
        for program in programs:
            alike(device, program, values(n, 5))
    assert not asked


def test_what_the_cpu_warns_of_is_not_shown(device):
    x, y = values(2, 9, dtype=torch.complex64).to(device), values(2, 9).to(device)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        x + y
        y.softmax(0)
    assert not shown


def test_random_states_are_left_alone(device):
    before = torch.get_rng_state()
    for n in (7, 8):
        x = torch.ones(n, 3, device=device)
        F.dropout(x, 0.5)
        F.rrelu(x, training=True)
        torch.bernoulli(x * 0.5)
        torch.multinomial(x, 1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.int32, torch.float32, torch.bool, torch.complex64])
def test_ranges(device, dtype):
    """The sizes of a range, or the CPU's words for what is none."""
    numbers = [0, 5, -3, 2.5, -1.0, 10, float("inf")]
    for start, end, step in itertools.product(numbers, numbers, [1, 2, -1, 0.5, 0, -0.3]):
        try:
            expected = torch.arange(start, end, step, dtype=dtype)
        except Exception as error:
            with pytest.raises(type(error)) as said:
                torch.arange(start, end, step, dtype=dtype, device=device)
            assert str(said.value) == str(error)
            continue
        actual = torch.arange(start, end, step, dtype=dtype, device=device)
        assert actual.dtype == expected.dtype and actual.size() == expected.size()
