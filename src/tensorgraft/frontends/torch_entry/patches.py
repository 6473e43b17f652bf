"""The table of all changes that the PyTorch front end makes to PyTorch for the whole process (`patching` applies it).

A row names an attribute of PyTorch and a function that takes its value and returns the replacement (or a class that
replaces it, or a table of such functions by attribute), or a function that registers something. Rows are applied in
order: most at the first use of the device; those `at="import"` when PyTorch is imported, since it is unknown when a
program will need them. Kernels (`torch.library`) are no rows: PyTorch has them by the dispatch key of the device. What
`tensorgraft run` and a trace of `tg.jit` replace is put back when they end (`device/accelerator.py`,
`compiled/watch.py`), and is no row either.
"""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.torch_entry import patching
from tensorgraft.frontends.torch_entry.patching import At, Patch
from tensorgraft.importing import when_imported


def _rows(owner: str, names: str, by: str, reason: str, **rest: Any) -> list[Patch]:
    return [Patch(f"{owner}.{name}", by, reason, **rest) for name in names.split()]


_UNTOLD = "C++ does not say that it meets the device: it loads the front end, and PyTorch's own is put back"
_ACCELERATOR = (
    "setDeviceIndex getDeviceIndex getDeviceCapability setStream getStream synchronizeDevice exchangeDevice"
    " maybeExchangeDevice isAllocatorInitialized emptyCache emptyHostCache getDeviceStats resetAccumulatedStats"
    " resetPeakStats getMemoryInfo"
)
_HOOKS = "device_count set_current_device get_current_device exchange_device maybe_exchange_device"
_STORAGE = (
    "data_ptr new clone __copy__ __deepcopy__ cpu fill_ __getitem__ __setitem__ __delitem__ tolist __iter__ __repr__"
    " _byteswap resize_ resizable is_shared is_pinned _get_filename _share_filename_cpu_ _share_fd_cpu_ _share_cuda_"
    " _shared_incref _shared_decref _resize_with_addr_ _write_file _set_from_file"
)
_KINDS = ("torch._C._autograd.DeviceType", "torch._C._profiler.ProfilerActivity")
_STORAGES = ("torch.storage._StorageBase", "torch.storage.TypedStorage")
_METHODS = ("torch.Tensor", "torch.nn.utils.rnn.PackedSequence", *_STORAGES)
_NO_MEMORY = "no Python device has an allocator"
_NO_CLASS = "PyTorch lets Python devices make their own"

