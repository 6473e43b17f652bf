"""Models that torchao has quantised run on the device with the same numbers."""

import copy
import io
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorgraft as tg

quantization = pytest.importorskip("torchao.quantization", reason="torchao is in the dependency group conformance")

MAPPINGS = quantization.MappingType
PER_GROUP, PER_ROW, PER_TENSOR = quantization.PerGroup(32), quantization.PerRow(), quantization.PerTensor()


def prototype(module, name):
    import importlib

    return getattr(importlib.import_module(f"torchao.prototype.{module}"), name)


def intx(bits, mapping=MAPPINGS.SYMMETRIC, granularity=PER_GROUP):
    dtype = getattr(torch, f"int{bits}")
    return quantization.IntxWeightOnlyConfig(weight_dtype=dtype, granularity=granularity, mapping_type=mapping)


def float8(dtype, granularity):
    return quantization.Float8WeightOnlyConfig(weight_dtype=dtype, granularity=granularity)


def microscaled(kind, swizzled=False):
    preference = prototype("mx_formats.mx_tensor", "KernelPreference").EMULATED
    make = prototype("mx_formats.mx_tensor", "MXTensor").to_mx
    return lambda w: make(w, kind, 32, kernel_preference=preference, is_swizzled_scales=swizzled)


def nvfp4(scaled, swizzled=False):
    def make(w):
        scale = prototype("mx_formats.nvfp4_tensor", "per_tensor_amax_to_scale")(w.abs().max()) if scaled else None
        kind = prototype("mx_formats.nvfp4_tensor", "NVFP4Tensor")
        return kind.to_nvfp4(w, per_tensor_scale=scale, is_swizzled_scales=swizzled)

    return make


def weights():
    """By name: a configuration for `quantize_`, or a function of a weight."""
    q = quantization
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    codebook = "quantization.codebook.codebook_quantized_tensor"
    return {
        "int8": q.Int8WeightOnlyConfig(),
        "int8, groups": q.Int8WeightOnlyConfig(granularity=PER_GROUP),
        "int8, tensor": q.Int8WeightOnlyConfig(granularity=PER_TENSOR),
        "int8, rows": intx(8, granularity=q.PerAxis(0)),
        **{f"int{bits}": intx(bits) for bits in range(1, 9)},
        **{f"int{bits}, asymmetric": intx(bits, MAPPINGS.ASYMMETRIC) for bits in (1, 4, 8)},
        "int4, no clipping": intx(4, MAPPINGS.SYMMETRIC_NO_CLIPPING_ERR),
        "float8, rows": float8(e4m3, PER_ROW),
        "float8, tensor": float8(e5m2, PER_TENSOR),
        "float8, groups": float8(e4m3, PER_GROUP),
        "MX float8": microscaled(e4m3),
        "MX float8, tiles": microscaled(e5m2, swizzled=True),
        "MX float6": microscaled("fp6_e2m3"),
        "MX float6, wide": microscaled("fp6_e3m2", swizzled=True),
        "MX float4": microscaled(torch.float4_e2m1fn_x2),
        "NVFP4": nvfp4(scaled=False),
        "NVFP4, tiles": nvfp4(scaled=True, swizzled=True),
        "NF4": lambda w: q.to_nf4(w, 64, 32),
        "NF4, over rows": lambda w: q.to_nf4(w.reshape(-1, 32), 64, 32),
        "codebook": prototype(codebook, "CodebookWeightOnlyConfig")(),
        "codebook of 256": prototype(codebook, "CodebookWeightOnlyConfig")(dtype=torch.uint8, scale_block_size=32),
        "int4, packed": prototype("quantization.int4.inference_workflow", "PrototypeInt4WeightOnlyConfig")(32),
        "int8, to be trained": prototype("quantized_training.int8", "Int8WeightOnlyQuantizedTrainingConfig")(),
    }


