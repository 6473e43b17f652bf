"""`torch.compile(model, backend="tensorgraft")`: Dynamo and AOTAutograd capture, a backend of ours computes.

The model and its data stay where they are, on the CPU or on CUDA. AOTAutograd hands over graphs of functional ATen
operators, forward and backward, and each becomes one program (`graph`); memory is shared in both directions (`ports`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import ShortenTraceback
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from tensorgraft.errors import BackendNotAvailableError
from tensorgraft.frontends.torch.devices import Slot, slot_named, slot_of
from tensorgraft.frontends.torch.graph import Graph
from tensorgraft.frontends.torch.inductor import device_of

OPTIONS = ("device",)
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class OptionsError(ShortenTraceback, ValueError):
    """What `torch.compile` was given does not fit. (Dynamo passes on what is a ShortenTraceback.)"""

    def __init__(self, message: str) -> None:
        super().__init__(message, first_useful_frame=None)


def tensorgraft(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend for Dynamo.

    Arguments:
        options: `device`, as in `tg.device`: "jax" or "numpy", "jax:gpu:0"; the default is the default device.
        mode: one of PyTorch's; there is nothing here to be chosen by it.

    Raises OptionsError, a ValueError, before anything is compiled.
    """
    slot = _slot(dict(options or {}), mode, device_of(module, inputs))

    def compiler(graph: GraphModule, inputs: Sequence[Any]) -> Graph:
        return Graph(graph, slot)

    capture = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=min_cut_rematerialization_partition)
    return capture(module, inputs)


def _slot(options: dict[str, Any], mode: str | None, device: torch.device | None) -> Slot:
    if mode is not None and mode not in MODES:
        raise OptionsError(f"torch.compile: mode={mode!r} is none of {', '.join(map(repr, MODES))}")
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise OptionsError(
            f'torch.compile(backend="tensorgraft"): unknown option {", ".join(map(repr, unknown))}.'
            ' There is "device": options={"device": "jax"}'
        )
    name = options.get("device")
    if name is None:
        return slot_of(device)
    if not isinstance(name, str):
        raise OptionsError(f'options={{"device": ...}} is a name as in tensorgraft.device, not {name!r}')
    try:
        return slot_named(name)
    except (BackendNotAvailableError, ValueError) as error:
        raise OptionsError(f'torch.compile(backend="tensorgraft", options={{"device": {name!r}}}): {error}') from None
