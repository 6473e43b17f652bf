"""`Module`: dataclasses that are pytrees, and what is said of wrong use."""

import abc
import dataclasses
import inspect
import pickle
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optree
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.transforms import AbstractClassVar, AbstractVar, Module, Partial, field, filter_vmap, tree_equal


def ones(*shape):
    return xp.ones(shape, device="numpy")


class Affine(Module):
    weight: object
    bias: object
    size: int = field(static=True, default=3)

    def __call__(self, x):
        return self.weight @ x + self.bias

    def twice(self, x):
        return self(self(x))

    @property
    def both(self):
        return self.weight, self.bias


def test_a_dataclass_and_a_pytree():
    m = Affine(ones(3, 3), ones(3))
    assert dataclasses.is_dataclass(m) and m.size == 3 and m.both == (m.weight, m.bias)
    assert [x is y for x, y in zip(optree.tree_leaves(m), (m.weight, m.bias), strict=True)] == [True, True]
    assert optree.tree_paths(m) == [("weight",), ("bias",)]
    doubled = optree.tree_map(lambda x: x * 2, m)
    assert type(doubled) is Affine and doubled(ones(3)).tolist() == [8.0, 8.0, 8.0]
    assert str(inspect.signature(Affine)).startswith("(weight: object, bias: object, size: int")
    copy = pickle.loads(pickle.dumps(m))
    assert tree_equal(copy, m)


def test_statics_are_structure():
    def structure(size):
        return optree.tree_structure(Affine(1, 2, size))

    assert structure(3) == structure(3) != structure(4)
    assert structure(1) != structure(True) != structure(1.0)
    assert structure([1, {}]) == structure([1, {}])  # what is not hashable, too


def test_bound_methods_are_pytrees():
    m = Affine(ones(2, 2), ones(2))
    for method in (m.twice, m.__call__):
        assert optree.tree_structure(method).num_leaves == 2
        np.testing.assert_array_equal(np.asarray(optree.tree_map(lambda x: x, method)(ones(2))), method(ones(2)))
    assert optree.tree_structure(m.twice) == optree.tree_structure(Affine(3, 4).twice)
    assert m.twice.__wrapped__.__name__ == "twice"

    class Child(Affine):
        def twice(self, x):
            return super().twice(x) + 1

    assert Child(ones(2, 2), ones(2)).twice(ones(2)).tolist() == [8.0, 8.0]


def test_own_init_is_inherited():
    class Own(Module):
        a: int
        b: int = 7

        def __init__(self, a):
            self.a = a + 1

    class Child(Own):
        c: int = 9

    assert (Own(1).a, Own(1).b, Child(2).a, Child(2).c) == (2, 7, 3, 9)
    assert optree.tree_leaves(Child(2)) == [3, 7, 9]


def test_converters_and_checks():
    seen = []

    class Base(Module):
        a: object = field(converter=float)

        def __check_init__(self):
            seen.append(("base", self.a))

    class Child(Base):
        b: int = 1

        def __check_init__(self):
            seen.append(("child", self.a))
            if self.a < 0:
                raise ValueError("a is not negative")

    assert Child(3).a == 3.0 and type(Child(3).a) is float
    assert seen[:2] == [("child", 3.0), ("base", 3.0)]
    with pytest.raises(ValueError, match="a is not negative"):
        Child(-1)


def test_abstract_attributes():
    class Base(Module):
        a: AbstractVar[int]
        kind: AbstractClassVar[str]

        @abc.abstractmethod
        def f(self): ...

    class Half(Base):
        a: int

        def f(self):
            return self.a

    class Whole(Half):
        kind = "whole"

    class Other(Base):
        kind = "other"

        @property
        def a(self):
            return 5

        def f(self):
            return self.a

    with pytest.raises(TypeError, match=r"abstract class .*Base: it lacks a, kind"):
        Base()
    with pytest.raises(TypeError, match=r"abstract class .*Half: it lacks kind"):
        Half(1)
    assert Whole(1).f() == 1 and Other().f() == 5

    class Text(Module):
        a: "AbstractVar[int]"

    with pytest.raises(TypeError, match="it lacks a"):
        Text()
    with pytest.raises(TypeError, match="abstract"):

        class Lacking(Module):
            @abc.abstractmethod
            def f(self): ...

        Lacking()


