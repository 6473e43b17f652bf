"""Rounding that is trained through."""

import numpy as np
import optree
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft import nn
from tensorgraft.hub import registry
from tensorgraft.quantization import convert_, prepare_qat_
from tensorgraft.quantization.activations import by_row
from tensorgraft.transforms import apply_updates, filter_grad, filter_jit, filter_value_and_grad, tree_at


@pytest.fixture
def graphs_run_as_they_are(monkeypatch):
    """Inductor takes seconds a program."""
    monkeypatch.setattr("tensorgraft.backends.torch.program.compiler", lambda: "none")


@pytest.mark.usefixtures("graphs_run_as_they_are")
@pytest.mark.parametrize(
    ("backend", "scheme"),
    [
        *(
            (backend, scheme)
            for backend in ("numpy", "torch", "jax")
            for scheme in ("int4_per_group_32", "float8_e4m3")
        ),
        ("tensorflow", "int4_per_group_32"),
    ],
)
def test_rounding_has_the_derivative_one(backend, scheme):
    key = tg.random.key(0, backend)
    x, c = tg.random.normal(key, (4, 64)), tg.random.normal(tg.random.key(1, backend), (4, 64))

    def fake(x):
        return tg.quantization.fake_quantize(x, scheme)

    want = tg.dequantize(tg.quantize(x, scheme))
    assert xp.all(fake(x) == want) and not tg.quantization.is_quantized(fake(x))
    g = tg.grad(lambda x: xp.sum(c * fake(x) ** 2))
    near = 2 * c * want
    assert xp.max(xp.abs(g(x) - near)) < 1e-6 and xp.max(xp.abs(tg.jit(g)(x) - near)) < 1e-6
    out, moved = tg.jvp(fake, (x,), (c,))
    assert xp.all(out == want) and xp.all(moved == c)


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_rows_get_the_codes_that_they_get_on_numpy(backend):
    values = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)
    want = by_row(registry.get("numpy"), values, (1,))
    hub = registry.get(backend)
    rows = hub.asarray(values)
    for run in (lambda x: by_row(hub, x, (1,)), hub.compile(lambda x: by_row(hub, x, (1,)))):
        for found, right in zip(run(rows), want, strict=True):
            assert np.array_equal(hub.to_numpy(found), right)


def test_what_cannot_be_rounded():
    x = xp.full((2, 30), float("nan"), device="numpy")
    with pytest.raises(ValueError, match=r"fake_quantize: .*has NaN"):
        tg.quantization.fake_quantize(x, "int8_per_channel")
    with pytest.raises(ValueError, match="does not divide into groups of 32"):
        tg.quantization.fake_quantize(x, "int4_per_group_32")
    with pytest.raises(TypeError, match=r"fake_quantize: expected an array .* got a builtins\.list"):
        tg.quantization.fake_quantize([1.0], "int8_per_channel")
    with pytest.raises(
        TypeError, match=r"prepare_qat_: expected a torch\.nn\.Module, or a pytree .* got a builtins\.dict"
    ):
        tg.quantization.prepare_qat_({}, "int8_per_channel")


# ---- pytrees ---------------------------------------------------------------------------------------------------------


def network(backend, width=64):
    x = tg.random.normal(tg.random.key(1, device=backend), (32, width), dtype=xp.float32)
    return nn.MLP(width, 4, 64, 1, activation=nn.gelu, key=tg.random.key(0, device=backend)), x


def trained(model, x, steps):
    y = x[:, :4] * x[:, 4:8]

    def step(model):
        loss, grads = filter_value_and_grad(lambda m: xp.mean((m(x) - y) ** 2))(model)
        return loss, apply_updates(model, optree.tree_map(lambda g: -0.2 * g, grads))

    run, losses = filter_jit(step), []
    for _ in range(steps):
        loss, model = run(model)
        losses.append(float(loss))
    return model, losses


