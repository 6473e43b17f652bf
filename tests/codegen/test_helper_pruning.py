"""Helpers as a file needs them, and names as the program has them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tensorgraft.codegen import helper_pruning
from tensorgraft.codegen.functions import snake
from tensorgraft.codegen.inlining import inlined
from tensorgraft.codegen.text import formatted

NORM = """
def norm(x, weight=None, axes=1, eps=1e-5):
    y = x - x.mean(tuple(range(-axes, 0)))
    y = y if weight is None else y * weight
    return y
"""
ATTENTION = (
    """
def scores(q, k, mask=None, causal=False):
    hidden = float("-inf")
    s = q @ k
    if causal:
        s = tri(s, hidden)
    if mask is None:
        return s
    return s + mask
""",
    """
def attention(q, k, v, mask=None, causal=False):
    return scores(q, k, mask, causal) @ v
""",
)


def helpers(monkeypatch: pytest.MonkeyPatch, sources: tuple[str, ...], *parts: str) -> list[str]:
    by_name = {s.split("(")[0].split()[-1]: s.strip() for s in sources}
    monkeypatch.setattr(helper_pruning, "helper_sources", lambda target: by_name)
    return [formatted(s).strip() for s in helper_pruning.helpers_of(SimpleNamespace(), parts)]


def test_what_each_call_gives_has_no_default_and_what_none_gives_is_no_parameter(monkeypatch):
    (norm,) = helpers(monkeypatch, (NORM,), "norm(x, w)", "norm(x, p['w'], eps=1e-6)")
    assert norm.split("\n")[0] == "def norm(x, weight, axes=1, eps=1e-5):"
    assert "is None" not in norm and "return y" in norm
    (norm,) = helpers(monkeypatch, (NORM,), "norm(x)")
    assert "weight" not in norm


def test_what_some_calls_give_stays(monkeypatch):
    (norm,) = helpers(monkeypatch, (NORM,), "norm(x)", "norm(x, w)")
    assert norm == formatted(NORM).strip()
    (norm,) = helpers(monkeypatch, (NORM,), "norm(*both)")
    assert norm == formatted(NORM).strip()
    (norm,) = helpers(monkeypatch, (NORM,), "map(norm, xs)")
    assert norm == formatted(NORM).strip()


def test_through_another_helper(monkeypatch):
    scores, attention = helpers(monkeypatch, ATTENTION, "attention(q, k, v)")
    assert scores == "def scores(q, k):\n    return q @ k"
    assert attention == "def attention(q, k, v):\n    return scores(q, k) @ v"
    scores, attention = helpers(monkeypatch, ATTENTION, "attention(q, k, v, causal=True)")
    assert "causal=causal" in attention and "mask" not in scores


def test_names_of_functions():
    names = {"GPT2LMHeadModel": "gpt2_lm_head_model", "ResNet": "resnet", "ViT": "vit", "BatchNorm2d": "batch_norm2d",
             "RMSNorm": "rms_norm", "BertForMaskedLM": "bert_for_masked_lm", "Conv1D": "conv1d"}  # fmt: skip
    assert {kind: snake(kind) for kind in names} == names


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("_norm(x, p['weight'])", "y = x / x.std(-1)\n    return y * p['weight']"),
        ("_norm(x, p['weight'], axes=2)", "over = (-2, -1)\n    y = x / x.std(over)\n    return y * p['weight']"),
        ("_norm(x, p['weight'] + 1)", None),  # is no name
        ("_norm(x, y)", None),  # the helper has another one of this name
    ],
)
def test_a_helper_that_one_function_only_calls_is_its_body(call, expected):
    helper = '''def _norm(x, weight, axes=1):
    """A norm."""
    over = tuple(range(-axes, 0))
    y = x / x.std(over)
    return y * weight'''
    norm = f"def norm(p, x):\n    return {call}"
    (part,), helpers = inlined([norm], [helper], ["_norm"])
    assert (part, helpers) == ((norm, [helper]) if expected is None else (f"def norm(p, x):\n    {expected}", []))
    assert inlined([norm, "_norm(1, 2)"], [helper], ["_norm"])[1] == [helper]
