"""What a program is told that asks for a value inside tg.jit, word for word."""

from pathlib import Path

import numpy as np
import pytest
import torch

import tensorgraft as tg
from tensorgraft.transforms import UncompiledWarning

HERE = "test_traced_values.py"


def condition(x):
    y = x * 2
    if y.sum() > 0:
        return y
    return -y


def loop(x):
    n = (x > 2).sum()
    total = x
    for _ in range(n):
        total = total + x
    return total


def number(x):
    largest = x.max()
    return torch.nn.functional.leaky_relu(x, largest.item())


def mask(x):
    large = x > 2
    return x[large]


def extent(x):
    k = (x > 2).sum()
    return x.new_zeros(k)


def extent_by_item(x):
    most = x.argmax()
    return torch.zeros((2, most.item()), device=x.device)


def distinct(x):
    return torch.unique(x)


CASES = {
    condition: [
        "{at}: `if y.sum() > 0:` needs the value of a bool tensor of shape () now.",
        "  It became traced in {at}: `if y.sum() > 0:`",
        "Inside a compiled function a tensor has no value yet.",
        "  choose by value:  torch.where(condition, a, b)",
        "  branch by value:  torch.cond(condition, f, g, operands)",
        "  decide outside:   before the call, and pass a Python bool: either way is compiled",
    ],
    loop: [
        "{at}: `for _ in range(n):` needs the value of a int64 tensor of shape () now.",
        "  It became traced in {at}: `n = (x > 2).sum()`",
        "Inside a compiled function a tensor has no value yet.",
        "  bound and mask:  for i in range(most): x = torch.where(i < n, step(x), x)",
        "  loop by value:   torch.while_loop(condition, body, operands)",
        "  decide outside:  before the call, and pass a Python int: each value is compiled",
    ],
    number: [
        "{at}: `return torch.nn.functional.leaky_relu(x, largest.item())` needs the value of a float64 tensor of shape"
        " () now.",
        "  It became traced in {at}: `largest = x.max()`",
        "Inside a compiled function a tensor has no value yet.",
        "  stay a tensor:     use the tensor itself instead of its value",
        "  look at it later:  return it, and call .item() outside",
        "  know it before:    pass it as a Python number: each value is compiled",
    ],
    mask: [
        "{at}: `return x[large]` needs the values of a bool tensor of shape (5,) now, for the shape of index().",
        "  It became traced in {at}: `large = x > 2`",
        "Inside a compiled function a tensor has no value yet.",
        "  keep the shape:  torch.where(mask, x, 0), or multiply by the mask",
        "  bound and mask:  a size that is always enough, and a mask of what counts",
        "  do it outside:   before the call, and pass the result",
    ],
    extent: [
        "{at}: `return x.new_zeros(k)` needs the value of a int64 tensor of shape () now.",
        "  It became traced in {at}: `k = (x > 2).sum()`",
        "Inside a compiled function a tensor has no value yet.",
        "  keep it static:  Python ints, with min and max: each value is compiled",
        "  bound and mask:  a size n that is always enough, and torch.arange(n) < k",
    ],
    extent_by_item: [
        "{at}: `return torch.zeros((2, most.item()), device=x.device)` needs the value of a int64 tensor of shape ()"
        " now.",
        "  It became traced in {at}: `most = x.argmax()`",
        "Inside a compiled function a tensor has no value yet.",
        "  keep it static:  Python ints, with min and max: each value is compiled",
        "  bound and mask:  a size n that is always enough, and torch.arange(n) < k",
    ],
    distinct: [
        "{at}: `return torch.unique(x)` needs the values of a float32 tensor of shape (5,) now, for the shape of"
        " unique2().",
        "  It is an argument of the function, or a tensor from outside.",
        "Inside a compiled function a tensor has no value yet.",
        "  keep the shape:  torch.where(mask, x, 0), or multiply by the mask",
        "  bound and mask:  a size that is always enough, and a mask of what counts",
        "  do it outside:   before the call, and pass the result",
    ],
}


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_the_message(fn):
    x = torch.arange(5.0).to(tg.device("jax"))
    with pytest.raises(tg.TracedValueError) as caught:
        tg.jit(fn)(x)
    assert isinstance(caught.value, tg.ShapeError) == (fn not in (condition, number))
    source = Path(__file__).read_text().splitlines()

    def line(text):
        return f"{HERE}:{next(i for i, s in enumerate(source, start=1) if s.strip() == text)}"

    expected = [s.replace("{at}", line(s.split("`")[1])) if "{at}" in s else s for s in CASES[fn]]
    assert str(caught.value).splitlines() == expected
    assert len(expected) <= 10
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_what_the_host_computes_of_an_argument_is_computed_at_every_call():
    x = torch.ones(2).to(tg.device("jax"))
    run = tg.jit(lambda x, s: x * (s * 2)[0] + (s + 1).to(x.device))
    for values in ([1.0, 2.0], [3.0, 5.0]):
        given = torch.tensor(values)
        assert run(x, given).tolist() == [given[0] * 2 + v + 1 for v in values]
    assert run.report.traces == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda s: float((s * 2).sum()),
        lambda s: s.tolist(),
        lambda s: (s + 1).numpy(),
        lambda s: torch.equal(s, s + 1),
    ],
)
def test_values_of_cpu_arguments_are_never_constants(ask):
    run = tg.jit(lambda x, s: (ask(s), x * 1)[1])
    with pytest.raises(tg.TracedValueError, match="argument of the compiled function"):
        run(torch.ones(2).to(tg.device("jax")), torch.ones(2))