def quantized(model, how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantization.quantize_(model, how)
    return model


def weight(how, dtype, n=32, k=64):
    torch.manual_seed(0)
    linear = nn.Linear(k, n, bias=False, dtype=dtype)
    return how(linear.weight.detach()) if callable(how) else quantized(nn.Sequential(linear), how)[0].weight


def dense(t):
    if type(t).__name__ == "Int4OpaqueTensor":  # which has no dequantize
        return F.linear(torch.eye(t.shape[1], dtype=t.dtype), t).t()
    return t.get_original_weight() if hasattr(t, "get_original_weight") else t.dequantize()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", weights())
def test_weights(name, dtype):
    t = weight(weights()[name], dtype)
    want, q = dense(t), tg.quantization.from_torchao(t, tg.device("numpy"))
    assert q.is_graft_quantized and (q.shape, q.dtype) == (want.shape, want.dtype)
    # PyTorch's product of packed codes may multiply and add with one rounding
    compare = torch.testing.assert_close if name == "int4, packed" and dtype == torch.float32 else _same
    compare(tg.dequantize(q).cpu(), want)
    compare(tg.dequantize(q[3:9].t()).cpu(), want[3:9].t())


def _same(got, want):
    assert torch.equal(got, want)


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
@pytest.mark.parametrize("name", ["int4, asymmetric", "MX float4", "NF4, over rows"])
def test_weights_on_every_backend(name, backend):
    t = weight(weights()[name], torch.bfloat16)
    assert torch.equal(tg.dequantize(tg.quantization.from_torchao(t, tg.device(backend))).cpu(), dense(t))


def inputs():
    """Configurations that do something to what goes into a Linear, of float32."""
    q = quantization
    dynamic, static = q.Int8DynamicActivationInt8WeightConfig, q.Int8StaticActivationInt8WeightConfig
    scale = torch.full((1, 1), 0.03)
    return {
        "rows": dynamic(),
        "tensor": dynamic(granularity=[PER_TENSOR, PER_ROW]),
        "asymmetric": dynamic(act_mapping_type=MAPPINGS.ASYMMETRIC),
        "reduced": dynamic(reduce_range=True),
        "static": static(scale, granularity=PER_TENSOR),
        "static, asymmetric": static(
            scale, torch.full((1, 1), 5), granularity=PER_TENSOR, act_mapping_type=MAPPINGS.ASYMMETRIC
        ),
        "int4": q.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PER_GROUP),
        "int2, asymmetric": q.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int2, weight_mapping_type=MAPPINGS.ASYMMETRIC, weight_granularity=q.PerAxis(0)
        ),
    }


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.LayerNorm(32)).to(dtype)


def moved(model, backend):
    return tg.quantization.from_torchao(copy.deepcopy(model), tg.device(backend))


@pytest.mark.parametrize("name", inputs())
def test_inputs(name):
    """In float32 what is rounded is rounded to the same codes, and only sums are in another order."""
    static = "static" in name  # of which torchao takes inputs of two axes only
    model, x = quantized(make_model(), inputs()[name]), torch.randn(*(() if static else (2,)), 5, 64)
    with torch.no_grad():
        got = moved(model, "numpy")(x.to(tg.device("numpy"))).cpu()
        torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["rows", "asymmetric", "int4"])
