"""Gradients of ONNX's node tests: PyTorch's, JAX's and TensorFlow's against each other, and against differences.

`python -m ecosystem.onnx.gradients [--only TEXT]`. The loss is the sum of the floating results by fixed weights. Its
derivative in a random direction is compared with central differences in float64, where the graph has that dtype.
"""

from __future__ import annotations

import argparse
import collections
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.backend.test.loader import load_model_tests

from tensorgraft.frontends.onnx.models import PlannedModel
from tensorgraft.frontends.onnx.reading import read
from tensorgraft.frontends.onnx.rule import RULES
from tensorgraft.hub import registry

STEPS = (1e-5, 1e-6)
# what the results are steps or choices of, or integers: the derivative is zero, or is not defined where steps are
SKIPPED = r"test_(bernoulli|dropout_default_mask|training_dropout|random|gradient_of|adam|adagrad|momentum|nesterov)"


class Case:
    """A node test: its model and inputs. `moving`: the floating inputs that no rule needs the values of."""

    def __init__(self, model: Any, inputs: Sequence[Any]) -> None:
        self.planned, self.inputs = PlannedModel(read(model)), list(inputs)
        if not all(isinstance(x, np.ndarray) for x in inputs) or len(inputs) != len(self.planned.inputs):
            raise NotImplementedError("sequences, or inputs that are left out")
        known = {
            name
            for node in self.planned.model.graph.nodes
            for i, name in enumerate(node.inputs)
            if (row := RULES.get((node.domain, node.op))) is not None and row.input_name(i) in row.known
        }
        self.moving = [
            i for i, (n, x) in enumerate(zip(self.planned.inputs, self.inputs, strict=True))
            if x.dtype in (np.float32, np.float64) and n not in known and x.size
        ]  # fmt: skip

    def results(self, xp: Any, moved: Sequence[Any]) -> list[Any]:
        """Return the results of inputs of which the moving ones are these."""
        given = dict(zip(self.moving, moved, strict=True))
        operands = [given.get(i, xp.asarray(x) if i not in given else None) for i, x in enumerate(self.inputs)]
        weights = [xp.asarray(w) for w in self.planned.weights.values()]
        found = self.planned.plan(xp, *operands, *weights, None)
        return [y for y in found if not isinstance(y, tuple) and hasattr(y, "shape")]

    def loss(self, xp: Any, moved: Sequence[Any]) -> Any:
        total = None
        for n, y in enumerate(self.results(xp, moved)):
            y = xp.asarray(y) if isinstance(y, np.ndarray) else y
            if xp.dtype_of(y).kind != "f" or xp.dtype_of(y).itemsize < 4:
                continue
            size = int(np.prod(y.shape))
            weights = np.cos(np.arange(size) + n + 1).reshape(y.shape).astype(xp.dtype_of(y))
            part = xp.sum(xp.multiply(y, xp.asarray(weights)))
            total = part if total is None else xp.add(total, xp.astype(part, xp.dtype_of(total)))
        if total is None:
            raise NotImplementedError("no floating result")
        return total


def gradients(case: Case, on: str) -> list[np.ndarray]:
    """Return the gradients of the moving inputs."""
    xp, values = registry.get(on), [case.inputs[i] for i in case.moving]
    with xp.native_scope():
        if on == "torch":
            import torch

            leaves = [torch.tensor(v, requires_grad=True) for v in values]
            total = case.loss(xp, leaves)
            if total.requires_grad:  # of choices, there is no derivative
                total.backward()
            return [
                np.zeros(v.shape) if x.grad is None else x.grad.numpy() for x, v in zip(leaves, values, strict=True)
            ]
        if on == "jax":
            import jax

            return [np.asarray(g) for g in jax.grad(lambda xs: case.loss(xp, xs))([xp.asarray(v) for v in values])]
        import tensorflow as tf

        variables = [tf.constant(v) for v in values]
        with tf.GradientTape() as tape:
            tape.watch(variables)
            total = case.loss(xp, variables)
        found = tape.gradient(total, variables, unconnected_gradients="zero")
        return [tf.convert_to_tensor(g).numpy() for g in found]


def by_differences(case: Case, directions: Sequence[np.ndarray]) -> float | None:
    """Return the derivative in a direction by central differences. None where these are none: the graph rounds to
    float32, or has a step or a corner there, so that steps of other lengths, or to one side, give another number."""
    xp, values = registry.get("numpy"), [case.inputs[i].astype(np.float64) for i in case.moving]

    def loss(step: float) -> float:
        moved = [v + step * d for v, d in zip(values, directions, strict=True)]
        if any(y.dtype == np.float32 for y in map(np.asarray, case.results(xp, moved))):
            return np.nan
        return float(case.loss(xp, moved))

    middle = loss(0)
    slopes = [(loss(h) - loss(-h)) / (2 * h) for h in STEPS]
    slopes += [sign * (loss(sign * STEPS[1]) - middle) / STEPS[1] for sign in (1, -1)]
    return slopes[0] if close(slopes, slopes[0]) and np.isfinite(slopes).all() else None


def close(a: Any, b: Any, rtol: float = 2e-3, atol: float = 2e-4) -> bool:
    scale = max(float(np.max(np.abs(b), initial=0)), 1.0)
    return bool(np.allclose(a, b, rtol, atol * scale, equal_nan=True))


def compared(case: Case) -> str:
    """Return "equal", or what differs."""
    found = {on: gradients(case, on) for on in ("torch", "jax", "tensorflow")}
    for on in ("jax", "tensorflow"):
        if not all(close(a, b) for a, b in zip(found[on], found["torch"], strict=True)):
            return f"{on} differs from torch"
    rng = np.random.default_rng(0)
    directions = [rng.normal(size=case.inputs[i].shape) for i in case.moving]
    try:
        slope = by_differences(case, directions)
    except Exception:
        return "equal; no float64"
    if slope is None:
        return "equal; no float64"
    along = sum(float((g * d).sum()) for g, d in zip(found["torch"], directions, strict=True))
    return "equal" if close(along, slope, 1e-2, 1e-2) else f"differences give {slope:.4g}, gradients {along:.4g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: collections.Counter[str] = collections.Counter()
    for test in load_model_tests(kind="node"):
        if not re.search(args.only, test.name) or re.match(SKIPPED, test.name):
            continue
        try:
            case = Case(test.model, test.data_sets[0][0])
            if not case.moving:
                continue
            case.loss(registry.get("numpy"), [case.inputs[i] for i in case.moving])
        except Exception:  # without floating results, or with sequences, or an operator that NumPy does not compute
            counts["not compared"] += 1
            continue
        try:
            said = compared(case)
        except Exception as error:
            said = f"{type(error).__name__}: {str(error)[:120]}"
        kind = said if said.startswith("equal") else "differs"
        counts[kind] += 1
        if kind == "differs":
            print(test.name, said, flush=True)
    left_out = counts.pop("not compared", 0)
    total = sum(counts.values())
    fine = total - counts["differs"]
    print(f"{fine} of {total} ({100 * fine / max(total, 1):.1f} %): {dict(counts)}; {left_out} not compared")


if __name__ == "__main__":
    main()
