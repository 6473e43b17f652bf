"""Type promotion against PyTorch's own function of several operands, for all combinations of dtypes and numbers."""

import itertools

import pytest
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND
from torch._prims_common import elementwise_dtypes as expected_dtypes

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
            assert elementwise_dtypes(operands, kind) == expected, operands
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
