#!/usr/bin/env bash
# torch.onnx.export stores parameters whose values are equal once, also if the module holds them apart.
#
# Versions:  torch 2.13.0, onnx 1.23.2, onnxscript 0.7.2, Python 3.11
# Expected:  an initializer for each parameter of the module, as in its state_dict(); parameters that the module does not
#            tie are not tied in the file
# Seen:      of two layers of normalisation with their first values (ones and zeros), both exporters keep the weight and
#            the bias of the first alone, and the nodes of the second read them: whoever trains the file, or writes other
#            weights into it by name, changes both layers at once
#
# Exits with 0 as long as that is so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.2

cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import onnx
import torch

net = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Tanh(), torch.nn.LayerNorm(4)).eval()
found = {}
for dynamo in (False, True):
    torch.onnx.export(net, (torch.ones(2, 4),), "net.onnx", dynamo=dynamo, verbose=False)
    graph = onnx.load("net.onnx").graph
    found[dynamo] = sorted(t.name for t in graph.initializer if "weight" in t.name or "bias" in t.name)
print(f"torch {torch.__version__}: the module has {sorted(net.state_dict())}")
for dynamo, names in found.items():
    print(f"  dynamo={dynamo}: the file has {names}")
raise SystemExit(int(any(len(names) != 2 for names in found.values())))
PROGRAM
