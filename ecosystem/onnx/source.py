"""Files that PyTorch exports, written as PyTorch again: `tg.source` against onnx2torch, as the table of docs/onnx.md.

`python -m ecosystem.onnx.source [--only TEXT] [--peer FOLDER]`: FOLDER is where onnx2torch is installed. The networks
have random weights. Times are processor time of one core, of what is quickest of several calls.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from benchmarks import networks, onnx_models
from benchmarks.measure import interleaved

import tensorgraft as tg

Made = tuple[torch.nn.Module, torch.Tensor]


def _of(work: Callable[..., networks.Work], **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        network = work(**options)
        return network.model.eval(), network.inputs

    return make


NETWORKS: dict[str, Callable[[], Made]] = {
    "ResNet-18": _of(networks.resnet),
    "GPT": _of(networks.gpt),
    "LSTM": _of(networks.lstm),
    "ResNet-50 of transformers": onnx_models.resnet50,
    "BERT of transformers": onnx_models.bert,
}
COLUMNS = ("network", "PyTorch's own", "tg.source: lines", "names", "difference", "time", "onnx2torch: modules",
           "names", "difference", "time")  # fmt: skip


def _imported(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location("written_network", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)()


def written(path: Path, x: torch.Tensor, folder: Path) -> tuple[torch.nn.Module, int]:
    """Return the network that the file of `tg.source` defines, with its weights, and the file's lines."""
    source = tg.source(str(path), x.numpy(), onto="torch", check=False)
    file = folder / "network.py"
    source.save(file)
    net = _imported(file, source.function)
    net.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in source.weights.items()}, strict=False)
    return net.eval(), source.report.lines


def converted(path: Path, peer: Path) -> torch.nn.Module:
    """Return the graph that onnx2torch, installed in a folder, makes of a file."""
    if str(peer) not in sys.path:
        sys.path.append(str(peer))
    return importlib.import_module("onnx2torch").convert(str(path)).eval()


def row(name: str, model: torch.nn.Module, x: torch.Tensor, peer: Path | None) -> list[str]:
    cells: list[str] = [name]
    calls: dict[str, Callable[[], object]] = {"own": functools.partial(model, x)}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.onnx"
        onnx_models.export(model, x, path)
        expected = model(x)
        own_names = {n for n, _ in model.named_parameters()}
        found: dict[str, tuple[Any, int, str]] = {}
        net, lines = written(path, x, Path(folder))
        found["tg.source"] = net, lines, ""
        if peer:
            try:
                found["onnx2torch"] = (graph := converted(path, peer)), len(list(graph.modules())), ""
                graph(x)
            except Exception as failed:  # whatever it raises is its result
                found["onnx2torch"] = None, 0, f"{type(failed).__name__}: {str(failed).splitlines()[0][:60]}"
        calls |= {k: functools.partial(net, x) for k, (net, _, _) in found.items() if net is not None}
        seconds = interleaved(calls, 1, 6, process_time)
        cells.append(f"{seconds['own'] * 1e3:.1f} ms")
        for key, (net, size, failure) in found.items():
            if net is None:
                cells += [failure, "", "", ""]
                continue
            difference = float((net(x) - expected).abs().max() / expected.abs().max())
            kept = len(own_names & {n for n, _ in net.named_parameters()})
            ratio = seconds[key] / seconds["own"]
            cells += [str(size), f"{kept} of {len(own_names)}", f"{difference:.0e}", f"{ratio:.2f}"]
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="networks whose names contain it")
    parser.add_argument("--peer", type=Path, metavar="FOLDER", help="where onnx2torch is installed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    columns = COLUMNS if args.peer else COLUMNS[:6]
    print("| " + " | ".join(columns) + " |\n| --- |" + " ---: |" * (len(columns) - 1))
    made = {name: make() for name, make in NETWORKS.items() if args.only in name}  # before the peer is imported
    for name, (model, x) in made.items():
        print("| " + " | ".join(row(name, model, x, args.peer)) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