def test_inputs_of_bfloat16(name):
    """torchao rounds some products of codes to bfloat16 before it scales them: some of its last places are others."""
    model, x = quantized(make_model(torch.bfloat16)[:1], inputs()[name]), torch.randn(5, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        got = moved(model, "numpy")(x.to(tg.device("numpy"))).cpu()
        torch.testing.assert_close(got, model(x), rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_inputs_of_microscaled_weights(backend):
    config, preference = (
        prototype(f"mx_formats.{where}", name)
        for where, name in (
            ("inference_workflow", "MXDynamicActivationMXWeightConfig"),
            ("mx_tensor", "KernelPreference"),
        )
    )
    model = quantized(make_model(torch.bfloat16)[:1], config(kernel_preference=preference.EMULATED))
    x = torch.randn(2, 5, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        got = moved(model, backend)(x.to(tg.device(backend))).cpu()
        torch.testing.assert_close(got, model(x), rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize(
    ("name", "backend"),
    [("int8", "numpy"), ("int4", "torch"), ("float8, rows", "jax"), ("int8", "tensorflow")],
)
def test_models(name, backend):
    model, x = quantized(make_model(), weights()[name]), torch.randn(5, 64)
    with torch.no_grad():
        ours = moved(model, backend)
        assert ours[0].weight.is_graft_quantized and not ours[3].weight.is_graft_quantized
        torch.testing.assert_close(ours(x.to(tg.device(backend))).cpu(), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "backend"),
    [("rows", "jax"), ("static", "jax"), ("asymmetric", "jax"), ("asymmetric", "torch"), ("int4", "tensorflow")],
)
def test_inputs_on_every_backend(name, backend):
    model, x = quantized(make_model()[:1], inputs()[name]), torch.randn(5, 64)
    with torch.no_grad():
        ours = moved(model, backend)
        for f in (ours, tg.jit(ours)) if backend == "jax" else (ours,):
            torch.testing.assert_close(f(x.to(tg.device(backend))).cpu(), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "backend"), [("rows", "numpy"), ("asymmetric", "jax"), ("int4", "numpy")])
def test_gradients(name, backend):
    """Roundings have the derivative 1 (torchao gives no gradient at all)."""
    model, device = quantized(make_model()[:1], inputs()[name]), tg.device(backend)
    ours, x, g = moved(model, backend), torch.randn(5, 64), torch.randn(5, 32)
    w, leaf = model[0].weight.dequantize(), x.to(device).requires_grad_()
    (ours(leaf) * g.to(device)).sum().backward()
    torch.testing.assert_close(leaf.grad.cpu(), g @ w, rtol=1e-4, atol=1e-5)
    gradients = torch.func.vmap(torch.func.grad(lambda x, g: (ours(x) * g).sum()))
    torch.testing.assert_close(gradients(x.to(device), g.to(device)).cpu(), g @ w, rtol=1e-4, atol=1e-5)


def test_scaled_inputs():
    """What SmoothQuant divides weights by multiplies the inputs."""
    smooth = prototype("smoothquant", "SmoothQuantConfig")
    model, x = make_model(), torch.randn(5, 64)
    base = quantization.Int8DynamicActivationInt8WeightConfig()
    quantized(model, smooth(base_config=base, step="prepare"))
    model(x)
    quantized(model, smooth(base_config=base, step="convert"))
    assert model[0].weight.act_pre_scale is not None
    with torch.no_grad():
        ours = moved(model, "jax")
        torch.testing.assert_close(ours(x.to(tg.device("jax"))).cpu(), model(x), rtol=1e-4, atol=1e-5)
        again = moved(model, "numpy")
        again.load_state_dict(ours.state_dict(), assign=True)  # scales of inputs are buffers
        assert again[0].inputs.act_pre_scale.device == tg.device("jax")
    with pytest.raises(TypeError, match="pass the module to from_torchao"):
        tg.quantization.from_torchao(model[0].weight, tg.device("numpy"))


def test_embeddings_and_tied_weights():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(64, 32)
            self.head = nn.Linear(32, 64, bias=False)

        def forward(self, ids):
            return self.head(self.embedding(ids))

    torch.manual_seed(0)
    model = Model()
    quantization.quantize_(model, intx(4), lambda m, _: isinstance(m, nn.Embedding))
    model.head.weight = model.embedding.weight
    ids = torch.randint(0, 64, (3, 4))
    with torch.no_grad():
        ours = moved(model, "numpy")
        assert ours.head.weight is ours.embedding.weight and ours.head.weight.is_graft_quantized
        torch.testing.assert_close(ours(ids.to(tg.device("numpy"))).cpu(), model(ids), rtol=1e-4, atol=1e-5)


def test_convolutions():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(32, 8, 3)), torch.randn(2, 32, 7, 7)
    quantization.quantize_(model, intx(4), lambda m, _: isinstance(m, nn.Conv2d))
    with torch.no_grad():
        ours = moved(model, "numpy")
        assert torch.equal(tg.dequantize(ours[0].weight).cpu(), model[0].weight.dequantize())
        torch.testing.assert_close(ours(x.to(tg.device("numpy"))).cpu(), model(x), rtol=1e-4, atol=1e-5)


def saved(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("name", ["int8", "int4, asymmetric", "float8, tensor"])
def test_files_of_torchao(name):
    """A state_dict that torchao's model has saved: as torchao's tensors, and as ours."""
    model, device = quantized(make_model(), weights()[name]), tg.device("numpy")
    x, file = torch.randn(5, 64), saved(model.state_dict())
    with torch.no_grad():
        want = model(x)
        loaded = torch.load(file, weights_only=True)
        fresh = make_model()
        fresh.load_state_dict(loaded, assign=True)
        got = tg.quantization.from_torchao(fresh, device)(x.to(device))
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
        state = tg.quantization.from_torchao(loaded, device)
        assert state["0.weight"].is_graft_quantized and state["0.bias"].device == device
        ours = make_model().to(device)
        ours.load_state_dict(state, assign=True)
        torch.testing.assert_close(ours(x.to(device)).cpu(), want, rtol=1e-4, atol=1e-5)


def test_files_of_modules():
    model, device = quantized(make_model(), inputs()["int4"]), tg.device("numpy")
    ours, x = moved(model, "numpy"), torch.randn(5, 64)
    again = torch.load(saved(ours), weights_only=False)
    assert "(inputs): Inputs(int8_asym_per_token)" in repr(again)
    with torch.no_grad():
        assert torch.equal(again(x.to(device)).cpu(), ours(x.to(device)).cpu())
        torch.testing.assert_close(copy.deepcopy(again)(x.to(device)).cpu(), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["int2", "codebook", "MX float4", "int4, packed"])
def test_files_of_ours(name):
    q = tg.quantization.from_torchao(weight(weights()[name], torch.float32), tg.device("numpy"))
    again = torch.load(saved(q), weights_only=True)
    assert again.is_graft_quantized and torch.equal(tg.dequantize(again).cpu(), tg.dequantize(q).cpu())


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "numpy") for name in ("int8", "int4, asymmetric", "float8, rows", "NVFP4, tiles", "NF4")),
        ("NVFP4, tiles", "torch"),
        ("int4, asymmetric", "jax"),
        ("NF4", "tensorflow"),
    ],
)
def test_classes_of_torchao_on_the_device(name, backend):
    """`to` moves what is in a tensor, which stays one of torchao's class, with its operations and no other."""
    device, t = tg.device(backend), nn.Parameter(weight(weights()[name], torch.bfloat16), requires_grad=False)
    ours = t.to(device)
    assert type(ours) is type(t) and torch.equal(dense(ours).cpu(), dense(t))
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    torch.testing.assert_close(F.linear(x.to(device), ours).cpu(), F.linear(x, t), rtol=2**-7, atol=2**-8)
    assert torch.equal(tg.dequantize(tg.quantization.from_torchao(ours, device)).cpu(), dense(t))