def test_cpu_tensors_read_as_lists_are_watched():
    sizes = torch.tensor([1.0, 2.0])
    run = tg.jit(lambda x: x * sizes.tolist()[0])
    x = torch.ones(2).to(tg.device("jax"))
    assert run(x).tolist() == [1, 1]
    sizes[0] = 3
    assert run(x).tolist() == [3, 3]


# ---- what a compiled function cannot do --------------------------------------------------------------------------

COUNTS = torch.zeros(3)


@torch.library.custom_op("tensorgraft_test::tripled", mutates_args=(), device_types="cpu")
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@tripled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def writes(x):
    torch.add(COUNTS, 1, out=COUNTS)
    return x


def draws(x):
    return x + torch.randn(5).to(x.device)


def no_kernel(x):
    return tripled(x) + 1


def evaluates(x):
    optimizer = torch.optim.LBFGS([torch.nn.Parameter(x)])
    optimizer.step(lambda: x.sum())
    return x


REFUSED = {
    writes: [
        "{at}: `torch.add(COUNTS, 1, out=COUNTS)` writes a CPU tensor of shape (3,) inside tg.jit: only the first call"
        " would.",
        "  on the device:  move the tensor there, and write it as before",
        "  outside:        write it before the call or after it",
    ],
    draws: [
        "{at}: `return x + torch.randn(5).to(x.device)` draws random numbers on the CPU inside tg.jit: every call would"
        " get the numbers of the first.",
        "  on the device:  draw them with device=..., which gives new ones at every call",
        "  outside:        draw them before the call, and pass them as an argument",
    ],
    no_kernel: [
        "{at}: `return tripled(x) + 1` needs tripled, which has no kernel on the device 'graft'. Inside tg.jit its"
        " arguments have no values yet that the CPU could compute with.",
        "  do it outside:  before the call, and pass the result",
        "  see them all:   tg.explain(function, ...) lists the operators without a kernel",
    ],
    evaluates: [
        "{at}: `optimizer.step(lambda: x.sum())` cannot be compiled: LBFGS decides by values how often it evaluates its"
        " function, and where.",
        "  compile the closure:  optimizer.step(tg.jit(closure)), outside of a compiled function",
    ],
}


@pytest.mark.parametrize("fn", REFUSED, ids=lambda fn: fn.__name__)
def test_what_is_refused(fn):
    x = torch.arange(5.0).to(tg.device("jax"))
    with pytest.raises(tg.TracedValueError) as caught:
        tg.jit(fn)(x)
    source = Path(__file__).read_text().splitlines()
    text = REFUSED[fn][0].split("`")[1]
    at = f"{HERE}:{next(i for i, s in enumerate(source, start=1) if s.strip() == text)}"
    assert str(caught.value).splitlines() == [REFUSED[fn][0].replace("{at}", at), *REFUSED[fn][1:]]
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0] and COUNTS.tolist() == [0, 0, 0]


