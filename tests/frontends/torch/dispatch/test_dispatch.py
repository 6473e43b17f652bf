"""Dispatch: plans, derived overloads, promotion, strides, fall-backs."""

import itertools
import warnings

import numpy as np
import pytest
import torch

import tensorgraft as tg
from tensorgraft.frontends.torch.dispatch import fallback

pytestmark = pytest.mark.sampled

DEVICES = tg.backends()


def same(ours, native):
    assert (ours.dtype, ours.shape, ours.stride()) == (native.dtype, native.shape, native.stride())
    torch.testing.assert_close(ours.cpu(), native, equal_nan=True)


@pytest.fixture(params=DEVICES)
def device(request):
    return tg.device(request.param)


DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64, torch.complex64]  # fmt: skip


# whose result with a complex number is bcomplex32 (PyTorch 2.15), which no backend has
NARROW = (torch.bfloat16,) if hasattr(torch, "bcomplex32") else ()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(("a", "b"), list(itertools.combinations_with_replacement(DTYPES, 2)))
def test_promotion(device, a, b):
    if a in NARROW and b == torch.complex64:
        pytest.skip("no backend has bcomplex32 (docs/differences.md)")
    x, y = torch.tensor([0, 1, 3]).to(a), torch.tensor([[2], [1]]).to(b)
    for op in (torch.add, torch.mul, torch.eq):
        same(op(x.to(device), y.to(device)), op(x, y))
        same(op(x.to(device), y[0, 0].to(device)), op(x, y[0, 0]))  # a tensor without axes counts for less
        same(op(x.to(device), y[0, 0]), op(x, y[0, 0]))  # also one on the CPU


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [2, 2.5, True, -1, 1 + 2j])
def test_promotion_with_numbers(device, dtype, number):
    if dtype in NARROW and isinstance(number, complex):
        pytest.skip("no backend has bcomplex32 (docs/differences.md)")
    x = torch.tensor([0, 1, 3]).to(dtype)
    for op in (torch.add, torch.mul, torch.true_divide, torch.eq):
        same(op(x.to(device), number), op(x, number))


def test_in_place_and_out_forms(device):
    x = torch.tensor([0.5, 1.5])
    g = x.to(device)
    out = torch.empty(2, device=device)
    assert torch.sin(g, out=out) is out
    same(out, x.sin())
    assert g.mul_(2) is g
    same(g, x * 2)
    wide = torch.empty(2, dtype=torch.float64, device=device)
    same(torch.add(g, 1, out=wide), torch.add(x * 2, 1, out=torch.empty(2, dtype=torch.float64)))
    narrow = torch.zeros(3, 4, device=device)
    part = narrow[:, 1]
    torch.add(torch.ones(3, device=device), 1, out=part)
    assert narrow[:, 1].tolist() == [2.0] * 3
    assert narrow[:, 0].tolist() == [0.0] * 3


def test_out_is_resized_with_pytorchs_warning(device):
    empty = torch.empty(0, device=device)
    same(torch.add(torch.ones(2, 3, device=device), 1, out=empty), torch.full((2, 3), 2.0))
    for _ in range(2):
        wrong = torch.ones(5, device=device)
        with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
            torch.add(torch.ones(2, 3, device=device), 1, out=wrong)
        assert wrong.shape == (2, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(3, 4).t(),
        lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
        lambda: torch.randn(4, 6)[::2, 1::2],
        lambda: torch.randn(3, 1).expand(3, 4),
        lambda: torch.randn(()),
        lambda: torch.randn(0, 3),
    ],
)
def test_strides_are_those_of_the_cpu(device, make):
    torch.manual_seed(0)
    x = make()
    g = x.to(device)
    for program in (torch.exp, lambda t: t * 2 + t, torch.clone, torch.zeros_like, lambda t: t.to(torch.float64),
                    lambda t: t.contiguous(), lambda t: t.sum(-1, keepdim=True) if t.dim() else t * 1):  # fmt: skip
        same(program(g), program(x if g.stride() == x.stride() else x.contiguous()))


