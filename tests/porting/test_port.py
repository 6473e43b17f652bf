"""`tg.port` on small pairs of networks: the mapping is whole, right, and proven."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import tensorgraft as tg

RNG = np.random.default_rng(0)


def whole(ported):
    """The mapping is whole, and results and gradients were compared and are equal."""
    assert not ported.mapping.unmatched, str(ported)
    assert ported.ok and not ported.report.differences, str(ported)
    assert {c.what for c in ported.report.comparisons} >= {"results"}, str(ported)
    assert all(c.difference <= c.limit for c in ported.report.comparisons)
    assert ported.report.pairs and all(p.ok for p in ported.report.pairs)


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, 8))


def parted():
    from flax import nnx

    class Parted(nnx.Module):
        def __init__(self, rngs):
            self.ln = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
            self.q, self.k, self.v = (nnx.LinearGeneral(8, (2, 4), rngs=rngs) for _ in range(3))
            self.o = nnx.LinearGeneral((2, 4), 8, axis=(-2, -1), rngs=rngs)

        def __call__(self, x):
            h = self.ln(x)
            scores = jnp.einsum("bqhd,bkhd->bhqk", self.q(h), self.k(h)) / 2
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), self.v(h))
            return x + self.o(mixed)

    return Parted(nnx.Rngs(0))


X = RNG.standard_normal((2, 5, 8)).astype("f")


def test_attention_fused_to_parted():
    torch.manual_seed(0)
    source = Fused().eval()
    ported = tg.port(source, parted(), X)
    whole(ported)
    arrays = {n: x.detach().numpy() for n, x in source.named_parameters()}
    found = ported.convert(source.state_dict())
    names = {shape: [n for n in found if found[n].shape == shape] for shape in ((8, 2, 4), (2, 4, 8))}
    assert len(names[8, 2, 4]) == 3 and len(names[2, 4, 8]) == 1
    for name in names[8, 2, 4]:
        k = "qkv".index(next(part for part in name.split(".") if part in "qkv"))
        np.testing.assert_array_equal(found[name], arrays["qkv.weight"][8 * k : 8 * k + 8].T.reshape(8, 2, 4))
    np.testing.assert_array_equal(found[names[2, 4, 8][0]], arrays["out.weight"].T.reshape(2, 4, 8))


def test_attention_parted_to_fused():
    ported = tg.port(parted(), Fused().eval(), X)
    whole(ported)
    assert len(ported.mapping["qkv.weight"].sources) == 3 == len(ported.mapping["qkv.bias"].sources)
    assert "np.concatenate" in ported.source()


def assign(model, arrays):
    """Give the variables of a Keras model what was converted: all of it."""
    variables = {v.path.partition("/")[2].replace("/", "."): v for v in model.variables}
    for name, x in arrays.items():
        variables[name].assign(x)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4 * 4 * 6, 5)

    def forward(self, x):
        return self.out(nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1))


def images_of_keras():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8, 12, 3)),
            layers.Conv2D(4, 3, padding="same", name="conv"),
            layers.BatchNormalization(epsilon=1e-5, name="norm"),
            layers.ReLU(),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(5, name="out"),
        ]
    )


def test_images_in_another_layout():
    keras = pytest.importorskip("keras")
    x = RNG.standard_normal((2, 3, 8, 12)).astype("f")
    torch.manual_seed(0)
    source, target = Images().eval(), images_of_keras()
    ported = tg.port(source, target, x, target_example=[x.transpose(0, 2, 3, 1)])
    whole(ported)
    found = ported.convert(source.state_dict())
    assign(target, found)
    ours = keras.ops.convert_to_numpy(target(x.transpose(0, 2, 3, 1), training=False))
    np.testing.assert_allclose(ours, source(torch.from_numpy(x)).detach().numpy(), atol=1e-5)
    back = tg.port(target, Images().eval(), x.transpose(0, 2, 3, 1), target_example=[x])
    whole(back)
    again = back.convert(found)
    for name, value in source.state_dict().items():
        if "batches" not in name:
            np.testing.assert_array_equal(again[name], value.numpy())


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.out = getattr(nn, kind)(4, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.out(self.layer(x)[0])


SEQUENCE = RNG.standard_normal((2, 5, 4)).astype("f")


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_of_keras(kind):
    keras = pytest.importorskip("keras")
    layers = keras.layers
    target = keras.Sequential(
        [layers.Input((5, 4)), getattr(layers, kind)(6, return_sequences=True, name="rnn"), layers.Dense(2, name="out")]
    )
    torch.manual_seed(0)
    source = Recurrent(kind).eval()
    ported = tg.port(source, target, SEQUENCE)
    whole(ported)
    found = ported.convert(source.state_dict())
    assign(target, found)
    ours = keras.ops.convert_to_numpy(target(SEQUENCE))
    np.testing.assert_allclose(ours, source(torch.from_numpy(SEQUENCE)).detach().numpy(), atol=1e-5)


def test_lstm_of_haiku():
    """Its forget gate adds 1, and it has one bias where PyTorch has two."""
    hk = pytest.importorskip("haiku")

    def run(x):
        out, _ = hk.dynamic_unroll(hk.LSTM(6), x.transpose(1, 0, 2), hk.LSTM(6).initial_state(2))
        return hk.Linear(2)(out.transpose(1, 0, 2))

    transformed = hk.without_apply_rng(hk.transform(run))
    params = jax.tree.map(np.asarray, transformed.init(jax.random.key(0), SEQUENCE))
    torch.manual_seed(0)
    source = Recurrent("LSTM").eval()

    def target(params, x):
        return transformed.apply(params, x)

    ported = tg.port(source, (target, params), SEQUENCE)
    assert not ported.mapping.unmatched, str(ported)
    assert ported.report.ok, str(ported)
    (bias,) = [e for e in ported.mapping if e.shape == (24,)]
    assert set(bias.sources) == {"layer.bias_ih_l0", "layer.bias_hh_l0"} and "1.0" in bias.steps


def gpt2(params, ids):
    def norm(p, x):
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]

    def dense(p, x):
        return x @ p["kernel"] + p["bias"]

    n = ids.shape[1]
    x = params["tokens"][ids] + params["positions"][:n]
    for p in params["blocks"]:
        h = norm(p["first"], x)
        q, k, v = (dense(p[name], h).reshape(*ids.shape, 2, -1).transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
        scores = q @ k.transpose(0, 1, 3, 2) / jnp.sqrt(q.shape[-1])
        scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -1e30)
        mixed = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + dense(p["out"], mixed)
        x = x + dense(p["down"], jax.nn.gelu(dense(p["up"], norm(p["second"], x)), approximate=True))
    return norm(params["last"], x) @ params["tokens"].T


def gpt2_weights(width=8, depth=2):
    def dense(a, b):
        return {"kernel": RNG.standard_normal((a, b)).astype("f"), "bias": np.zeros(b, "f")}

    def norm():
        return {"scale": np.ones(width, "f"), "bias": np.zeros(width, "f")}

    blocks = [
        {"first": norm(), "second": norm(), "up": dense(width, 4 * width), "down": dense(4 * width, width)}
        | {name: dense(width, width) for name in ("q", "k", "v", "out")}
        for _ in range(depth)
    ]
    tables = {"tokens": RNG.standard_normal((30, width)), "positions": RNG.standard_normal((12, width))}
    return {**{n: x.astype("f") for n, x in tables.items()}, "blocks": blocks, "last": norm()}


def test_gpt2_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=30, n_positions=12, n_embd=8, n_layer=2, n_head=2)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(ids, use_cache=False).logits

    ids = RNG.integers(0, 30, (2, 7))
    ported = tg.port(Logits().eval(), (gpt2, gpt2_weights()), ids)
    whole(ported)
    assert len(ported.mapping) == 2 + 2 * 16 + 2
    (q,) = [e for e in ported.mapping if e.target.endswith("q.kernel") and "0" in e.target]
    assert q.sources == ["model.transformer.h.0.attn.c_attn.weight"]


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_hints_that_do_not_exist():
    for hints, message in (
        ({"nothing": "qkv.weight"}, "hints name nothing, which the target has not"),
        ({"qkv.weight": "nothing"}, "hints name nothing, which the source has not"),
    ):
        with pytest.raises(ValueError, match=message):
            tg.port(Fused().eval(), Fused().eval(), X, hints=hints)


def test_loops_whose_length_depends_on_values():
    def loop(params, x):
        return jax.lax.while_loop(lambda h: jnp.sum(h) < 100, lambda h: h @ params["w"] + 50, x)

    with pytest.raises(NotImplementedError):
        tg.port((loop, {"w": np.eye(8, dtype="f")}), (loop, {"w": np.eye(8, dtype="f")}), X)


def test_programs_without_parameters():
    with pytest.raises(ValueError, match="has no parameters"):
        tg.port(nn.ReLU(), Fused().eval(), X)


def test_a_parameter_that_nothing_uses():
    class More(Fused):
        def __init__(self):
            super().__init__()
            self.spare = nn.Parameter(torch.ones(3))

    ported = tg.port(Fused().eval(), More().eval(), X)
    assert "spare" in ported.mapping.unmatched or "spare" not in ported.mapping.entries
    assert ported.mapping.entries.keys() - {"spare"} == {n for n, _ in Fused().named_parameters()}


def test_ties():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(torch.tanh(self.embed(ids)))

    def untied(params, ids):
        return jnp.tanh(params["embed"][ids]) @ params["head"]

    shapes = {"embed": np.ones((9, 4), "f"), "head": np.ones((4, 9), "f")}
    ids = np.arange(9).reshape(3, 3)
    source = Tied()
    ported = tg.port(source, (untied, shapes), ids)
    assert not ported.mapping.unmatched, str(ported)
    found = ported.convert(source.state_dict())
    np.testing.assert_array_equal(found["head"], found["embed"].T)