def test_what_is_no_tensor_of_torchao():
    with pytest.raises(TypeError, match=r"a torch\.Tensor is not a tensor of torchao"):
        tg.quantization.from_torchao(torch.ones(3), tg.device("numpy"))


def test_what_keeps_no_codes():
    config = prototype("quantization.gguf.api", "GGUFWeightOnlyConfig")()
    model = quantized(nn.Sequential(nn.Linear(32, 256), nn.Linear(256, 32)), config)
    with pytest.raises(TypeError, match=r"1\.weight: .* does not round: its int_data are floats.*dequantize"):
        tg.quantization.from_torchao(model, tg.device("numpy"))
    assert model[0].weight.device.type == "cpu"  # as it was


def test_axes():
    """Three axes, blocks of two, slices and transposed tensors."""
    torch.manual_seed(0)
    w, device = torch.randn(4, 128, 64), tg.device("numpy")
    group = quantization.Int8Tensor.from_hp(w[0], PER_GROUP)
    for t in (
        quantization.Int8Tensor.from_hp(w, PER_ROW),
        quantization.Int8Tensor.from_hp(w, quantization.PerRow(1)),
        quantization.Float8Tensor.from_hp(w[0], granularity=quantization.PerBlock([64, 64])),
        quantization.Float8Tensor.from_hp(w[0], granularity=PER_ROW).t(),
        microscaled(torch.float4_e2m1fn_x2)(w),
        group[2:6, 32:64],
    ):
        q = tg.quantization.from_torchao(t, device)
        assert torch.equal(tg.dequantize(q).cpu(), t.dequantize())
        assert torch.equal(tg.dequantize(q.mT[..., 3:]).cpu(), t.dequantize().mT[..., 3:])
    with pytest.raises(TypeError, match=r"keeps codes of .* scales for blocks of"):
        tg.quantization.from_torchao(group[:, 5:37], device)  # of which torchao has scales no more
    with pytest.raises(TypeError, match="is transposed: use the tensor of which it is a view"):
        tg.quantization.from_torchao(nvfp4(scaled=False)(w[0]).t(), device)


def test_scales_that_no_backend_has():
    t = nn.Parameter(weight(weights()["MX float8"], torch.bfloat16), requires_grad=False)
    with pytest.raises(TypeError, match=r"float8_e8m0fnu cannot be on the device 'graft': .*from_torchao"):
        t.to(tg.device("numpy"))


def test_inputs_of_unknown_modules():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = quantized(make_model()[:1], inputs()["int4"])[0].weight

    with pytest.raises(TypeError, match="supported in Linear and Conv2d, but not in a Product"):
        tg.quantization.from_torchao(Product(), tg.device("numpy"))


@pytest.mark.parametrize(
    "config", ["bitnet:BitNetTrainingConfig", "int8_mixed_precision:Int8MixedPrecisionTrainingConfig"]
)
def test_weights_that_are_dense(config):
    """Those that keep numbers and round them in products move as they are."""
    module, _, name = config.partition(":")
    model = quantized(make_model(), prototype(f"quantized_training.{module}", name)())
    x, device = torch.randn(16, 64), tg.device("numpy")
    ours = moved(model, "numpy")
    got, want = ours(x.to(device)), model(x)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
    got.square().sum().backward()
    want.square().sum().backward()
    for (_, p), (name, q) in zip(ours.named_parameters(), model.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-3, atol=1e-3, msg=lambda m, name=name: f"{name}: {m}")