def test_another_number_uses_the_same_plan():
    x = torch.ones(3).to(tg.device("jax"))
    from tensorgraft.frontends.torch.dispatch import planned as dispatch

    made = []
    original = dispatch.make_plan

    def counting(operator, *rest):
        made.append(operator.name)
        return original(operator, *rest)

    dispatch.make_plan = counting
    try:
        for k in range(5):
            x.add_(x, alpha=0.1 * k)
            x * (k + 0.5)
            torch.full((3,), float(k), device=x.device)
    finally:
        dispatch.make_plan = original
    assert len(made) <= 4, made


def test_fallback_warns_once_is_counted_and_can_be_an_error(device, monkeypatch):
    monkeypatch.setattr(fallback, "_counts", fallback.Counter())
    op = torch.ops.aten.histogram.bin_ct
    x = torch.tensor([0.0, 1.0, 2.0]).to(device)
    if tg.torch.fallbacks():
        pytest.fail("counts were not reset")
    with pytest.warns(tg.torch.FallbackWarning, match="aten::histogram.bin_ct has no kernel"):
        first = fallback.on_cpu(op, (x, 2), {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fallback.on_cpu(op, (x, 2), {})
    same(first[0], torch.tensor([1.0, 2.0]))
    assert tg.torch.fallbacks() == {"histogram.bin_ct": 2}
    tg.torch.set_fallback("error")
    try:
        with pytest.raises(tg.FallbackError, match="histogram"):
            fallback.on_cpu(op, (x, 2), {})
    finally:
        tg.torch.set_fallback("warn")


def test_a_structured_operator_without_a_kernel_runs_on_the_cpu(device, monkeypatch):
    monkeypatch.setattr(fallback, "_counts", fallback.Counter())
    x, w = torch.arange(32.0).reshape(1, 2, 4, 4), torch.arange(54.0).reshape(2, 3, 3, 3)
    operator = torch.ops.aten.slow_conv_transpose2d  # PyTorch's composite calls the form with `out=`
    with pytest.warns(tg.torch.FallbackWarning, match=r"aten::slow_conv_transpose2d.out has no kernel"):
        out = operator(x.to(device), w.to(device), [3, 3])
    assert torch.equal(out.cpu(), operator(x, w, [3, 3]))


def test_in_place_fallback_writes_back(device, monkeypatch):
    monkeypatch.setattr(fallback, "_counts", fallback.Counter())
    base = torch.zeros(2, 3).to(device)
    view = base[:, 1]
    with pytest.warns(tg.torch.FallbackWarning):
        out = fallback.on_cpu(torch.ops.aten.add_.Tensor, (view, 5), {})
    assert out is view
    assert base.tolist() == [[0, 5, 0], [0, 5, 0]]


def test_arrays_inside_and_back(device):
    x = torch.arange(6.0).reshape(2, 3).to(device)
    array = tg.to_backend_array(x.t())
    np.testing.assert_array_equal(np.asarray(array), np.arange(6.0).reshape(2, 3).T)
    rows = {tg.device("numpy"): np.ascontiguousarray, tg.device("torch"): torch.Tensor.contiguous}
    back = tg.from_backend_array(rows.get(device, lambda array: array)(array))
    assert back.device == device
    same(back, torch.arange(6.0).reshape(2, 3).t().contiguous())
    with pytest.raises(TypeError, match="not an array of an installed backend"):
        tg.from_backend_array([1, 2])


def test_numpy_arrays_are_shared():
    held = np.zeros(3, np.float32)
    t = tg.from_backend_array(held)
    t.add_(1)
    assert held.tolist() == [1.0] * 3
    tg.to_backend_array(t)[0] = 7
    assert t.tolist() == [7.0, 1.0, 1.0]


def test_the_users_jax_configuration_stays():
    import jax
    import jax.numpy as jnp

    before = jax.config.jax_enable_x64
    x = torch.arange(3).to(tg.device("jax"))
    assert (x + 1).dtype == torch.int64
    assert tg.to_backend_array(x * 2.0).dtype == jnp.float32
    assert jax.config.jax_enable_x64 is before
    assert jnp.arange(3).dtype == (jnp.int64 if before else jnp.int32)


def test_plans_do_not_hold_tensors(device):
    import weakref

    from tensorgraft.frontends.torch.core.tensors import cell_of

    x = torch.ones(7, 3, device=device)
    out = torch.softmax(x * 3, 1) @ x.t()  # new shapes: new plans
    cells = [weakref.ref(cell_of(t)) for t in (x, out)]
    del x, out
    assert [cell() for cell in cells] == [None, None]


def test_a_plan_knows_which_arguments_share_a_storage(device):
    # PyTorch calls one `out=` kernel for both: with the input as output, and with another
    x = torch.linspace(-2, 2, 9)
    in_place, given = x.to(device), x.to(device)
    same(torch.ops.aten.elu_(in_place), torch.nn.functional.elu(x))
    same(torch.nn.functional.elu(given), torch.nn.functional.elu(x))
    same(given, x)  # not written
    out = torch.zeros(9, device=device)
    same(torch.sin(out, out=out), torch.zeros(9))
    torch.sin(given, out=out)
    same(given, x)
    same(out, x.sin())
    base = torch.arange(6.0)
    for a, b in ((slice(0, 3), slice(3, 6)), (slice(0, 3), slice(0, 3))):
        host, there = base.clone(), base.to(device)
        host[a].add_(host[b])
        there[a].add_(there[b])
        same(there, host)


def test_out_is_resized_where_only_the_results_tell(device):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    outs = (torch.empty(0, device=device), torch.empty(0, device=device))
    torch.geqrf(x.to(device), out=outs)
    for ours, native in zip(outs, torch.geqrf(x), strict=True):
        assert ours.shape == native.shape
        torch.testing.assert_close(ours.cpu(), native, rtol=1e-4, atol=1e-5)


def test_a_decomposition_is_recorded_where_nothing_compiles(monkeypatch):
    """PyTorch's Python runs once a plan; other values, and gradients, come from the operations of the hub."""
    from tensorgraft.frontends.torch.dispatch.decomposed import Replayed

    recorded, inner = [], Replayed._recorded
    monkeypatch.setattr(Replayed, "_recorded", lambda self, *call: recorded.append(self) or inner(self, *call))
    for seed in range(3):
        x, y = (torch.randn(5, 7, generator=torch.Generator().manual_seed(seed + k)) for k in (0, 9))
        made = []
        for device in ("cpu", tg.device("numpy")):
            leaf = x.to(device).detach().clone().requires_grad_()
            loss = torch.nn.functional.huber_loss(leaf, y.to(device), delta=0.7)
            loss.backward()
            made.append((loss.detach().cpu(), leaf.grad.cpu()))
        torch.testing.assert_close(made[1], made[0])
    assert len(recorded) == 2  # the loss and its gradient


def test_a_kernel_in_operators_is_recorded_where_nothing_compiles(monkeypatch):
    """Its third call with one signature makes a program, for each number that is an input; checks stay."""
    from tensorgraft.frontends.torch.dispatch.decomposed import Replayed

    recorded, inner = [], Replayed._recorded
    monkeypatch.setattr(Replayed, "_recorded", lambda self, *call: recorded.append(self) or inner(self, *call))
    device, aten = tg.device("numpy"), torch.ops.aten
    for seed in range(6):
        x, y, z = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(seed)).unbind()
        for value in (0.5, 0.0, -0.0):
            ours = aten.addcmul(x.to(device), y.to(device), z.to(device), value=value).cpu()
            assert torch.equal(ours.signbit(), aten.addcmul(x, y, z, value=value).signbit())
            torch.testing.assert_close(ours, aten.addcmul(x, y, z, value=value))
    assert len(recorded) == 3
    scores, labels = torch.randn(4, 7), torch.tensor([0, 6, 2, 3])
    for _ in range(4):
        ours = torch.nn.functional.nll_loss(scores.to(device), labels.to(device)).cpu()
        torch.testing.assert_close(ours, torch.nn.functional.nll_loss(scores, labels))
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        torch.nn.functional.nll_loss(scores.to(device), (labels + 1).to(device))
