"""Models that torchao has quantised run on the device with the same numbers."""

import copy
import warnings

import pytest
import torch
from torch import nn

import tensorgraft as tg

quantization = pytest.importorskip("torchao.quantization", reason="torchao is in the dependency group conformance")


def configurations():
    from torchao.quantization.granularity import PerGroup, PerTensor

    q = quantization
    return {
        "int8": q.Int8WeightOnlyConfig(),
        "int8, groups": q.Int8WeightOnlyConfig(granularity=PerGroup(32)),
        "int8, tensor": q.Int8WeightOnlyConfig(granularity=PerTensor()),
        "int8, dynamic": q.Int8DynamicActivationInt8WeightConfig(),
        "int4, groups": q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
        "float8": q.Float8WeightOnlyConfig(),
    }


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("name", ["int8", "int8, groups", "int8, tensor", "int8, dynamic", "int4, groups", "float8"])
def test_models(backend, name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.LayerNorm(32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantization.quantize_(model, configurations()[name])
    x = torch.randn(5, 64)
    with torch.no_grad():
        want = model(x)
        dense = model[0].weight.dequantize()
        moved = tg.quantization.from_torchao(copy.deepcopy(model), tg.device(backend))
        assert moved[0].weight.is_graft_quantized and not moved[3].weight.is_graft_quantized
        assert torch.equal(tg.dequantize(moved[0].weight).cpu(), dense)
        torch.testing.assert_close(moved(x.to(tg.device(backend))).cpu(), want, rtol=1e-4, atol=1e-5)


def test_what_is_no_tensor_of_torchao():
    with pytest.raises(TypeError, match="does not keep qdata, scale and block_size"):
        tg.quantization.from_torchao(torch.ones(3), tg.device("numpy"))