TABLE: list[Patch] = [
    # ---- at `import torch`
    Patch(
        "torch.graft",
        "device.register",
        'the device has its name, by PyTorch\'s own registration: `device="graft"`, `.graft()`, `.is_graft`',
        at="import",
        registers=True,
        also=(
            "torch.utils.backend_registration._privateuse1_backend_name",
            "torch.ops.graft",
            "torch.nn.Module.graft",
            *(f"{owner}.{name}" for owner in _METHODS for name in ("graft", "is_graft")),
            *(f"{owner}.{name}" for owner in _KINDS for name in ("GRAFT", "name", "__str__", "__repr__")),
        ),
    ),
    Patch(
        "torch.nn.parameter.UninitializedTensorMixin._allowed_methods",
        "device.allow_for_uninitialized",
        "`lazy_module.graft()`, as `lazy_module.cuda()`, which PyTorch lists by name",
        at="import",
        registers=True,
    ),
    Patch(
        "torch.distributed",
        "process_groups.register",
        'collectives, by PyTorch\'s own registration: `init_process_group("graft")` may come before all else',
        at="import",
        registers=True,
        also=("torch.distributed.distributed_c10d.Backend.GRAFT",),
    ),
    *_rows(
        "torch",
        "Generator Event Stream",
        "classes.CLASSES",
        "no Python device makes any of its own, and programs derive from the class and import it by name",
        at="import",
        until=_NO_CLASS,
    ),
    Patch(
        "torch._C._get_accelerator",
        "late_loading.accelerator_or_cpu",
        "the same, where FSDP, meshes and process groups ask",
        at="import",
    ),
    Patch(
        "torch._C._accelerator_getAccelerator",
        "late_loading.accelerator",
        "PyTorch takes a registered device for the accelerator; a script that never uses it gets none for that",
        at="import",
    ),
    Patch("torch.UntypedStorage.__new__", "late_loading.storage_new", _NO_MEMORY, at="import", until="there is one"),
    Patch(
        "torch.jit.RecursiveScriptModule.__init__",
        "late_loading.script_init",
        "modules of C++ that hold a parameter are told when it moves, and nothing else knows which are there",
        at="import",
    ),
    Patch(
        "torch.serialization.register_package",
        "late_loading.register_locations",
        "a file may name the device",
        at="import",
        registers=True,
    ),
    Patch(
        "safetensors.safe_open",
        "safetensors_files.Reader",
        "safetensors has its own list of devices, in Rust",
        at="import",
        until="safetensors asks PyTorch for devices",
    ),
    Patch("torch.Tensor.pin_memory", "late_loading.always", _UNTOLD, at="import", waits=True),
    Patch("torch.serialization._load", "late_loading.has_record", _UNTOLD, at="import", waits=True),
    Patch("torch.serialization._legacy_load", "late_loading.has_entry", _UNTOLD, at="import", waits=True),
    Patch(
        "torch.jit.load",
        "late_loading.always",
        _UNTOLD,
        at="import",
        waits=True,
        also=("torch.jit._serialization.load",),
    ),
    Patch(
        "torch.from_dlpack",
        "late_loading.names_device",
        _UNTOLD,
        at="import",
        waits=True,
        also=("torch.utils.dlpack.from_dlpack",),
    ),
    Patch(
        "torch._TorchCompileWrapper.__init__",
        "late_loading.compiles_here",
        '`torch.compile(backend="tensorgraft", options=...)` refuses unknown options where it is called',
        at="import",
        waits=True,
    ),
    *_rows("torch._C", " ".join(f"_accelerator_{name}" for name in _ACCELERATOR.split()),
           "late_loading.always", _UNTOLD, at="import", waits=True),
    *_rows("torch._C", " ".join(f"_accelerator_hooks_{name}" for name in _HOOKS.split()),
           "late_loading.always", _UNTOLD, at="import", waits=True),
    *_rows("torch._C", "_accelerator_getAllocatorSettings _accelerator_setAllocatorSettings",
           "late_loading.always", _UNTOLD, at="import", waits=True),
    # ---- at the first use of the device: quantised tensors
    Patch(
        "torch.Tensor.is_graft_quantized",
        "quantized.tensors.quantized_property",
        "programs that must not import tensorgraft ask whether a tensor is quantised",
        adds=True,
    ),
    Patch("torch.Tensor.nbytes", "quantized.tensors.nbytes_property", "the bytes that codes and scales really take"),
    *_rows(
        "torch.Tensor",
        "numpy tolist",
        "quantized.tensors.of_numbers",
        "C++ copies to the CPU and reads memory there, which codes are not",
    ),
    Patch("torch.Tensor.__reduce_ex__", "quantized.files.reduce", "files and copies keep codes and scales"),
    Patch(
        "torch.serialization.add_safe_globals",
        "quantized.files.register_safe",
        "`weights_only=True` loads quantised tensors",
        registers=True,
    ),
    Patch(
        "multiprocessing.reduction.ForkingPickler[Tensor, Parameter]",
        "quantized.files.register_sending",
        "quantised tensors go between processes as codes and scales",
        registers=True,
    ),
    Patch("torch.Tensor.__repr__", "quantized.interface.repr_of", "a quantised tensor prints its scheme"),
    Patch(
        "torch.optim.Optimizer.add_param_group",
        "quantized.interface.refusing",
        "steps smaller than half a code would be lost silently: quantised parameters with gradients are refused",
    ),
    # ---- tensors over many devices
    Patch(
        "torch.nn.Parameter.__deepcopy__",
        "core.sharded_tensors.copying",
        "gradients of a copy lie as the copy does",
    ),
    Patch(
        "torch.optim.Optimizer._process_value_according_to_param_policy",
        "core.sharded_tensors.loading",
        "the state that an optimizer loads lies as its parameters do",
    ),
    # ---- autocast, autograd
    Patch("torch.clear_autocast_cache", "device.autocast.clear_cache", "casts of weights on the device go as well"),
    Patch(
        "torch.backends.mha.get_fastpath_enabled",
        "device.autocast.fast_path",
        "fused attention has no row in CUDA's autocast table: it is off where CUDA's autocast would have it off",
    ),
    Patch(
        "torch.autograd.graph._engine_run_backward",
        "dispatch.autograd.run_backward",
        "the engine's thread for a device has no trace of the backend's, and knows index 0 alone",
        also=("torch.autograd._engine_run_backward",),
    ),
    *_rows(
        "torch.autograd.forward_ad",
        "make_dual exit_dual_level",
        "dispatch.autograd.FORWARD_MODE",
        "PyTorch's derivative of `linear` as one operator knows no forward mode",
    ),
    Patch(
        "torch._C._distributed_c10d.Reducer._set_static_graph",
        "device.collectives.static_graph",
        "C++ reduces the map of unused parameters by way of pinned memory, which no Python device has",
    ),
    Patch(
        "torch.distributed.Reducer",
        "device.collectives.reducer",
        "C++ reduces the map of unused parameters by way of pinned memory, which no Python device has",
    ),
    Patch(
        "torch.distributed.distributed_c10d.Backend.__new__",
        "device.collectives.backend",
        "without a name PyTorch makes a group for the accelerator alone, whose barrier is one of the CPU",
    ),
    Patch(
        "torch.distributed.distributed_c10d._coalescing_manager",
        "device.collectives.coalescing",
        "gloo has no blocks of calls; the list of tensors is given to it at once, as PyTorch does without a device",
        also=("torch.distributed._coalescing_manager",),
    ),
    Patch(
        "torch.distributed.device_mesh.DeviceMesh.__init__",
        "device.collectives.mesh",
        "DTensor has rules for the operators that `linear` is of, and none for its derivative as one operator",
    ),
    # ---- checkpoints by `torch.distributed.checkpoint`
    Patch(
        "torch.distributed.checkpoint.default_planner._create_write_items",
        "device.sharded_checkpoints.write_items",
        "a tensor that is spread over a mesh is written piece by piece",
        at="checkpoint",
        also=("torch.distributed.checkpoint.planner_helpers._create_write_items",),
    ),
    Patch(
        "torch.distributed.checkpoint.planner_helpers._create_chunk_list",
        "device.sharded_checkpoints.chunk_list",
        "a tensor that is spread over a mesh is read piece by piece",
        at="checkpoint",
    ),
    Patch(
        "torch.distributed.checkpoint.utils.find_tensor_shard",
        "device.sharded_checkpoints.find_shard",
        "a tensor that is spread over a mesh is read and written piece by piece",
        at="checkpoint",
    ),
    Patch(
        "torch.distributed.checkpoint.default_planner.DefaultLoadPlanner.commit_tensor",
        "device.sharded_checkpoints.commit",
        "what has been read for a piece goes to the devices that have it",
        at="checkpoint",
    ),
    Patch(
        "torch.distributed.checkpoint._state_dict_stager.StateDictStager._offload_tensor",
        "device.sharded_checkpoints.staging",
        "an asynchronous save keeps pieces, each by itself",
        at="checkpoint",
    ),
    Patch(
        "torch.distributed.checkpoint.hf_storage.HuggingFaceStorageWriter.write_data",
        "device.checkpoint_files.one_piece_a_file",
        "a safetensors file has one piece of a tensor, and a process here several",
        at="checkpoint",
    ),
    Patch(
        "torch.distributed.checkpoint.filesystem._FileSystemWriter.prepare_global_plan",
        "device.checkpoint_files.new_names",
        "a save that is interrupted leaves the checkpoint that was there before, which PyTorch overwrites",
        at="checkpoint",
    ),
    Patch(
        "torch.distributed.checkpoint.filesystem._FileSystemWriter.finish",
        "device.checkpoint_files.exchange",
        "a save that is interrupted leaves the checkpoint that was there before, which PyTorch overwrites",
        at="checkpoint",
    ),
    Patch(
        "torch.distributed.checkpoint.async_save",
        "device.checkpoint_files.own_group",
        "its thread's collectives and those of the device are both gloo's, and would be taken for each other",
        at="checkpoint",
        also=("torch.distributed.checkpoint.state_dict_saver.async_save",),
    ),
    # ---- moves, module checkpoints, control flow, exchange
    Patch(
        "torch.nn.Module.load_state_dict",
        "device.checkpoints.load_state_dict",
        "a module whose checkpoint does not fit is as it was before",
    ),
    *(
        Patch(
            f"torch._higher_order_ops.{name}.{name}",
            "compiled.control_flow.operators.WRAPPERS",
            "loops and branches on the device are the backend's, eagerly and in `tg.jit`",
            also=(f"torch._higher_order_ops.{name}", *([f"torch.{name}"] if name in ("cond", "while_loop") else [])),
        )
        for name in ("cond", "while_loop", "scan", "associative_scan")
    ),
    Patch(
        "torch.Tensor.data",
        "device.conversion.data",
        "`param.data = ...` moves a parameter between the CPU and the device, as it may with CUDA",
        until="PyTorch has Python devices in its list of compatible tensors",
    ),
    Patch(
        "torch.utils.swap_tensors",
        "device.conversion.swapping",
        "compiled functions know their tensors by identity, and have to look at them again",
    ),
    Patch(
        "torch._has_compatible_shallow_copy_type",
        "device.conversion.compatible",
        "`Module.to` assigns `param.data`, as it does for CUDA",
        until="PyTorch has Python devices in its list of compatible tensors",
    ),
    Patch("torch.Tensor.__dlpack__", "device.dlpack.export", "the backend's array is what is exported"),
    Patch("torch.Tensor.__dlpack_device__", "device.dlpack.export_device", "it is where the backend's array is"),
    Patch(
        "torch.to_dlpack",
        "device.dlpack.to_dlpack",
        "the backend's array is what is exported",
        also=("torch.utils.dlpack.to_dlpack",),
    ),
    Patch(
        "torch.from_dlpack",
        "device.dlpack.from_dlpack",
        "foreign arrays become tensors of the device without a copy",
        also=("torch.utils.dlpack.from_dlpack",),
    ),
    Patch(
        "os.register_at_fork",
        "device.fork_guard.register",
        "a backend whose threads a fork leaves behind refuses, instead of hanging",
        registers=True,
    ),
    # ---- torch.compile, checkpointing
    Patch(
        "torch._TorchCompileInductorWrapper.__call__",
        "graph.inductor.on_the_device",
        "Inductor has no code for the device: its graphs are compiled by the backend",
    ),
    Patch(
        "torch._TorchCompileInductorWrapper.__init__",
        "graph.inductor.prepared",
        "Dynamo is told what is ours when it is first asked for",
    ),
    Patch(
        "torch._TorchCompileWrapper.__init__",
        "graph.inductor.prepared",
        "Dynamo is told what is ours when it is first asked for; options are checked",
    ),
    Patch(
        "torch._dynamo.trace_rules",
        "compiled.in_dynamo.inline_when_called",
        "Dynamo looks into our functions where it follows a call, and begins with none",
        at="compile",
        registers=True,
    ),
    Patch(
        "torch.utils.checkpoint._CheckpointFrame",
        "compiled.autograd.remat.CheckpointFrame",
        "what is not kept is computed again in `tg.jit`, too, where a compiler keeps what it sees twice",
    ),
    Patch(
        "torch.utils.checkpoint.CheckpointFunction.apply",
        "compiled.autograd.remat.without_reentrance",
        "the reentrant variant has no graph that a backward pass outside of `tg.jit` could follow",
    ),
    # ---- torch.accelerator and the current device
    *_rows(
        "torch._C",
        " ".join(f"_accelerator_{name}" for name in _ACCELERATOR.split()),
        "device.runtime.ACCELERATOR",
        "the C++ half of a Python device knows one index and has no allocator, streams or events",
        until="PyTorch asks the device module",
    ),
    Patch(
        "torch.utils._device.DeviceContext.__init__",
        "device.runtime.context",
        "a default device without an index is the current one, where C++ would take index 0",
    ),
    Patch(
        "torch.cuda.is_current_stream_capturing",
        "device.runtime.capturing",
        "libraries ask it before they ask a tensor for its value: a trace of `tg.jit` is such a capture",
        also=("torch.cuda.graphs.is_current_stream_capturing",),
    ),
    Patch(
        "torch.nn.DataParallel.forward",
        "device.runtime.on_one_device",
        "what copies a module between devices is CUDA's C++; one device gives the same results",
    ),
    Patch("torch.Tensor.pin_memory", "device.runtime.pin_memory", "a backend needs no pinned memory"),
    *_rows(
        "torch",
        "tensor as_tensor asarray Tensor.to",
        "device.runtime.resolving",
        "C++ makes index 0 of `graft` without an index, also where another device is the current one",
        at="index",
    ),
    # ---- TorchScript
    *(
        Patch(
            f"torch.jit.{owner}.{name}",
            "device.script_files.SAVING",
            "files name the CPU, with the device's name beside it, so that any PyTorch reads them",
        )
        for owner in ("RecursiveScriptModule", "ScriptModule", "ScriptFunction")
        for name in ("save", "save_to_buffer")
    ),
    Patch(
        "torch.jit.load",
        "device.script_files.load",
        "a file's mark says which device it was on",
        also=("torch.jit._serialization.load",),
    ),
    Patch(
        "torch.jit.RecursiveScriptModule._apply",
        "device.scripted.apply",
        "modules of C++ get what a parameter became that has moved",
    ),
    *(
        Patch(
            f"torch.{owner}.__call__",
            "device.scripted.with_kernel_errors",
            "TorchScript replaces errors of kernels by its own, some of them without the text",
        )
        for owner in ("_C.ScriptMethod", "jit.ScriptFunction")
    ),
    # ---- files, storages, sparse tensors
    *_rows(
        "torch.serialization",
        "_save _legacy_save _load _legacy_load",
        "device.file_locations.FILES",
        "storages of the device are tagged `cpu`, with a record beside, so that any PyTorch loads a file",
    ),
    Patch(
        "torch._utils._rebuild_tensor",
        "device.serialization.rebuild",
        "loaded bytes are kept as an array of the tensor's dtype",
    ),
    Patch(
        "multiprocessing.reduction.ForkingPickler[UntypedStorage]",
        "device.serialization.register_sending",
        "between processes a tensor is copied: the memory of a backend cannot be shared",
        registers=True,
    ),
    *_rows("torch.UntypedStorage", _STORAGE, "device.storages.METHODS",
           "the C++ storage has no memory, which PyTorch's methods read", until=_NO_MEMORY.replace("no", "a", 1)),
    Patch("torch.UntypedStorage.copy_", "device.storages.copying", "either side may be on the device"),
    Patch("torch.Tensor.data_ptr", "device.storages.tensor_data_ptr", "views of one storage have addresses in step"),
    Patch("torch.Tensor.new", "device.storages.tensor_new", "C++ makes it on index 0"),
    Patch("torch.Tensor.new_tensor", "device.storages.tensor_new_tensor", "C++ makes it on index 0"),
    Patch("torch.Tensor.new", "sparse.coo.new", "of sparse tensors, of which C++ asks whether it is CUDA"),
    Patch("torch.Tensor.__reduce_ex__", "sparse.coo.reduce", "of sparse tensors, which PyTorch takes for CUDA's"),
]  # fmt: skip


def apply(at: At) -> None:
    """Make the changes of that time that are not made yet."""
    if at == "use":
        patching.step_aside()
    patching.apply(_rows_at(at))
    if at == "use":
        when_imported("torch.distributed.checkpoint", lambda: apply("checkpoint"))


def undo(at: At) -> None:
    """Take back the changes of that time."""
    patching.undo(_rows_at(at))


def _rows_at(at: At) -> list[Patch]:
    return [row for row in TABLE if row.at == at]


def patches() -> list[Patch]:
    """Return the changes that tensorgraft makes to PyTorch for the whole process, in the order in which they are made.

    Each has a `name`, the reason (`why`), when it is made (`at`: `"import"`, at `import torch`; `"use"`, at the first
    use of the device; `"compile"`, at the first `torch.compile`; `"checkpoint"`, when `torch.distributed.checkpoint` is
    imported; `"index"`, while another device than index 0 is the current one), `since` which version of PyTorch it is
    needed, `until` what, and whether it is in force (`applied`).

    Returns a list of `Patch` records. Raises nothing.

    >>> import tensorgraft as tg
    >>> [p.why for p in tg.torch.patches() if p.name == "torch.Tensor.nbytes"]
    ['the bytes that codes and scales really take']
    """
    return [*TABLE]
