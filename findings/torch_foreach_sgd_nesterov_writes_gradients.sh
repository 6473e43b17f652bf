#!/usr/bin/env bash
# SGD with Nesterov momentum overwrites the gradients, if it takes its foreach form, which is the default on CUDA.
#
# Versions:  torch 2.13.0, Python 3.11
# Expected:  step() reads .grad, as with foreach=False and as with momentum alone: the documentation calls the two forms
#            implementations of one algorithm
# Seen:      the weights are the same; .grad is grad + momentum * momentum_buffer afterwards, so that its norm, logged
#            after the step, or gradients that are accumulated further, depend on the device
#
# Exits with 0 as long as that is so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import torch


def step(**options):
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)
    torch.optim.SGD([weight], lr=0.1, momentum=0.5, **options).step()
    return weight.grad.tolist(), weight.detach().clone()


left, weights = zip(*(step(nesterov=True, foreach=foreach) for foreach in (False, True)), strict=True)
plain, _ = step(nesterov=False, foreach=True)
print(f"torch {torch.__version__}: a gradient of ones is {left[0]} after step() with foreach=False, "
      f"{left[1]} with foreach=True, {plain} without nesterov")
same = torch.equal(*weights)
raise SystemExit(int(not same or left[0] != [1.0] * 3 or left[1] != [1.5] * 3 or plain != [1.0] * 3))
PROGRAM
