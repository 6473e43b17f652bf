"""Functions that act outside of the process, or read something else each time: they run uncompiled, with a warning."""

import builtins
import io
import os
import random
import secrets
import subprocess
import sys
import threading
import time
import uuid
from time import perf_counter

import numpy as np
import pytest
import torch
from numpy import fromfile
from torch import nn

import tensorgraft as tg

pytestmark = pytest.mark.sampled


def _read():
    with open(os.devnull) as file:
        return len(file.read())


def _saved():
    file = io.BytesIO()
    torch.save({"a": 1}, file)
    return file.getvalue()


_BITS, _SAVED = np.random.PCG64(0), _saved()
OUTSIDE = {
    "a clock": lambda: time.time(),
    "a clock by another name": lambda: perf_counter(),
    "an identifier": lambda: uuid.uuid4().int % 1000003,
    "random bytes": lambda: int.from_bytes(os.urandom(4), "little"),
    "a secret": lambda: secrets.randbelow(10**6),
    "random numbers of the system": lambda: random.SystemRandom().random(),
    "a generator that the system seeds": lambda: random.Random().random(),
    "a generator of bits": lambda: _BITS.random_raw() % 10**6,
    "the seed": lambda: torch.initial_seed() % 10**6,
    "a file": _read,
    "a file, by NumPy": lambda: len(np.fromfile(os.devnull)),
    "a file, by a reader's own name": lambda: len(fromfile(os.devnull)),
    "a file, by PyTorch": lambda: torch.load(io.BytesIO(_SAVED))["a"],
    "a directory": lambda: len(os.listdir(os.curdir)),
    "the working directory": lambda: len(os.getcwd()),
    "whether a file exists": lambda: os.path.exists(os.devnull),
    "a process": lambda: subprocess.run([sys.executable, "-c", ""], check=True).returncode,
    "a thread": lambda: threading.Thread(target=lambda: None).start() or 1,
    "a pause": lambda: time.sleep(0) or 1,
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_acts_outside_runs_uncompiled(name):
    calls = []

    def f(x):
        calls.append(OUTSIDE[name]())
        return x * 2

    run, x = tg.jit(f), torch.ones(2, device=tg.device("jax"))
    with pytest.warns(tg.transforms.UncompiledWarning, match=r"test_acts_outside\.py:\d+"):
        run(x)
    run(x)
    assert len(calls) == 2
    assert builtins.open is io.open  # nothing of the standard library is changed after a trace


def test_a_function_that_only_mentions_a_clock_is_compiled():
    class Model(nn.Module):
        def timed(self, x):
            begin = time.perf_counter()
            return self(x), time.perf_counter() - begin

        def forward(self, x):
            return x * 2

    run = tg.jit(Model())
    run(torch.ones(2, device=tg.device("jax")))  # a warning would be an error
    assert run.report.traces == 1
