"""`torch.compile(model, backend="tensorgraft")`: Dynamo and AOTAutograd capture, a backend of ours computes.

The model and its data stay where they are, on the CPU or on CUDA. AOTAutograd hands over graphs of functional ATen
operators, forward and backward, and each becomes one program (`graph`); memory is shared in both directions (`ports`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functorch.compile import min_cut_rematerialization_partition  # type: ignore[import-untyped]
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from tensorgraft.frontends.torch.compiled.in_dynamo import device_of
from tensorgraft.frontends.torch.core.devices import slot_named, slot_of
from tensorgraft.frontends.torch.graph.graph import TorchGraph

OPTIONS = ("device",)
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def tensorgraft(
    module: GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """The backend for Dynamo.

    Arguments:
        options: `device`, as in `tg.device`: "jax" or "numpy", "jax:gpu:0"; the default is the default device.
        mode: one of PyTorch's; there is nothing here to be chosen by it.

    Raises ValueError for others, BackendNotAvailableError for a device that is not here. So does `torch.compile`,
    before anything is compiled.
    """
    check(options, mode)
    name = (options or {}).get("device")
    slot = slot_of(device_of(module, inputs)) if name is None else slot_named(name)

    def compiler(graph: GraphModule, inputs: Sequence[Any]) -> TorchGraph:
        return TorchGraph(graph, slot)

    capture = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=min_cut_rematerialization_partition)
    return capture(module, inputs)


def check(options: dict[str, Any] | None = None, mode: str | None = None) -> None:
    """Raise an error for wrong options."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile: mode={mode!r} is not one of {', '.join(map(repr, MODES))}")
    options = options or {}
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise ValueError(
            f'torch.compile(backend="tensorgraft"): unknown option {", ".join(map(repr, unknown))}. The only'
            ' option is "device": options={"device": "jax"}'
        )
    name = options.get("device")
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(
            f'options={{"device": ...}} must be the name of a device, as in tensorgraft.device, got {name!r}'
        )
    slot_named(name)
