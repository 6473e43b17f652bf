"""What a program computes depends on shapes, not on where: positions are operands of one program."""

import jax
import pytest
import torch

import tensorgraft as tg
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.hub import registry

pytestmark = pytest.mark.sampled

_compiled = [0]
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: _compiled.__setitem__(0, _compiled[0] + ("backend_compile" in name))
)


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def base(device, *shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(device)


def flat(device, *shape):
    """As from `torch.empty`, whose storage is an array of one axis."""
    x = torch.empty(shape, device=device)
    x.copy_(base("cpu", *shape))
    return x


def set_(x, key, value):
    x[key] = value
    return x


def grad(f):
    def run(x, i):
        leaf = x.detach().clone().requires_grad_()
        (f(leaf, i) * 2).sum().backward()
        return leaf.grad

    return run


def augmented(x, i):
    x[i] += 1
    return x


# name -> (shape of x, a program of x and a position, programs that it may take: each operator's first and all others)
READS = {
    "row": ((40, 4), lambda x, i: x[i] + 1, 2),
    "row from the end": ((40, 4), lambda x, i: x[-i] + 1, 2),
    "element": ((40, 4), lambda x, i: x[i, i % 4] + 1, 2),
    "column": ((4, 40), lambda x, i: x[:, i] + 1, 2),
    "inner axis": ((3, 40, 5), lambda x, i: x[:, i] * 2, 2),
    "last axis, every other": ((6, 3, 40), lambda x, i: x[::2, 1:, i : i + 5 : 2] * 2, 2),
    "rows": ((40, 4), lambda x, i: x[i : i + 5].sum(), 2),
    "narrow": ((40, 4), lambda x, i: x.narrow(0, i, 4) @ x[:4], 2),
    "every other row": ((60, 4), lambda x, i: x[i : i + 10 : 2] * 2, 2),
    "of the transposed": ((40, 4), lambda x, i: x.t()[1, i : i + 3] * 2, 2),
    "transposed": ((40, 3, 4), lambda x, i: x[i].t() * 2, 2),
    "expanded": ((40, 4), lambda x, i: x[i].expand(3, 4) * 2, 2),
    "diagonal": ((40, 4, 4), lambda x, i: x[i].diagonal() * 2, 2),
    "as another dtype": ((40, 4), lambda x, i: x[i].view(torch.int32) + 1, 2),
    "as complex": ((40, 4), lambda x, i: torch.view_as_complex(x[i].view(2, 2)) * 2, 2),
    "overlapping windows": ((40, 4), lambda x, i: x.as_strided((3, 3), (1, 1), 4 * i) + 1, 2),
    "interleaved": ((40, 4), lambda x, i: x.as_strided((3, 2), (5, 3), i) + 1, 2),
    "across rows": ((40, 4), lambda x, i: x.view(-1)[i : i + 6] + 1, 4),  # some lie in one row
    "two rows": ((80, 4), lambda x, i: x[i] + x[i * 2 + 1], 2),
    "stacked": ((80, 4), lambda x, i: torch.stack([x[i], x[i + 3], x[2 * i]]), 2),
    "joined": ((80, 4), lambda x, i: torch.cat([x[:10], x[i : i + 3]]), 2),
    "nothing": ((40, 4), lambda x, i: x[i:i] + 1, 2),
    "chunk": ((3, 80), lambda x, i: x.chunk(20, 1)[i % 20] * 2, 2),
    "softmax": ((40, 4), lambda x, i: x[i].softmax(0), 2),
    "std, which is decomposed": ((40, 4), lambda x, i: torch.std(x[i : i + 7]), 2),
    "copies": ((40, 4), lambda x, i: x[i : i + 2].clone(), 2),
    "roll": ((40, 4), lambda x, i: x.roll(i, 0), 1),
    "roll backwards": ((40, 4), lambda x, i: x.roll((-i, 3 * i), (0, 1)), 1),
    "roll flat": ((40, 4), lambda x, i: x.roll(i), 1),
    "tril": ((20, 20), lambda x, i: x.tril(i - 10), 1),
    "triu": ((20, 20), lambda x, i: x.triu(i - 10), 1),
    "narrow_copy": ((40, 4), lambda x, i: torch.narrow_copy(x, 0, i, 3), 1),
    "kthvalue": ((40,), lambda x, i: x.kthvalue(i)[0], 1),
    "integer power": ((8,), lambda x, i: x.long() ** (i + 4), 2),
    "power": ((8,), lambda x, i: x ** (i / 8 + 0.3), 1),
    "arange": ((3,), lambda x, i: torch.arange(i, i + 5, device=x.device), 2),
    "arange backwards": ((3,), lambda x, i: torch.arange(i, i - 9, -3, dtype=torch.int16, device=x.device), 1),
    "gradient of a row": ((40, 4), grad(lambda x, i: x[i]), 6),
    "gradient of rows": ((40, 4), grad(lambda x, i: x[i : i + 5] ** 2), 8),
    "gradient of an element": ((40, 4), grad(lambda x, i: x[i, 1]), 6),
    "gradient of roll": ((40, 4), grad(lambda x, i: x.roll(i, 0) * x), 6),
}
WRITES = {
    "row": ((40, 4), lambda x, i: set_(x, i, x.new_ones(4)), 3),
    "element": ((40, 4), lambda x, i: set_(x, (i, 1), 7.0), 2),
    "column": ((4, 40), lambda x, i: set_(x, (slice(None), i), 7.0), 2),
    "rows": ((40, 4), lambda x, i: set_(x, slice(i, i + 5), 7.0), 2),
    "every other row": ((60, 4), lambda x, i: set_(x, slice(i, i + 10, 2), 7.0), 2),
    "element of a row": ((40, 4), lambda x, i: x[i].__setitem__(1, 7.0), 2),
    "in place": ((40, 4), augmented, 4),
    "in place with another row": ((40, 4), lambda x, i: x[i].addcmul_(x[i - 1], x[i + 1]), 2),
    "from the next row": ((40, 4), lambda x, i: set_(x, i, x[i + 1]), 2),
    "through a transposed view": ((4, 40), lambda x, i: x.t()[i].mul_(3), 2),
    "through another dtype": ((40, 4), lambda x, i: x[i].view(torch.int32).fill_(7), 2),
    "through a diagonal": ((40, 4, 4), lambda x, i: x[i].diagonal().zero_(), 2),
    "interleaved": ((40, 4), lambda x, i: x.as_strided((3, 2), (5, 3), i).zero_(), 2),
    "across rows": ((40, 4), lambda x, i: x.view(-1)[i : i + 6].zero_(), 4),
    "out": ((40, 4), lambda x, i: torch.add(x[0], 1, out=x[i]), 2),
    "two that are written": ((80, 4), lambda x, i: torch._foreach_add_([x[i], x[2 * i + 1]], 1.0), 2),
}
CASES = {f"{kind} {name}": case for kind, table in (("read", READS), ("write", WRITES)) for name, case in table.items()}


@pytest.mark.parametrize("make", [base, flat], ids=["as it lies", "flat"])
@pytest.mark.parametrize("name", CASES)
def test_values(name, make, device):
    shape, program, _ = CASES[name]
    if make is flat and cell_of(torch.empty(1, device=device)).backend.mutable:
        pytest.skip("views of such memory are the same whatever shape its array has")
    ours, theirs = make(device, *shape), base("cpu", *shape)
    for i in (3, 1, 16, 2, 7):
        mine, right = program(ours, i), program(theirs, i)
        if isinstance(right, torch.Tensor):
            assert mine.dtype == right.dtype and mine.stride() == right.stride()
            torch.testing.assert_close(mine.cpu(), right)
    torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("make", [base, flat], ids=["as it lies", "flat"])
@pytest.mark.parametrize("name", CASES)
def test_programs(name, make):
    shape, program, most = CASES[name]
    x = make(tg.device("jax"), *shape)
    for i in range(1, 17, 2):  # what belongs to no row, and what the process had and has given up, is compiled here
        program(x, i)
    before = _compiled[0]
    for i in range(2, 17, 2):
        program(x, i)
    # those at the first and at the last positions; the end of a flat storage may cut a block
    assert _compiled[0] - before <= (most + 1) // 2 + (make is flat)


def test_bases_of_other_shapes(device):
    """The same view of storages whose arrays have other shapes; where rows end is another place in each."""
    for shape in ((40, 4), (160,), (4, 40), (10, 4, 4), (2, 80)):
        for look in (lambda x, n: x.as_strided((4,), (1,), n), lambda x, n: x.as_strided((3, 2), (8, 1), n)):
            ours, theirs = base(device, *shape), base("cpu", *shape)
            for n in (1, 4, 7, 38, 79, 137, 12):
                torch.testing.assert_close((look(ours, n) * 2).cpu(), look(theirs, n) * 2)
                look(ours, n).neg_()
                look(theirs, n).neg_()
            torch.testing.assert_close(ours.cpu(), theirs)


def test_what_meets_in_memory_is_asked_at_every_position(device):
    x = base(device, 100)
    for i in range(1, 20, 5):
        x[i : i + 4].add_(x[i + 40 : i + 44])  # apart
        x[i : i + 4].add_(x[i : i + 4])  # the same
        with pytest.raises(RuntimeError, match="unsupported operation"):
            x[i : i + 4].add_(x[i + 2 : i + 6])
    right = base("cpu", 100)
    for i in range(1, 20, 5):
        right[i : i + 4].add_(right[i + 40 : i + 44]).add_(right[i : i + 4].clone())
    torch.testing.assert_close(x.cpu(), right)


def test_positions_that_there_are_not(device):
    x = base(device, 10)
    for good, bad in ((lambda: x.kthvalue(3), lambda: x.kthvalue(11)), (lambda: x.kthvalue(10), lambda: x.kthvalue(0))):
        good()
        with pytest.raises(RuntimeError, match="out of range"):
            bad()
    torch.narrow_copy(x, 0, 5, 3)
    for start in (8, 11, -11):
        with pytest.raises((RuntimeError, IndexError)):
            torch.narrow_copy(x, 0, start, 3)
    assert torch.narrow_copy(x, 0, -4, 3).tolist() == [6, 7, 8]
    whole = x.long()
    assert (whole**5).tolist() == [n**5 for n in range(10)]
    with pytest.raises(RuntimeError, match="negative integer powers"):
        whole**-5


def test_results_that_are_resized(device):
    for start in (3, 5, 3):
        memory, theirs = base(device, 20), base("cpu", 20)
        ours, right = memory[start : start + 4], theirs[start : start + 4]
        with pytest.warns(UserWarning, match="resized"):
            torch.add(base(device, 2, 3), 1, out=ours)
        with pytest.warns(UserWarning, match="resized"):
            torch.add(base("cpu", 2, 3), 1, out=right)
        torch.testing.assert_close(ours.cpu(), right)


def test_compiled_functions_know_positions():
    def f(x):
        return x[3] * 2 + x[7:9].sum() + x.roll(5, 0)[1] + x.t()[1, 4]

    x = base("cpu", 40, 4)
    for device in ("jax", "torch"):
        torch.testing.assert_close(tg.jit(f)(x.to(tg.device(device))).cpu(), f(x))


def test_lazy_programs_take_positions():
    before = torch.accelerator.current_device_index()
    tg.set_default_device("jax")
    try:
        x = base(tg.device("jax"), 40, 4)
        with tg.lazy() as figures:
            for i in range(1, 12):
                x[i] = x[i + 1] * 2
                assert x[i, 1].item() == 2 * (4 * (i + 1) + 1)
        assert figures.programs <= 2
    finally:
        torch.accelerator.set_device_index(before)


def test_calls_that_are_known_stay_few():
    from tensorgraft.frontends.torch.core.operator import MOST, all_plans

    x = base(tg.device("numpy"), 6000)
    for i in range(3000):
        torch.neg(x[i])
    assert all(len(known) <= MOST for known in all_plans)


def test_places_are_arrays_made_once():
    for name in tg.backends():
        xp = registry.get(name)
        assert xp.place(7) is xp.place(7)
        assert int(xp.place(7)) == 7
