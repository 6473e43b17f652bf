"""Filters, `tree_at` and comparisons of pytrees, against Equinox's where it has them; files."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optree
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry
from tensorgraft.transforms import (
    Module,
    combine,
    field,
    filter,
    is_array,
    is_array_like,
    is_inexact_array,
    is_inexact_array_like,
    partition,
    tree_at,
    tree_deserialise_leaves,
    tree_equal,
    tree_inference,
    tree_serialise_leaves,
)

BACKENDS = [name for name in ("numpy", "jax", "torch", "tensorflow") if name in registry.backends()]


def arrays_of_all():
    found = [np.ones(2), np.float32(1), jnp.ones(2), *(xp.ones(2, device=b) for b in BACKENDS)]
    if "torch" in BACKENDS:
        import torch

        found += [torch.ones(2), torch.nn.Parameter(torch.ones(2))]
    if "tensorflow" in BACKENDS:
        import tensorflow as tf

        found += [tf.ones(2), tf.Variable([1.0])]
    return found


def test_arrays_of_all_frameworks():
    for x in arrays_of_all():
        assert is_array(x) and is_array_like(x) and is_inexact_array(x) and is_inexact_array_like(x)
    for x in (np.arange(2), jnp.arange(2), jnp.ones(2, bool), *(xp.arange(2, device=b) for b in BACKENDS)):
        assert is_array(x) and not is_inexact_array(x)
    assert is_inexact_array(jnp.ones(2, jnp.bfloat16)) and is_inexact_array(jnp.ones(2, complex))
    assert not is_inexact_array(jax.random.key(0)) and is_array(jax.random.key(0))
    for x in (1, 1.5, True, 2j):
        assert is_array_like(x) and not is_array(x)
        assert is_inexact_array_like(x) == isinstance(x, float | complex)
    for x in (None, "a", [1.0], len, np.float64):
        assert not is_array_like(x)
    jax.jit(lambda x: [is_array(x), is_inexact_array(x)] == [True, True] or 1 / 0)(jnp.ones(2))


SPECS = [
    (is_array, eqx.is_array, {}),
    (True, True, {}),
    ({"a": False, "b": is_array, "c": True}, {"a": False, "b": eqx.is_array, "c": True}, {}),
    (is_array, eqx.is_array, {"inverse": True, "replace": 0}),
    (lambda x: isinstance(x, tuple), lambda x: isinstance(x, tuple), {"is_leaf": lambda x: isinstance(x, tuple)}),
]


@pytest.mark.parametrize("spec", SPECS)
def test_filters_are_equinoxs(spec):
    ours, theirs, options = spec
    tree = {"a": [np.ones(2), 3, "x"], "b": (np.zeros(1), len), "c": None}
    if "is_leaf" not in options:
        assert str(filter(tree, ours, **options)) == str(eqx.filter(tree, theirs, **options))
        options.pop("inverse", None)
    else:
        tree = {"a": [1, (2, 3)], "b": ((), 4)}
        with pytest.raises(ValueError, match="prefix"):  # a tuple is no leaf of what is filtered
            filter(tree, ours)
            filter(tree, {"a": [True, True, True]})
        return
    left, right = partition(tree, ours, **options)
    assert [str(x) for x in (left, right)] == [str(x) for x in eqx.partition(tree, theirs, **options)]
    if "replace" not in options:
        assert str(combine(left, right)) == str(tree) == str(eqx.combine(left, right))


def test_wrong_filters():
    with pytest.raises(ValueError, match="bools and functions, got a int"):
        filter([1, 2], [1, True])
    with pytest.raises(ValueError, match="not a prefix"):
        filter([1, 2], [True])
    assert combine([None, 1], [2, 3], [4, 5]) == [2, 1]


class Pair(Module):
    a: object
    b: object = None
    n: int = field(static=True, default=1)


class TheirPair(eqx.Module):
    a: object
    b: object = None
    n: int = eqx.field(static=True, default=1)

    def __repr__(self):
        return f"Pair(a={self.a!r}, b={self.b!r}, n={self.n!r})"


PICKS = {
    "a leaf": (lambda t: t[0].a, {"replace": 7}),
    "a node": (lambda t: t[1], {"replace": "x"}),
    "the tree": (lambda t: t, {"replace": 5}),
    "several": (lambda t: (t[0].a, t[1].b), {"replace": (7, [8, 9])}),
    "a list of one": (lambda t: [t[0].a], {"replace": [7]}),
    "with a function": (lambda t: (t[0].a, t[1].b), {"replace_fn": lambda x: [x, x]}),
    "an empty tuple": (lambda t: t[2], {"replace": 3}),
    "None": (lambda t: t[0].b, {"replace": 3, "is_leaf": lambda x: x is None}),
    "by None": (lambda t: t[0].a, {"replace": None}),
}


@pytest.mark.parametrize("name", PICKS)
def test_tree_at_is_equinoxs(name):
    where, options = PICKS[name]
    ours = tree_at(where, [Pair(1), Pair((2, 3), 4), (), 1], **options)
    right = eqx.tree_at(where, [TheirPair(1), TheirPair((2, 3), 4), (), 1], **options)
    assert str(ours) == str(right)
    assert isinstance(ours, int) or not any(x is y for x, y in zip(ours, (1, ()), strict=False))


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (lambda t: t[0].n, "static fields"),
        (lambda t: t[0].b, "is_leaf"),
        (lambda t: t[0].a + 1, "cannot compute with leaves"),
        (lambda t: (t[0].a, t[0].a), "same node twice"),
        (lambda t: (t[0], t[0].a), "a node and a part of it"),
        (lambda t: (t[0].a, 3), "is not a node of the tree, but 3"),
        (lambda t: (t[0].a,), "picked 1 nodes, replace has 2"),
    ],
)
def test_tree_at_says_what_is_wrong(where, says):
    with pytest.raises(ValueError, match=says):
        tree_at(where, [Pair(1), Pair(2)], (7, 8))
    with pytest.raises(TypeError, match="either replace or replace_fn"):
        tree_at(where, [Pair(1)])


def test_tree_equal():
    for x in arrays_of_all():
        assert tree_equal([x, 1], [x, 1], [x, 1]) is True
        assert not tree_equal([x], [1]) and not tree_equal([x], [x, x]) and not tree_equal([x], [None])
    a, b = xp.asarray([1.0, 2.0], device="numpy"), xp.asarray([1.0, 2.0 + 1e-9], device="numpy")
    assert not tree_equal(a, b) and tree_equal(a, b, rtol=1e-6) and tree_equal(a, b, atol=1e-6)
    assert not tree_equal(a, xp.astype(a, xp.float32), rtol=1) and not tree_equal(a, a[:1])
    assert tree_equal(a, np.asarray(a)) and not tree_equal(a, np.asarray(a), typematch=True)
    assert tree_equal(1, 1.0) and not tree_equal(1, 1.0, typematch=True)
    for backend in BACKENDS:
        x = xp.ones(2, device=backend)
        assert bool(tg.jit(lambda a, b: tree_equal([a], [b]))(x, x * 1))
        assert not bool(tg.jit(lambda a, b: tree_equal([a], [b]))(x, x * 2))


def test_tree_inference():
    class Noisy(Module):
        inner: object
        inference: bool = False

    tree = [Noisy(Noisy(1)), {"a": Pair(Noisy(2))}]
    after = tree_inference(tree, True)
    assert [after[0].inference, after[0].inner.inference, after[1]["a"].a.inference] == [True] * 3
    assert not tree[0].inference


def test_files(tmp_path):
    path = tmp_path / "model.safetensors"
    tree = {
        "arrays": [x for x in arrays_of_all() if not isinstance(x, np.float32)],
        "model": Pair(np.arange(6).reshape(2, 3).T, jnp.ones((2,), jnp.bfloat16)),
        "others": [np.array([1 + 2j]), np.zeros((0, 3), np.uint8), np.array([True]), np.float32(3)],
        "numbers": [1, 2.5, True, 3 - 1j, "text", len, None],
        "on": [xp.asarray(np.complex64(2j), device=b) for b in BACKENDS if b != "tensorflow"],
    }
    tree_serialise_leaves(path, tree)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    changed = lambda x: is_inexact_array(x) and type(x).__name__ not in ("Parameter", "ResourceVariable")  # noqa: E731
    blank = optree.tree_map(lambda x: x * 0 if changed(x) else x, tree)
    blank["numbers"][:4] = [0, 0.0, False, 0j]
    found = tree_deserialise_leaves(path, blank)
    assert tree_equal(found, tree)
    assert [type(x) for x in found["arrays"]] == [type(x) for x in tree["arrays"]]
    assert [str(x.device) for x in found["on"]] == [str(x.device) for x in tree["on"]]
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:  # as others read it
        np.testing.assert_array_equal(file.get_tensor("model.a"), tree["model"].a)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"two leaves are called 'a\.b'"):
        tree_serialise_leaves(path, {"a.b": 1, "a": {"b": 2}})
    assert path.read_bytes() == before
    tree_serialise_leaves(path, tree, filter_spec=lambda x: isinstance(x, bool))
    assert tree_deserialise_leaves(path, blank, lambda x: isinstance(x, bool))["numbers"][:3] == [0, 0.0, True]


def test_files_that_do_not_fit(tmp_path):
    path = tmp_path / "model.safetensors"
    tree_serialise_leaves(path, {"a": np.ones(3), "b": np.ones(3, np.float32), "c": 1})
    like = {"a": np.ones(4), "b": np.ones(3), "d": 1}
    with pytest.raises(ValueError) as error:
        tree_deserialise_leaves(path, like)
    assert str(error.value).splitlines()[1:] == [
        "  a: float64[3] in the file, float64[4] in the tree",
        "  b: float32[3] in the file, float64[3] in the tree",
        "  c: is not in the tree",
        "  d: is not in the file",
    ]
    assert like["a"].tolist() == [1.0] * 4
    with pytest.raises(TypeError, match="neither an array nor a number"):
        tree_serialise_leaves(path, ["x"], filter_spec=True)


def test_files_of_what_has_only_shapes(tmp_path):
    path = tmp_path / "model.safetensors"
    tree_serialise_leaves(path, [np.arange(3.0)])
    (found,) = tree_deserialise_leaves(path, [jax.ShapeDtypeStruct((3,), np.dtype("float64"))])
    assert isinstance(found, xp.Array) and found.tolist() == [0.0, 1.0, 2.0]