def test_wrong_use():
    m = Affine(1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Affine\.weight.*tree_at"):
        m.weight = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        del m.weight

    class Unknown(Module):
        a: int

        def __init__(self):
            self.b = 1

    with pytest.raises(AttributeError, match="has no field 'b': annotate it"):
        Unknown()

    class Unset(Module):
        a: int

        def __init__(self):
            pass

    with pytest.raises(TypeError, match="has not set the field 'a'"):
        Unset()
    for array in (np.ones(2), jnp.ones(2), ones(2), [ones(2)]):
        with pytest.raises(TypeError, match="size is a static field, but got an array"):
            Affine(1, 2, array)

    class Cycle(Module):
        f: object

        def __init__(self):
            self.f = self.g

        def g(self):
            pass

    with pytest.raises(ValueError, match="a method of the module itself"):
        Cycle()
    with pytest.raises(TypeError, match="whose arrays no transform would see"):
        Affine(tg.vmap(Affine(ones(2, 2), ones(2))), 1)
    assert optree.tree_leaves(Affine(filter_vmap(Affine(ones(2), 1)), 2))[1:] == [1, 2]  # which can be seen
    with pytest.raises(TypeError, match="__check_init__"):

        class Both(Module):
            def __init__(self): ...
            def __post_init__(self): ...


def test_equality_and_hash():
    a, b = Affine(ones(2), 1), Affine(ones(2), 1)
    assert a == b and a != Affine(ones(2), 2) and a != Affine(ones(3), 1) and a != 3
    assert hash(Affine(1, 2)) == hash(Affine(1, 2))


def test_partial():
    m = Affine(ones(2, 2), ones(2))
    p = Partial(lambda m, x, *, scale: m(x) * scale, m, scale=ones())
    assert optree.tree_structure(p).num_leaves == 4  # the function, and three arrays
    assert p(ones(2)).tolist() == [3.0, 3.0] and p(ones(2), scale=2).tolist() == [6.0, 6.0]


def test_it_prints_as_a_call():
    m = Affine(xp.ones((3, 4), dtype=xp.float32, device="numpy"), None)
    assert repr(m) == "Affine(weight=f32[3,4], bias=None, size=3)"
    deep = {"a": [m, m], "b": (np.ones(2, np.int8), jnp.ones((), jnp.bfloat16)), "f": abs, "n": Partial(len)}
    assert tg.transforms.tree_pformat(deep, width=60) == (
        "{\n"
        "  'a': [\n"
        "    Affine(weight=f32[3,4], bias=None, size=3),\n"
        "    Affine(weight=f32[3,4], bias=None, size=3)\n"
        "  ],\n"
        "  'b': (i8[2](numpy), bf16[](jax)),\n"
        "  'f': <function abs>,\n"
        "  'n': Partial(func=<function len>, args=(), keywords={})\n"
        "}"
    )
    assert tg.transforms.tree_pformat(np.ones(1), short_arrays=False) == "array([1.])"


def test_pytrees_of_the_frameworks():
    m = Affine(jnp.ones((2, 2)), jnp.ones(2))
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(m)]
    assert paths == [".weight", ".bias"]
    assert jax.grad(lambda m: jnp.sum(m(jnp.ones(2))))(m).bias.tolist() == [1.0, 1.0]
    assert eqx.filter_jit(lambda m, x: m.twice(x))(m, jnp.ones(2)).tolist() == [7.0, 7.0]
    torch = pytest.importorskip("torch")
    Affine(1, 2)  # classes from before PyTorch was imported are registered now
    n = Affine(torch.ones(2, 2), torch.ones(2))
    grads = torch.func.grad(lambda m: m(torch.ones(2)).sum())(n)
    assert type(grads) is Affine and grads.bias.tolist() == [1.0, 1.0]


def test_nothing_is_imported_for_it():
    code = (
        "import sys, tensorgraft.transforms as t\n"
        "class M(t.Module):\n    a: int\n"
        "M(1)\n"
        "assert not {'jax', 'torch', 'tensorflow'} & set(sys.modules)\n"
        "import jax\n"
        "m = M(1)\n"
        "assert jax.tree.leaves(m) == [1]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