@pytest.mark.usefixtures("graphs_run_as_they_are")
@pytest.mark.parametrize(
    ("backend", "scheme"),
    [
        *(("numpy", s) for s in ("int4_per_group_32", "int8_dynamic", "uint8_per_channel", "nf4", "float8_e4m3")),
        ("torch", "int8_dynamic"),
        ("torch", "int4_per_group_32"),
        ("jax", "int8_dynamic"),
        ("jax", "int8_per_channel"),
        ("tensorflow", "int8_dynamic"),
    ],
)
def test_a_converted_module_is_the_one_that_was_trained(backend, scheme):
    dense, x = network(backend)
    model = prepare_qat_(dense, scheme)
    assert xp.all(model(x) == tg.quantize_(dense, scheme)(x))  # the first step rounds, too
    model, losses = trained(model, x, 8)
    assert losses[-1] < 0.7 * losses[0]
    converted = convert_(model)
    assert (
        converted.layers[0].weight.codes.dtype != xp.float32
        and str(converted.layers[0].weight.scheme)[:3] == scheme[:3]
    )
    assert xp.all(converted(x) == model(x))
    run = filter_jit(lambda model, x: model(x))
    assert xp.all(run(converted, x) == run(model, x))


def test_derivatives_are_those_at_the_rounded_numbers():
    model, x = network("numpy")
    grads = filter_grad(lambda m: xp.sum(m(x) ** 2))(prepare_qat_(model, "int4_per_group_32"))
    rounded = tree_at(
        lambda m: [layer.weight for layer in m.layers],
        model,
        [tg.dequantize(tg.quantize(layer.weight, "int4_per_group_32")) for layer in model.layers],
    )
    want = filter_grad(lambda m: xp.sum(m(x) ** 2))(rounded)
    for found, right in zip(grads.layers, want.layers, strict=True):
        assert xp.max(xp.abs(found.weight.codes - right.weight)) < 1e-4 * xp.max(xp.abs(right.weight))
    moved = tg.jvp(
        lambda w: xp.sum(prepare_qat_({"weight": w}, "int8_per_channel")["weight"] * 3.0, axis=0), (x,), (x,)
    )[1]
    assert xp.max(xp.abs(moved - 3 * xp.sum(x, axis=0))) < 1e-4


def test_rows_views_and_writes_of_a_prepared_weight():
    table = tg.random.normal(tg.random.key(0, device="numpy"), (10, 64), dtype=xp.float32)
    w = prepare_qat_({"weight": table}, "int8_per_channel")["weight"]
    q = tg.quantize(table, "int8_per_channel")
    rows = xp.asarray([3, 1, 3], device="numpy")
    for f in (lambda w: xp.take(w, rows, axis=0), lambda w: w[2:5, ::2], lambda w: w.T, lambda w: xp.reshape(w, (-1,))):
        assert xp.all(tg.dequantize(f(w)) == tg.dequantize(f(q)))
    g = tg.grad(lambda t: xp.sum(xp.take(prepare_qat_({"weight": t}, "int8_per_channel")["weight"], rows, axis=0)))(
        table
    )
    assert np.array_equal(np.asarray(g)[:, 0], [0, 1, 0, 2, 0, 0, 0, 0, 0, 0])
    before = np.asarray(w.codes).copy()
    w[2] = 1.0
    before[2] = 1.0
    assert np.array_equal(np.asarray(w.codes), before)  # the weight stays dense, and is not rounded


def test_modules_that_cannot_be_prepared():
    model, _ = network("numpy", width=40)
    with pytest.raises(ValueError, match=r"prepare_qat_: layers\.0\.weight: .*does not divide into groups of 32"):
        prepare_qat_(model, "int4_per_group_32")
    with pytest.raises(ValueError, match="no prepared weight"):
        convert_(model)
    prepared = prepare_qat_(model, "int8_per_channel")
    with pytest.raises(ValueError, match=r"layers\.0\.weight is prepared already \(int8_per_channel, in training\)"):
        prepare_qat_(prepared, "int8_per_channel")
    with pytest.raises(ValueError, match=r"layers\.0\.weight is quantised already"):
        prepare_qat_(convert_(prepared), "int8_per_channel")
    with pytest.raises(ValueError, match=r"requires the range of activations"):
        prepare_qat_(model, "int8_static")
    prepared.layers[1].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"convert_: layers\.1\.weight: .*has NaN"):
        convert_(prepared)
