"""Convolutions and their gradients as the JAX backend lowers them on a CPU, against XLA's own convolution.

The same table is how the rule of `backends/jax/patches.py` was found and is checked: `python -m benchmarks.convolution`
goes over all shapes, and names those that are slower than XLA's own.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from benchmarks.measure import Row, interleaved

from tensorgraft.backends.jax import JaxBackend
from tensorgraft.hub.operations.windowed import Windowed

LAYERS = ((8, 64, 64, 16, 3, 1), (8, 128, 128, 8, 3, 1), (8, 256, 256, 4, 3, 1), (8, 256, 512, 4, 3, 2),
          (8, 512, 512, 2, 3, 1), (8, 256, 512, 4, 1, 2), (1, 512, 512, 7, 3, 1))  # fmt: skip
SECONDS = 0.1  # of each subject at a shape
SLOWER = 1.1  # is noted
IGNORED = 30e-6  # seconds: below, a call is not its arithmetic


@dataclass(frozen=True)
class Shape:
    batch: int
    channels: int
    outputs: int
    side: int
    kernel: int
    stride: int
    axes: int = 2

    @property
    def out(self) -> int:
        return (self.side + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def flops(self) -> float:
        window = self.kernel**self.axes
        return 2.0 * self.batch * self.channels * self.outputs * window * self.out**self.axes

    def __str__(self) -> str:
        sides, kernel = (" x ".join([str(n)] * self.axes) for n in (self.side, self.kernel))
        return f"{self.batch} x {self.channels} -> {self.outputs}, {sides}, window {kernel}, stride {self.stride}"


class XlasOwn(JaxBackend):
    """The same backend, had it no rule of its own for the CPU."""

    def convolution(self, x: Any, w: Any, /, strides: Any, padding: Any, *rest: Any) -> Any:  # type: ignore[override]
        lhs, rhs, groups, batches = (*rest, 1, 1)[:4]
        return jax.lax.conv_general_dilated(x, w, strides, padding, lhs, rhs, None, groups, batches)

    def _as_products(self, name: str, a: Any, b: Any, groups: int, static: Any) -> Any:
        return getattr(Windowed, name)(self, a, b, groups=groups, **static)


def kinds(xp: JaxBackend, s: Shape) -> dict[str, Callable[[Any, Any, Any], Any]]:
    """Functions of images, weights and the gradient of the result."""
    n = s.axes
    stride, padding, one = (s.stride,) * n, (s.kernel // 2,) * n, (1,) * n
    rest = (s.side - ((s.out - 1) * s.stride - 2 * padding[0] + s.kernel),) * n
    return {
        "forward": lambda x, w, g: xp.convolution(x, w, stride, [(p, p) for p in padding], one, one),
        "images' gradient": lambda x, w, g: xp.transposed_convolution(g, w, stride, padding, one, rest),
        "weights' gradient": lambda x, w, g: xp.convolution_weights(x, g, (s.kernel,) * n, stride, padding, one),
    }


def compare(s: Shape) -> Iterator[tuple[str, float, float]]:
    """(which, our seconds, XLA's seconds). Raises AssertionError where the results differ."""
    random = np.random.default_rng(0)
    sizes = ((s.batch, s.channels, *[s.side] * s.axes), (s.outputs, s.channels, *[s.kernel] * s.axes),
             (s.batch, s.outputs, *[s.out] * s.axes))  # fmt: skip
    arrays = [jax.numpy.asarray(random.standard_normal(size, np.float32)) for size in sizes]
    ours, xlas = kinds(JaxBackend(), s), kinds(XlasOwn(), s)
    for which in ours:
        run = {"ours": jax.jit(ours[which]), "XLA's": jax.jit(xlas[which])}
        a, b = (np.asarray(f(*arrays)) for f in run.values())
        assert np.allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(b).max()), f"{s}, {which}: {np.abs(a - b).max()}"
        subjects = {name: functools.partial(_waited, f, *arrays) for name, f in run.items()}
        once = sum(interleaved(subjects, 1, 2, time.process_time).values()) / 2
        calls = max(1, int(2e-3 / once))
        rounds = max(4, min(25, int(SECONDS / once / calls)))
        seconds = interleaved(subjects, calls, rounds, time.process_time)
        yield which, seconds["ours"], seconds["XLA's"]


def _waited(f: Callable[..., Any], *arrays: Any) -> None:
    jax.block_until_ready(f(*arrays))


def measure() -> list[Row]:
    rows = []
    for layer in LAYERS:
        s = Shape(*layer)
        rows += [Row(f"convolution {s}, {which}", a, b, "XLA's convolution") for which, a, b in compare(s)]
    return rows


def grid() -> Iterator[Shape]:
    channels = ((512, 512), (256, 256), (64, 256), (256, 64), (64, 64), (16, 32), (3, 64))
    for (c, o), kernel, stride, side, batch in itertools.product(
        channels, (3, 1, 5), (1, 2), (1, 2, 3, 4, 7, 8, 14, 28, 56), (1, 8)
    ):
        s = Shape(batch, c, o, side, kernel, stride)
        if s.flops < 1.2e9 and side >= stride and not (kernel == 5 and c > 64):
            yield s
    for (c, o), kernel, side, batch in itertools.product(((256, 256), (64, 64)), (1, 3), (4, 64, 1024), (1, 8)):
        yield Shape(batch, c, o, side, kernel, 1, axes=1)
    for (c, o), kernel, side in itertools.product(((128, 128), (16, 32)), (1, 3), (2, 4, 8)):
        yield Shape(4, c, o, side, kernel, 1, axes=3)


def main() -> int:
    logarithms, slower = [], []
    for s in grid():
        for which, ours, xlas in compare(s):
            print(f"{s}, {which}: {s.flops / ours / 1e9:.1f} and {s.flops / xlas / 1e9:.1f} GFLOP/s", flush=True)
            logarithms.append(np.log(ours / xlas))
            if ours > max(SLOWER * xlas, xlas + IGNORED):
                slower.append(f"{s}, {which}: {ours / xlas:.2f}")
    print(f"{len(logarithms)} cases, time against XLA's own: geometric mean {np.exp(np.mean(logarithms)):.2f},"
          f" least {np.exp(min(logarithms)):.3f}, most {np.exp(max(logarithms)):.2f}")  # fmt: skip
    print(*(slower or ["none is slower"]), sep="\n")
    return 1 if slower else 0


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sys.exit(main())
