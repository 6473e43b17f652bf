"""Type promotion against PyTorch's own function of several operands, for all combinations of dtypes and numbers."""

import itertools

import pytest
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND
from torch._prims_common import elementwise_dtypes as expected_dtypes

import tensorgraft as tg
from tensorgraft.frontends.torch.core.promotion import PROMOTION, elementwise_dtypes, result_type

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
)


def _operands():
    tensors = [torch.empty((1,) * axes, dtype=dtype, device="meta") for dtype in DTYPES for axes in (0, 1)]
    return [*tensors, True, 1, 1.0, 1j]


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", list(PROMOTION))
def test_promotion_of_two_operands_is_pytorchs(kind, default):
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for operands in itertools.combinations_with_replacement(_operands(), 2):
            expected = expected_dtypes(*operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND[kind.name])
            assert elementwise_dtypes(operands, kind)[1:] == expected, operands
    finally:
        torch.set_default_dtype(before)


def test_promotion_of_three_operands_is_pytorchs():
    for operands in itertools.combinations_with_replacement(_operands(), 3):
        expected = expected_dtypes(*operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH)
        assert result_type(operands) == expected[0], operands


@pytest.mark.parametrize(
    "others", [(torch.bool, torch.uint16), (torch.uint32, torch.uint64), (torch.float8_e5m2, torch.float32)]
)
def test_dtypes_that_pytorch_does_not_promote(others):
    a, b = (torch.ones(2).to(dtype) for dtype in others)
    with pytest.raises(RuntimeError) as expected:
        a + b
    with pytest.raises(RuntimeError) as raised:
        result_type((a, b))
    assert str(raised.value) == str(expected.value)


# operands that are rounded to 16 bits first where the CPU's kernel rounds them, and read as they are where it does not
OTHERS = {
    "integers": lambda x: torch.arange(x.numel(), device=x.device) + 250,
    "one integer": lambda x: torch.tensor([259], device=x.device),
    "no axes": lambda x: torch.tensor(257.3, dtype=torch.float64, device=x.device),
    "a number": lambda x: 257.3,
}
OPERATORS = {
    "add": torch.add,
    "sub, alpha": lambda x, y: torch.sub(x, y, alpha=0.5),
    "rsub": torch.rsub,
    "mul": torch.mul,
    "div": torch.div,
    "div, floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "remainder": torch.remainder,
    "eq": torch.eq,
    "lt": torch.lt,
    "pow": lambda x, y: torch.pow(x / 300, y / 300 if isinstance(y, float) else y.to(x.dtype) / 300),
    "in place": lambda x, y: x.clone().add_(y),
    "foreach": lambda x, y: torch._foreach_add([x], [y])[0],
    "foreach, product": lambda x, y: torch._foreach_mul([x], [y])[0],
}


@pytest.mark.parametrize("backend", ["jax", "numpy", "torch", "tensorflow"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPERATORS)
def test_operands_are_rounded_as_on_the_cpu(name, dtype, backend):
    x = torch.cat((torch.tensor([257.3] * 9), torch.rand(300, generator=torch.Generator().manual_seed(0)) * 400 + 1))
    x = x.to(dtype)
    moved = x.to(tg.device(backend))
    for kind, other in OTHERS.items():
        if name.startswith("foreach") and kind == "no axes":
            continue
        expected = OPERATORS[name](x, other(x))
        with tg.eager("compiled"):
            got = OPERATORS[name](moved, other(moved)).cpu()
        torch.testing.assert_close(got, expected, rtol=0, atol=0, msg=lambda text, kind=kind: f"{kind}: {text}")
