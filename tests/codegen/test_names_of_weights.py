"""Names of weights and modules that are no identifiers: they are attributes of others in written classes."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tensorgraft as tg
from tensorgraft.codegen.output.expressions import attribute_names

NAMES = ("a b", 'it\'s "a" name', "two\nlines", "a-b")


class _Named(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.names = name, f"{name} 2"
        self.register_parameter(self.names[0], nn.Parameter(torch.arange(9.0).reshape(3, 3)))
        self.register_buffer(self.names[1], torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ getattr(self, self.names[0]) + getattr(self, self.names[1])


class _Outer(nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        for name in names:
            self.add_module(name, _Named(name))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: getattr(self, name)(x) for name in self.names}


def test_identifiers_are_kept_and_others_are_distinct() -> None:
    found = attribute_names(["a_b.0", "a b.a-b", "a_b_2", "1x", "'"])
    assert found == {"a b": "a_b_3", "a-b": "a_b_4", "1x": "weight_1x", "'": "weight"}


@pytest.mark.parametrize("onto", ["torch", "tensorflow"])
def test_names_are_attributes(onto: str) -> None:
    pytest.importorskip(onto)
    source = tg.source(_Outer(*NAMES), torch.ones(2, 3), onto=onto)
    assert source.report.ok
    assert set(source.weights) == {f"{name}.{name}{end}" for name in NAMES for end in ("", " 2")}
    attributes = {node.attr for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.Attribute)}
    assert all(map(str.isidentifier, attributes))


@pytest.mark.parametrize("onto", ["torch", "jax"])
def test_names_in_a_file_of_torch_export(onto: str, tmp_path: Path) -> None:
    """Names with quotes, with which PyTorch's own code would be another, are refused before it reads the file."""
    path = str(tmp_path / "model.pt2")
    torch.export.save(torch.export.export(_Outer("a b"), (torch.ones(2, 3),)), path)
    source = tg.source(path, torch.ones(2, 3), onto=onto)
    assert source.report.ok
    torch.export.save(torch.export.export(_Outer(NAMES[1]), (torch.ones(2, 3),)), path)
    with pytest.raises(ValueError, match="is no name"):
        tg.source(path, torch.ones(2, 3), onto=onto)


def test_names_in_a_saved_model(tmp_path: Path) -> None:
    tf: Any = pytest.importorskip("tensorflow")
    names = NAMES[:2]

    class Named(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in names:
                setattr(self, name, tf.Variable(np.ones((3, 3), np.float32)))

        @tf.function(input_signature=[tf.TensorSpec((2, 3), tf.float32)])
        def __call__(self, x):  # type: ignore[no-untyped-def]
            return {name: x @ getattr(self, name) for name in names}

    module = Named()
    tf.saved_model.save(module, str(tmp_path), signatures={names[1]: module.__call__.get_concrete_function()})
    source = tg.source(str(tmp_path), tf.ones((2, 3)), onto="tensorflow")
    assert source.report.ok
    assert tg.source(module, tf.ones((2, 3)), onto="tensorflow").report.ok
