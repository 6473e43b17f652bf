"""The helpers that a file gets, and names of its functions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tensorgraft.codegen.output import helpers
from tensorgraft.codegen.structure.functions import snake

SOURCES = {
    "shifted": "def shifted(x):\n    return x - x.mean()",
    "norm": "def norm(x):\n    return shifted(x) / x.std()",
    "other": "def other(norm):\n    return norm",
}


def test_a_file_gets_what_it_names_and_what_that_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "helper_sources", lambda target: SOURCES)
    target = SimpleNamespace()
    assert helpers.helpers_of(target, ["norm(x)"]) == [SOURCES["shifted"], SOURCES["norm"]]
    assert helpers.helpers_of(target, ["def f(norm):\n    return norm"]) == []
    shifted, norm = helpers.helpers_of(target, ["norm(x)"], {"shifted": "_shifted"})
    assert norm == "def norm(x):\n    return _shifted(x) / x.std()" and shifted.startswith("def _shifted(x)")


def test_names_of_functions():
    names = {"GPT2LMHeadModel": "gpt2_lm_head_model", "ResNet": "resnet", "ViT": "vit", "BatchNorm2d": "batch_norm2d",
             "RMSNorm": "rms_norm", "BertForMaskedLM": "bert_for_masked_lm", "Conv1D": "conv1d"}  # fmt: skip
    assert {kind: snake(kind) for kind in names} == names
