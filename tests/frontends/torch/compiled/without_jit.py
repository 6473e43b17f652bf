"""Cases that are computed without and with `tg.jit`: functions of a device and of what compiles, which give tensors."""

import functools
import warnings

import torch

import tensorgraft as tg


class Cases:
    """A decorator that collects cases."""

    def __init__(self):
        self.functions = {}

    def __call__(self, fn):
        self.functions[fn.__name__] = fn
        return fn

    def compare(self, name, backend, check):
        """What a case gives with `tg.jit` on a backend is what it gives on the CPU."""

        def values(device, jit):
            torch.manual_seed(0)
            return [t.detach().cpu() for t in self.functions[name](device, jit)]

        expected = values(torch.device("cpu"), lambda f: f)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tg.transforms.UncompiledWarning)
            given = values(tg.device(backend), functools.partial(tg.jit, check=check))
        assert len(given) == len(expected)
        for a, b in zip(given, expected, strict=True):
            torch.testing.assert_close(a, b)


def full(value, device):
    return torch.full((2,), float(value)).to(device)


def number(value):
    return torch.tensor(float(value))


def values(out):
    """What a case gives, to be compared: tensors by four digits, told apart from lists."""
    if isinstance(out, torch.Tensor):
        return "tensor", [round(v, 4) for v in out.detach().cpu().flatten().tolist()]
    return [values(x) for x in out] if isinstance(out, list | tuple) else out


def with_and_without(program, backend, *context):
    """Return the values of a case with `tg.jit` on a backend, and without it on the CPU."""
    judge = values(program("cpu", lambda fn: fn, *context))
    return values(program(tg.device(backend), functools.partial(tg.jit, compile="first"), *context)), judge


def changed(run, change, x):
    """The results of a function after each of three changes."""
    out = []
    for k in (1, 2, 3):
        change(k)
        out += [run(x), run(x)]
    return out