def moves(x):
    y = x * 2
    return y.cpu()


def reads(x):
    y = x * 2
    return y.numpy(force=True)


def exports(x):
    y = x * 2
    return np.from_dlpack(y)


@pytest.mark.parametrize("fn", [moves, reads, exports], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", [name for name in tg.backends() if name != "numpy"])
def test_values_that_go_to_the_host(fn, backend):
    x = torch.arange(5.0).to(tg.device(backend))
    with pytest.raises(tg.TracedValueError) as caught:
        tg.jit(fn)(x)
    line = fn.__code__.co_firstlineno
    text = Path(__file__).read_text().splitlines()[line + 1].strip()
    assert str(caught.value).splitlines()[:2] == [
        f"{HERE}:{line + 2}: `{text}` takes the values of a float32 tensor of shape (5,) to the host.",
        f"  It became traced in {HERE}:{line + 1}: `y = x * 2`",
    ]


def test_arguments_of_calls():
    x = torch.arange(5.0).to(tg.device("jax"))
    double = tg.jit(lambda *args: args[0] * 2)
    with pytest.warns(UncompiledWarning, match=rf"^{HERE}:\d+: `double\(x, bytearray\(3\)\)`.* of class bytearray"):
        double(x, bytearray(3))
    other = torch.ones(5).to(tg.device("numpy"))
    with pytest.raises(RuntimeError, match=r" uses a tensor on numpy, and tg.jit compiles for one device, jax: move"):
        tg.jit(lambda x: (x * 2, other * 2))(x)


def value_of_argument(x, n):
    return x * float(n)


def test_cpu_arguments():
    x = torch.arange(5.0).to(tg.device("jax"))
    with pytest.raises(tg.TracedValueError) as caught:
        tg.jit(value_of_argument)(x, torch.tensor(3.0))
    assert str(caught.value).splitlines()[1:] == [
        "  stay a tensor:   use the tensor itself instead of its value",
        "  know it before:  pass it as a Python number: each value is compiled",
    ]
    assert "`return x * float(n)` needs the value of a CPU argument of the compiled function" in str(caught.value)
    assert not getattr(caught.value, "__notes__", [])  # JAX has nothing to say of it


def _of_constants(x):
    shapes = torch.tensor([[1, 2], [2, 1]], device=x.device)
    if int(shapes[0, 1]) != 2 or shapes.tolist()[1][0] != 2:
        raise ValueError("areas")
    rows = [x[:height, :width].sum() for height, width in shapes]
    times = torch.tensor([3, 5], device=x.device)
    return x.permute(*torch.tensor([1, 0], device=x.device)).repeat_interleave(times, 1)[0] * rows[0] + rows[1]


def _of_a_written_constant(x):
    table = torch.tensor([1.0, 2.0], device=x.device)
    table[0] = x[0, 0]
    return x * table[0].item()


@pytest.mark.parametrize("backend", tg.backends())
def test_constants_have_values(backend):
    x = torch.arange(6.0, device=tg.device(backend)).reshape(2, 3)
    for fn in (_of_constants, _of_a_written_constant):
        run = tg.jit(fn)
        for shift in (0, 1):
            assert run(x + shift).tolist() == fn(x + shift).tolist()


@pytest.mark.parametrize("backend", [name for name in tg.backends() if name != "numpy"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda there: there.item(),
        lambda there: there.clone().item(),
        lambda there: there.reshape(1).expand(2)[1].item(),
        lambda there: (there * 2).item(),
        lambda there: there.tolist(),
    ],
)
def test_values_of_the_host_that_were_moved_are_no_constants(ask, backend):
    device = tg.device(backend)
    run, x = tg.jit(lambda x, number: x * ask(number.to(device))), torch.ones(2, device=device)
    for number in (torch.tensor(3.0), torch.tensor(5.0), torch.tensor(3.0)):
        assert run(x, number).tolist() == [ask(number)] * 2
