"""Expressions: found from positions, written as NumPy, stored as JSON."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorgraft.porting.expressions import Concatenation, Constant, Sum, View, from_json, recognized, views
from tensorgraft.porting.labels import RANGE
from tensorgraft.porting.recognition import Origin, Recognizer

RNG = np.random.default_rng(0)


def check(expression, arrays, expected):
    """The expression, its code and its JSON give the array."""
    again = from_json(json.loads(json.dumps(expression.json())))
    assert again == expression
    code = expression.code(lambda name: f"source[{name!r}]")
    for value in (expression(arrays.__getitem__), eval(code, {"np": np, "source": arrays})):
        np.testing.assert_array_equal(value, expected)
        assert value.shape == expected.shape


@st.composite
def moved(draw):
    """A source's shape, and steps from its positions to those of a target."""
    x = np.arange(np.prod(shape := draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)), dtype=int)).reshape(shape)
    for _ in range(draw(st.integers(1, 3))):
        step = draw(st.sampled_from(["transpose", "cut", "flip", "flat", "split"]))
        axis = draw(st.integers(0, x.ndim - 1)) if x.ndim else 0
        if step == "transpose":
            x = x.transpose(draw(st.permutations(range(x.ndim))))
        elif step == "cut" and x.ndim and x.shape[axis] > 1:
            n = x.shape[axis] // 2
            start = draw(st.integers(0, x.shape[axis] - n))
            x = np.take(x, range(start, start + n), axis)
        elif step == "flip" and x.ndim:
            x = np.flip(x, axis)
        elif step == "flat":
            x = x.reshape(-1)
        elif step == "split" and x.ndim and x.shape[axis] % 2 == 0:
            x = x.reshape(*x.shape[:axis], 2, -1, *x.shape[axis + 1 :])
    return tuple(shape), x


@given(moved())
@settings(max_examples=150, deadline=None)
def test_random_movements(case):
    """What is recognised is right: a view gives the very elements, and simple movements are recognised."""
    shape, positions = case
    arrays = {"w": RNG.standard_normal(shape)}
    view = recognized(positions, "w", shape)
    if view is not None:
        check(view, arrays, arrays["w"].reshape(-1)[positions])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
@settings(max_examples=80, deadline=None)
def test_transposes_and_cuts_are_views(shape, data):
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).transpose(data.draw(st.permutations(range(len(shape)))))
    axis = data.draw(st.integers(0, len(shape) - 1))
    start = data.draw(st.integers(0, x.shape[axis] - 1))
    positions = np.take(x, range(start, x.shape[axis]), axis)
    view = recognized(positions, "w", tuple(shape))
    assert view is not None
    arrays = {"w": RNG.standard_normal(shape)}
    check(view, arrays, arrays["w"].reshape(-1)[positions])


def labels(shapes):
    return {n: k * RANGE + np.arange(np.prod(s)).reshape(s) for k, (n, s) in enumerate(shapes.items())}


def found(shapes, origin):
    expression, _ = Recognizer(shapes)(origin)
    assert expression is not None
    return expression


SHAPES = {"q": (6, 4), "k": (6, 4), "v": (6, 4), "b": (6,), "c": (6,), "fused": (18, 4)}
ARRAYS = {n: RNG.standard_normal(s) for n, s in SHAPES.items()}


@pytest.mark.parametrize(
    "made",
    [
        lambda a: a["q"].T,
        lambda a: a["fused"][6:12].T,
        lambda a: np.concatenate([a["q"], a["k"], a["v"]]),
        lambda a: np.concatenate([a["q"].T, a["k"].T, a["v"].T], 1),
        lambda a: np.stack([a["q"], a["k"], a["v"]], 1).reshape(18, 4),  # row by row
        lambda a: np.concatenate([a[n].reshape(2, 3, 4) for n in "qkv"], 1).reshape(18, 4),  # by heads
        lambda a: a["q"].reshape(2, 3, 4).transpose(0, 2, 1),
        lambda a: a["q"].reshape(3, 2, 4).transpose(1, 0, 2).reshape(6, 4),  # halved to interleaved
        lambda a: np.concatenate([a["fused"][:6], a["fused"][12:], a["fused"][6:12]]),  # gates in another order
        lambda a: np.repeat(a["b"], 3),
        lambda a: np.flip(a["b"]),
        lambda a: a["q"][2],
    ],
)
def test_layouts(made):
    expression = found(SHAPES, Origin(made(labels(SHAPES))))
    check(expression, ARRAYS, made(ARRAYS))


def test_sums_and_numbers():
    every = labels(SHAPES)
    offset = np.array([0.0, 0, 0, 1, 1, 1])
    added = [(np.arange(6), every["c"])]
    expression = found(SHAPES, Origin(every["b"], offset, added))
    assert isinstance(expression, Sum)
    value = expression(ARRAYS.__getitem__)
    np.testing.assert_array_equal(value, ARRAYS["b"] + ARRAYS["c"] + offset)
    assert from_json(json.loads(json.dumps(expression.json()))) == expression
    np.testing.assert_array_equal(eval(expression.code(lambda n: f"a[{n!r}]"), {"np": np, "a": ARRAYS}), value)
    number = found(SHAPES, Origin(np.full((2, 3), -1), np.full((2, 3), 0.5)))
    assert number == Constant(0.5, (2, 3))


def test_what_is_no_movement():
    assert recognized(np.array([0, 2, 3, 7, 1]), "w", (8,)) is None
    with pytest.raises(ValueError, match="unknown operation 'other'"):
        from_json({"op": "other"})


def test_other_shapes_raise():
    view = recognized(np.arange(24).reshape(6, 4).T, "w", (6, 4))
    assert isinstance(view, View) and list(views(Concatenation((view, view), 0, (8, 6)))) == [view, view]
    with pytest.raises(ValueError, match=r"w has shape \(4, 6\), and \(6, 4\) in the network"):
        view({"w": np.zeros((4, 6))}.__getitem__)
