"""The six networks of `examples/networks` as JAX: `python -m benchmarks.source_gallery` writes `docs/examples/*_jax.py`
and `docs/source_gallery.md`; with `--check` it writes nothing, and fails where one of these files is another."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import torch

from tensorgraft.codegen.generation import GeneratedSource
from tensorgraft.transforms.source import source

ROOT = Path(__file__).parent.parent
NETWORKS = {"gpt2": "GPT2", "resnet": "ResNet", "vit": "ViT", "llama": "Llama", "lstm": "LSTMModel", "unet": "UNet"}
SHOWN = {
    "gpt2": ["CausalSelfAttention", "Block"],
    "resnet": ["BasicBlock"],
    "vit": ["Attention", "Block"],
    "llama": ["RMSNorm", "Attention"],
    "lstm": ["LSTMModel"],
    "unet": ["DoubleConv", "Up"],
}  # what the page shows of each
PAGE = ROOT / "docs" / "source_gallery.md"
HEAD = """# Gallery: six networks, written for JAX

Made by `python -m benchmarks.source_gallery`; not written by hand. Each file on the right is what `tg.source` writes
for the program on the left: it imports only JAX, NumPy and safetensors. `python -m benchmarks.run source` compares
their length and speed with the same networks written by hand ([benchmarks/source_twins](../benchmarks/source_twins)).

| network | PyTorch | JAX, generated | JAX, by hand | lines | generated / by hand |
| --- | --- | --- | --- | --: | --: |
"""


def network(name: str) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """(the network in evaluation mode, an example of its arguments)"""
    torch.manual_seed(0)
    module = importlib.import_module(f"examples.networks.{name}")
    net = getattr(module, NETWORKS[name])().eval()
    for part in net.modules():
        if isinstance(part, torch.nn.BatchNorm2d):  # as after training
            torch.nn.init.normal_(part.running_mean)
            torch.nn.init.uniform_(part.running_var, 0.5, 2.0)
    return net, module.example_inputs()


def written(name: str, check: bool = False) -> GeneratedSource:
    net, example = network(name)
    return source(net, *example, onto="jax", check=check)


def lines_of_code(text: str) -> int:
    """Without blank lines, comments, docstrings, and the functions that load and save weights."""
    tree = ast.parse(text)
    loading = {"nested", "flat", "load_weights", "save_weights"}
    tree.body = [n for n in tree.body if not (isinstance(n, ast.FunctionDef) and n.name in loading)]
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            left_out |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    rows = text.split("\n")
    counted = {i for n in tree.body for i in range(n.lineno, (n.end_lineno or 0) + 1)} - left_out
    return sum(1 for i in counted if rows[i - 1].strip() and not rows[i - 1].strip().startswith("#"))


def page(texts: dict[str, str]) -> str:
    rows, parts = [], []
    for name, text in texts.items():
        program = (ROOT / "examples" / "networks" / f"{name}.py").read_text()
        twin = (ROOT / "benchmarks" / "source_twins" / f"{name}.py").read_text()
        ours, hand = lines_of_code(text), lines_of_code(twin)
        rows.append(
            f"| {NETWORKS[name]} | [{name}.py](../examples/networks/{name}.py)"
            f" | [{name}_jax.py](examples/{name}_jax.py)"
            f" | [{name}.py](../benchmarks/source_twins/{name}.py) | {ours} | {ours / hand:.2f} |"
        )
        parts.append(f"\n## {NETWORKS[name]}\n")
        for title in SHOWN[name]:
            before = _class(program, title)
            doc = ast.get_docstring(before[0])
            after = "\n\n\n".join(_functions(text, doc))
            parts.append(f"```python\n{before[1]}\n```\n\nbecomes\n\n```python\n{after}\n```\n")
    return HEAD + "\n".join(rows) + "\n" + "\n".join(parts)


def _class(text: str, title: str) -> tuple[ast.ClassDef, str]:
    node = next(n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == title)
    return node, ast.get_source_segment(text, node) or ""


def _functions(text: str, doc: str | None) -> list[str]:
    """Those that a class with this docstring became."""
    functions = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    found = [n for n in functions if doc and (ast.get_docstring(n) or "").split("\n")[0] == doc.split("\n")[0]]
    if not found:
        raise ValueError(f"no function is {doc!r}")
    return [ast.get_source_segment(text, n) or "" for n in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=inspect.getdoc(sys.modules[__name__]))
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    texts = {name: written(name).text for name in NETWORKS}
    files = {ROOT / "docs" / "examples" / f"{name}_jax.py": text for name, text in texts.items()}
    files[PAGE] = page(texts)
    if args.check:
        differ = [str(p.relative_to(ROOT)) for p, text in files.items() if not p.exists() or p.read_text() != text]
        print("\n".join(f"{p} is not what is generated" for p in differ) or "all as generated")
        return bool(differ)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
