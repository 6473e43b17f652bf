"""Modules as functions of TensorFlow and NumPy (`tg.graft`) beside CPU PyTorch: a small perceptron and a small GPT."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import torch
from benchmarks.measure import Row, interleaved
from benchmarks.networks import Work, gpt
from torch import nn

import tensorgraft as tg

ROUNDS = 40


def perceptron(batch: int = 64) -> Work:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
    sgd = torch.optim.SGD
    return Work("MLP", model, torch.randn(batch, 64), torch.randint(10, (batch,)), lambda m: sgd(m.parameters(), 1e-2))


def small_gpt() -> Work:
    return gpt(batch=2, words=128, length=32, width=64, heads=4, layers=2)


def subjects(work: Work) -> dict[str, Callable[[], Any]]:
    """Inference, and gradients of a loss, of the same inputs."""
    model = work.model.eval()
    m, f = tg.graft(model, onto="tensorflow"), tg.graft(model, onto="numpy")
    inputs, targets = (tf.constant(x.numpy()) for x in (work.inputs, work.targets))
    array, variables = work.inputs.numpy(), m.trainable_variables
    compiled = tf.function(m, jit_compile=True)

    def loss(x: Any, y: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, m(x)))
        return tape.gradient(value, variables)

    compiled_loss = tf.function(loss, jit_compile=True)
    infer = work.inference()

    def theirs() -> Any:
        model.zero_grad()
        nn.functional.cross_entropy(model(work.inputs).flatten(0, -2), work.targets.flatten()).backward()

    found: dict[str, Callable[[], Any]] = {
        "inference, PyTorch": lambda: infer(work.inputs),
        "inference, NumPy": lambda: f(array),
        "inference, TensorFlow eager": lambda: m(inputs).numpy(),
        "inference, TensorFlow compiled": lambda: compiled(inputs).numpy(),
        "gradients, PyTorch": theirs,
        "gradients, TensorFlow eager": lambda: np.asarray(tf.convert_to_tensor(loss(inputs, targets)[0])),
        "gradients, TensorFlow compiled": lambda: np.asarray(tf.convert_to_tensor(compiled_loss(inputs, targets)[0])),
    }
    expected = infer(work.inputs).numpy()
    for made in (f(array), m(inputs).numpy(), compiled(inputs).numpy()):
        assert np.abs(made - expected).max() <= 1e-5 * np.abs(expected).max()
    return found


def measure() -> list[Row]:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rows = []
    for work in (perceptron(), small_gpt()):
        seconds = interleaved(subjects(work), 3, ROUNDS, time.process_time)
        for name, value in seconds.items():
            what, _, where = name.partition(", ")
            if where != "PyTorch":
                label = f"{work.name} by tg.graft, {what}, {where}"
                rows.append(Row(label, value, seconds[f"{what}, PyTorch"], "CPU PyTorch"))
    return rows
