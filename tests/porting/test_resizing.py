"""`Mapping.resized`: the mapping of small networks, for large ones; the judge is a mapping that was found there."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.porting.expressions import View
from tensorgraft.porting.mapping import Entry, Mapping

RNG = np.random.default_rng(0)


class Block(nn.Module):
    def __init__(self, width, heads, groups, size, hidden):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, size
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * groups) * size)
        self.out, self.up, self.down = (
            nn.Linear(heads * size, width),
            nn.Linear(width, hidden),
            nn.Linear(hidden, width),
        )

    def forward(self, x):
        b, n, _ = x.shape
        sizes = [self.heads * self.size, self.groups * self.size, self.groups * self.size]
        q, k, v = (part.view(b, n, -1, self.size) for part in self.qkv(self.norm(x)).split(sizes, -1))
        k, v = (part.repeat_interleave(self.heads // self.groups, 2) for part in (k, v))
        shares = (torch.einsum("bqhd,bkhd->bhqk", q, k) * self.size**-0.5).softmax(-1)
        x = x + self.out(torch.einsum("bhqk,bkhd->bqhd", shares, v).reshape(b, n, -1))
        return x + self.down(torch.tanh(self.up(x)))


class Source(nn.Module):
    def __init__(self, layers, width, heads, groups, size, hidden, words=13):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList([Block(width, heads, groups, size, hidden) for _ in range(layers)])

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return x


def target(p, ids):
    x = p["words"][ids]
    for i in range(len(p) - 1):
        q = p[f"block_{i + 1}"]
        h = jax.nn.standardize(x, -1, epsilon=1e-5) * q["scale"] + q["offset"]
        a, k, v = (jnp.einsum("bnw,whd->bnhd", h, q[n]["kernel"]) + q[n]["bias"] for n in "qkv")
        k, v = (jnp.repeat(part, a.shape[2] // part.shape[2], 2) for part in (k, v))
        shares = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", a, k) * a.shape[-1] ** -0.5, -1)
        x = x + jnp.einsum("bqhd,hdw->bqw", jnp.einsum("bhqk,bkhd->bqhd", shares, v), q["o"]["kernel"]) + q["o"]["bias"]
        x = x + jnp.tanh(x @ q["up"]["kernel"] + q["up"]["bias"]) @ q["down"]["kernel"] + q["down"]["bias"]
    return x


def weights(layers, width, heads, groups, size, hidden, words=13):
    def dense(*shape, bias):
        return {"kernel": np.ones(shape, "f"), "bias": np.zeros(bias, "f")}

    def block():
        return {
            "scale": np.ones(width, "f"), "offset": np.zeros(width, "f"),
            "q": dense(width, heads, size, bias=(heads, size)),
            **{n: dense(width, groups, size, bias=(groups, size)) for n in "kv"},
            "o": dense(heads, size, width, bias=width),
            "up": dense(width, hidden, bias=hidden), "down": dense(hidden, width, bias=width),
        }  # fmt: skip

    return {"words": np.ones((words, width), "f")} | {f"block_{i + 1}": block() for i in range(layers)}


SMALL = {"layers": 2, "width": 14, "heads": 6, "groups": 2, "size": 5, "hidden": 11}
LARGE = {"layers": 12, "width": 24, "heads": 8, "groups": 2, "size": 3, "hidden": 40, "words": 17}


@pytest.fixture(scope="module")
def small():
    found = tg.port(Source(**SMALL).eval(), (target, weights(**SMALL)), RNG.integers(0, 13, (2, 4)))
    assert found.ok, found
    return found.mapping


def shapes(tree, prefix=""):
    if isinstance(tree, dict):
        return {k: v for n, x in tree.items() for k, v in shapes(x, f"{prefix}.{n}".lstrip(".")).items()}
    return {prefix: tree.shape}


def test_other_sizes_and_layers(small):
    source = Source(**LARGE).eval()
    state = source.state_dict()
    mapping = small.resized(state, shapes(weights(**LARGE)))
    assert len(mapping) == 1 + 12 * 14
    found = mapping.convert(state)
    few = dict(LARGE, layers=2)  # the judge: found at these sizes
    judge = tg.port(Source(**few).eval(), (target, weights(**few)), RNG.integers(0, 17, (2, 4)))
    assert judge.ok, judge
    expected = judge.mapping.convert(
        {n: x for n, x in state.items() if not n.startswith("layers.") or n[7:9] in ("0.", "1.")}
    )
    for name, x in expected.items():
        np.testing.assert_array_equal(found[name], x)
    tree = {"words": found["words"]}
    for name, x in found.items():
        *path, last = name.split(".")
        at = tree
        for part in path:
            at = at.setdefault(part, {})
        at[last] = x
    ids = RNG.integers(0, 17, (2, 4))
    with torch.no_grad():
        np.testing.assert_allclose(target(tree, ids), source(torch.from_numpy(ids)), atol=2e-5)


def test_saved_mapping_and_files(small, tmp_path):
    from safetensors.torch import save_file

    small.save(tmp_path / "mapping.json")
    save_file(Source(**LARGE).state_dict(), tmp_path / "in.safetensors")
    (tmp_path / "shapes.json").write_text(json.dumps(shapes(weights(**LARGE))))
    mapping = Mapping.load(tmp_path / "mapping.json").resized(tmp_path / "in.safetensors", tmp_path / "shapes.json")
    mapping.convert(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").stat().st_size > 0
    assert "block_12.q.kernel" in mapping.source()


def test_every_row_that_does_not_fit_is_listed(small):
    state = {n: tuple(x.shape) for n, x in Source(**LARGE).state_dict().items()}
    wanted = shapes(weights(**LARGE))
    wanted["block_3.q.kernel"] = (24, 8, 5)
    wanted["another"] = (3,)
    del state["layers.4.up.weight"]
    with pytest.raises(ValueError) as error:
        small.resized(state, wanted)
    text = str(error.value)
    assert text.startswith("5 rows cannot be written for the other size")
    for word in ("block_3.q.kernel", "block_3.v.kernel", "another: no row", "the checkpoint has no layers.4.up.weight"):
        assert word in text, text


def test_arrays_of_the_checkpoint_that_no_row_takes(small):
    state = {n: tuple(x.shape) for n, x in Source(**LARGE).state_dict().items()} | {"extra.weight": (3, 3)}
    with pytest.raises(ValueError, match=r"extra\.weight of the checkpoint: no row takes it"):
        small.resized(state, shapes(weights(**LARGE)))


def row(name, source, shape, split, order, target, index=None):
    index = index or tuple((0, n, 1) for n in split)
    return Entry(name, target, View(source, shape, split, index, order, (), target))


def test_sizes_that_shapes_do_not_show():
    """The halves of each head are exchanged, and there is no axis of heads."""
    index = ((0, 3, 1), (1, 2, -1), (0, 5, 1), (0, 7, 1))
    entry = row("kernel", "w", (30, 7), (3, 2, 5, 7), (3, 0, 1, 2), (7, 30), index)
    mapping = Mapping({"kernel": entry})
    state = {"w": RNG.standard_normal((48, 9)).astype("f")}
    with pytest.raises(ValueError, match=r"kernel: no axis has the size 3 of a step: .* sizes=\{3: ...\}"):
        mapping.resized(state, {"kernel": (9, 48)})
    found = mapping.resized(state, {"kernel": (9, 48)}, sizes={3: 6, 2: 2, 5: 4}).convert(state)["kernel"]
    expected = state["w"].reshape(6, 2, 4, 9)[:, ::-1].reshape(48, 9).T
    np.testing.assert_array_equal(found, expected)


def test_a_size_that_is_two():
    """Width and heads times size are one number in the small network: where it matters, the error says so."""
    rows = [
        row("wide", "a", (4, 8), (4, 8), (1, 0), (8, 4)),
        row("turned", "b", (32,), (4, 8), (1, 0), (32,)),  # neither size is an axis
    ]
    mapping = Mapping({e.target: e for e in rows})
    fits = mapping.resized({"a": (6, 10), "b": (60,)}, {"wide": (10, 6), "turned": (60,)})
    assert fits["turned"].expression.split == (6, 10)
    with pytest.raises(ValueError, match="not the product 70"):
        mapping.resized({"a": (6, 10), "b": (70,)}, {"wide": (10, 6), "turned": (70,)})
    again = mapping.resized({"a": (6, 10), "b": (70,)}, {"wide": (10, 6), "turned": (70,)}, sizes={4: 7})
    assert again["turned"].expression.split == (7, 10)
    rows.append(row("other", "c", (8, 8), (8, 8), (1, 0), (8, 8)))
    mapping = Mapping({e.target: e for e in rows})
    with pytest.raises(ValueError, match="the size 8 is 10 and 12"):
        mapping.resized(
            {"a": (6, 10), "b": (60,), "c": (12, 10)}, {"wide": (10, 6), "turned": (60,), "other": (10, 12)}
        )


def test_one_layer_is_not_enough():
    class One(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(n)])

        def forward(self, x):
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x

    def function(p, x):
        for q in p.values():
            x = jnp.tanh(x @ q["kernel"] + q["bias"])
        return x

    def tree(n):
        return {f"dense_{i}": {"kernel": np.ones((4, 4), "f"), "bias": np.ones(4, "f")} for i in range(n)}

    x = RNG.standard_normal((2, 4)).astype("f")
    found = tg.port(One(1), (function, tree(1)), x).mapping
    with pytest.raises(ValueError, match="map at two layers"):
        found.resized(One(3).state_dict(), shapes(tree(3)))
    two = tg.port(One(2), (function, tree(2)), x).mapping
    state = One(3).state_dict()
    out = two.resized(state, shapes(tree(3))).convert(state)
    np.testing.assert_array_equal(out["dense_2.kernel"], state["layers.2.weight"].numpy().T)
