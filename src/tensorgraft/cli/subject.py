"""One program on one backend, measured in a process of its own: what `tensorgraft compare` starts.

`python -m tensorgraft.cli.subject FILE_OR_MODULE:FUNCTION BACKEND REPEAT OUT` writes OUT.npz (results and gradients)
and OUT.json (seconds, bytes). FUNCTION is called with a device. It returns the function to measure, or a pair of this
and a tuple of its arguments.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optree

NATIVE = ("native", "pytorch")  # the program's own framework, on the CPU: only PyTorch's programs ask for a device


def load(target: str) -> Callable[..., Any]:
    """Return the function that `file.py:name` or `package.module:name` refers to. Raises ValueError if there is
    none."""
    module_path, _, name = target.rpartition(":")
    if module_path.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(module_path).stem, module_path)
        if spec is None or spec.loader is None or not Path(module_path).exists():
            raise ValueError(f"there is no file {module_path!r}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[Path(module_path).stem] = module
        sys.path.insert(0, str(Path(module_path).resolve().parent))
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(module_path)
    if not callable(getattr(module, name, None)):
        raise ValueError(f"{module_path} has no function {name!r}")
    return getattr(module, name)


def device_of(backend: str) -> Any:
    """Return the device to hand to the program. Unless it is the program's own framework (`NATIVE`), a backend's device
    becomes the default one as well."""
    if backend in NATIVE:
        import torch

        return torch.device("cpu")
    import tensorgraft as tg

    tg.set_default_device(backend)
    try:
        return tg.device(backend)
    except ModuleNotFoundError:  # without PyTorch, arrays know the device by its name
        return backend


def synchronize(backend: str) -> None:
    if backend not in NATIVE:
        from tensorgraft.hub import registry

        registry.get(backend).synchronize()


def host(x: Any) -> np.ndarray | None:
    """Return a tensor, an array or a number as a NumPy array (bfloat16 as float32); None for anything else."""
    if isinstance(x, bool | int | float | complex | np.ndarray | np.generic):
        return np.asarray(x)
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()
    return np.asarray(x) if hasattr(x, "__array__") else None


def gradients(step: Any, args: Any, out: Any) -> dict[str, np.ndarray]:
    """Call `backward` on the sum of all results that require gradients. Return the gradients of the arguments, and of
    the parameters of the module that `step` is, or is a method of, by name."""
    roots = [x for x in optree.tree_leaves(out) if getattr(x, "requires_grad", False) and hasattr(x, "backward")]
    if not roots:
        return {}
    sum(root.sum() for root in roots).backward()
    leaves = {f"argument {i}": x for i, x in enumerate(optree.tree_leaves(args))}
    owner: Any = step if hasattr(step, "named_parameters") else getattr(step, "__self__", None)
    if hasattr(owner, "named_parameters"):
        leaves |= dict(owner.named_parameters())
    return {
        name: value
        for name, x in leaves.items()
        if getattr(x, "is_leaf", False) and getattr(x, "grad", None) is not None
        if (value := host(x.grad)) is not None
    }


def peak() -> int:
    """Return the most bytes that the process has had in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    target, backend, repeat, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    subject = load(target)(device_of(backend))
    step, args = subject if isinstance(subject, tuple) and len(subject) == 2 and callable(subject[0]) else (subject, ())
    if not callable(step):
        raise TypeError(
            f"{target} must return (step, args), the function to measure and its arguments, but returned a"
            f" {type(subject).__qualname__}"
        )
    synchronize(backend)
    before = peak()
    start = time.perf_counter()
    results = step(*args)
    synchronize(backend)
    first = time.perf_counter() - start
    values = {f"result {i}": v for i, x in enumerate(optree.tree_leaves(results)) if (v := host(x)) is not None}
    found_gradients = gradients(step, args, results)
    del results
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        step(*args)
        synchronize(backend)
        seconds.append(time.perf_counter() - start)
    named: dict[str, Any] = {f"r/{k}": v for k, v in values.items()}
    named |= {f"g/{k}": v for k, v in found_gradients.items()}
    np.savez(f"{out}.npz", **named)
    Path(f"{out}.json").write_text(json.dumps({"first": first, "seconds": seconds, "memory": peak() - before}))


if __name__ == "__main__":
    main()
