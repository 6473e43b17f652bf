"""`torch.distributed` for tensors of the device: every collective, derived from its schema.

PyTorch's process groups call operators of the dispatcher (`c10d::allreduce_`, ...): `torch.distributed`'s functions,
functional collectives, `DistributedDataParallel`'s reducer, FSDP and DTensor alike. Each has a kernel here. If the
devices of the group's processes compute together (`groups`), it is a rule of `collective_rules`; otherwise the kernel
calls the group's backend for the CPU (gloo) with copies, and copies the results back when they are waited for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import optree
import torch
import torch.distributed as dist
from torch.library import Library
from torch.utils._python_dispatch import TorchDispatchMode

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.schema import Overload
from tensorgraft.frontends.torch.core.tensors import cell_of, on_device
from tensorgraft.frontends.torch.device.collective_handles import ComputedWork, TransferredWork
from tensorgraft.frontends.torch.device.collective_rules import RULES, GroupCall
from tensorgraft.frontends.torch.device.groups import joint
from tensorgraft.frontends.torch.dispatch.autograd import linear_in_parts
from tensorgraft.frontends.torch.kernels.neural import fused_attention

# every operator of PyTorch's that takes a process group
COLLECTIVES = """
    _allgather_base_ _reduce_scatter_base_ allgather_ allgather_coalesced_ allgather_into_tensor_coalesced_ allreduce_
    allreduce_coalesced_ alltoall_ alltoall_base_ barrier broadcast_ gather_ monitored_barrier_ recv_ recv_any_source_
    reduce_ reduce_scatter_ reduce_scatter_tensor_coalesced_ scatter_ send
"""
_library = Library("c10d", "IMPL")
_FLAT = {"_allgather_base_", "_reduce_scatter_base_"}  # one tensor for all processes, of any shape as NCCL takes it
# collectives that only read their tensors, whose names are not `output`
_READ_ALONE = {"send", "barrier", "monitored_barrier_"}


def install() -> None:
    """Give the collectives of every process group kernels for the device."""
    if dist.is_available():
        for name in COLLECTIVES.split():
            if (packet := getattr(torch.ops.c10d, name, None)) is not None:
                _library.impl(name, _kernel(packet.default), "PrivateUse1")


def _kernel(op: Overload) -> Callable[..., Any]:
    names = [argument.name for argument in op._schema.arguments]
    name = op._schema.name.partition("::")[2]
    outputs = [n for n in names if n.startswith("output")] or ([] if name in _READ_ALONE else ["tensors"])

    def collective(*args: Any, **kwargs: Any) -> Any:
        bound = dict(zip(names, args, strict=False)) | kwargs
        if name in RULES and _run_on_devices(name, bound):
            boxed = ComputedWork(optree.tree_leaves(bound[outputs[0]])).boxed()
            return (bound[outputs[0]], boxed) if len(op._schema.returns) > 1 else boxed
        if state.now.capture is not None:
            raise TracedValueError(
                f"torch.distributed's {name.strip('_')} inside a compiled function: it runs on the hosts of the"
                " processes, outside of compiled programs. Compile the code before and after it separately, or"
                " start the processes by `tensorgraft run --on jax --processes N`, where devices compute"
                " reductions, gathers and scatters"
            )
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        lowered: dict[str, Any] = {}
        for n, value in bound.items():
            pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
            lowered[n] = value if isinstance(value, torch.ScriptObject) else _on_host(value, pairs)
            if n in outputs:
                copies += pairs
            if name in _FLAT and isinstance(value, torch.Tensor):
                lowered[n] = lowered[n].view(-1)
        divisor = 1
        if "reduce_op" in bound and copies and _of_integers(bound["reduce_op"], copies):
            lowered["reduce_op"] = torch.classes.c10d.ReduceOp()  # the sum
            divisor = dist.ProcessGroup.unbox(bound["process_group"]).size()
        gloo_result = op(**lowered)
        result: Any = bound[outputs[0]] if outputs else []
        if gloo_result is None:
            return None
        work = gloo_result[-1] if isinstance(gloo_result, tuple) else gloo_result
        leaves: list[Any] = optree.tree_leaves(result)
        boxed = TransferredWork(dist.Work.unbox(work), copies, leaves, divisor).boxed()
        return (result, boxed) if isinstance(gloo_result, tuple) else boxed

    return collective


def _run_on_devices(name: str, bound: dict[str, Any]) -> bool:
    """Compute a collective by a program over the devices of all processes; return False if that is not possible."""
    leaves: list[Any] = optree.tree_leaves(list(bound.values()))  # type: ignore[arg-type]
    tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
    if not all(on_device(t) and t.layout == torch.strided and not t.is_conj() and not t.is_neg() for t in tensors):
        return False
    backends = {cell_of(t).backend for t in tensors}
    backend = backends.pop() if len(backends) == 1 else None
    if backend is None or backend.compound:
        return False
    if backend.records:
        backend = backend.inner
    process_group = dist.ProcessGroup.unbox(bound["process_group"])
    group = joint(process_group, backend)
    if group is None:
        return False
    with backend.scope(), torch.no_grad():
        RULES[name](GroupCall(name, bound, group, process_group, backend))
    return True


def _of_integers(reduce_op: Any, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Return True for an average of integers, which gloo lacks. It is computed as by NCCL: the sum, divided and rounded
    toward zero."""
    dtypes = {copy.dtype for _, copy in copies}
    of_integers = not any(d.is_floating_point or d.is_complex or d == torch.bool for d in dtypes)
    average: Any = dist.ReduceOp.AVG
    return of_integers and reduce_op.op() == int(average)


def _on_host(value: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Return an argument with copies of its device tensors on the CPU; each pair of a tensor and its copy is added to
    `pairs`."""

    def copied(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not on_device(t):
            return t
        copy = t.detach().cpu().contiguous()  # gloo takes memory in its order, whatever the strides
        pairs.append((t.detach(), copy))
        return copy

    return optree.tree_map(copied, value, none_is_leaf=True)


class _MapOnHost(TorchDispatchMode):
    """Keeps the reducer's map of unused parameters on the CPU: moving it to the device would require pinned memory,
    which a Python device lacks, and gloo reduces it on the CPU in any case."""

    def __torch_dispatch__(self, func: Overload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.empty.memory_format and kwargs.get("dtype") == torch.int32:
            kwargs = kwargs | {"device": torch.device("cpu")}
        return func(*args, **kwargs)


def reducer(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `torch.distributed.Reducer`, that of `DistributedDataParallel`."""

    @functools.wraps(original, updated=())
    def Reducer(params: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(on_device(p) for p in params):
            return original(params, *args, **kwargs)
        with _MapOnHost():
            return original(params, *args, **kwargs)

    return Reducer


def static_graph(original: Callable[..., None]) -> Callable[..., None]:
    """Replace `Reducer._set_static_graph`, which makes such a map."""

    @functools.wraps(original)
    def _set_static_graph(self: Any) -> None:
        with _MapOnHost():
            original(self)

    return _set_static_graph


def mesh(original: Callable[..., None]) -> Callable[..., None]:
    """`DeviceMesh.__init__`: tensors that are spread over a mesh know the operators that `linear` is of on the CPU, and
    attention."""

    @functools.wraps(original)
    def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type == TYPE:
            _linear_in_parts()
            fused_attention.register_dtensor_rules()
        original(self, device_type, *args, **kwargs)

    return __init__


_linear_in_parts = functools.cache(linear_in_parts)  # for good


def coalescing(original: Callable[..., Any]) -> Callable[..., Any]:
    """`_coalescing_manager`: gloo begins no block of calls, and reduces or gathers a list of tensors in one."""

    @functools.wraps(original)
    def _coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False) -> Any:
        return original(group, None if dist.get_backend(group) == TYPE else device, async_ops)

    return _coalescing_manager


def backend(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `Backend(name)`, which resolves all names of backends: without a name it is that of the device, where
    this is the accelerator."""

    @functools.wraps(original)
    def __new__(cls: Any, name: str) -> Any:
        if name == dist.Backend.UNDEFINED:
            accelerator = torch.accelerator.current_accelerator()
            name = TYPE if accelerator is not None and accelerator.type == TYPE else name
        return original(cls, name)

    return __new__
