"""Private names of PyTorch, by feature (see `private`)."""

from __future__ import annotations

from tensorgraft.private.feature import Feature, Names

NAMES = Names(
    "torch",
    "PyTorch",
    oldest="2.10",
    tested=("2.10.0", "2.11.0", "2.13.0", "2.14.1", "2.15.0"),
    features=(
        Feature(
            "import torch",
            "the device's name, which `import torch` registers",
            """
            frontends.torch_entry.*
            """,
            """
            torch._C: _accelerator_getAccelerator
            torch._C._acc: DeviceGuard
            torch.nn.parameter.UninitializedTensorMixin: _allowed_methods
            torch.utils.backend_registration: _setup_privateuseone_for_python_backend
            """,
        ),
        Feature(
            "process groups",
            '`init_process_group("graft")`',
            """
            frontends.torch_entry.process_groups
            """,
            """
            torch._C._distributed_c10d.Backend: _set_sequence_number_for_group
            torch.distributed.distributed_c10d: _create_process_group_wrapper
            """,
        ),
        Feature(
            "device",
            "the device `graft`",
            """
            frontends.torch
            """,
            """
            torch: _add_batch_dim _disable_dynamo _functionalize_unsafe_set _fused_sdp_choice _remove_batch_dim
              _safe_softmax
            torch.Tensor: _backward_hooks _is_view _make_wrapper_subclass _post_accumulate_grad_hooks _use_count
            torch.UntypedStorage: _cdata _set_from_file _write_file
            torch._C: TensorBase _ExcludeDispatchKeyGuard _VariableFunctions _construct_storage_from_data_pointer
              _current_autograd_node _from_dlpack _get_dispatch_stack_at _nn
              _get_function_stack_at _get_tracing_state _has_storage _increment_version _is_any_autocast_enabled
              _jit_get_all_schemas
              _is_torch_function_mode_enabled _EnableTorchFunction _is_torch_function_enabled
              _len_torch_dispatch_stack _len_torch_function_stack _set_conj _set_neg _set_throw_on_mutable_data_ptr
              _swap_tensor_impl _vmapmode_decrement_nesting _vmapmode_increment_nesting
            torch._C.TensorBase: copy_ numpy
            torch._C._acc: create_empty_tensor
            torch._C._functorch: is_functorch_wrapped_tensor peek_interpreter_stack
            torch._decomp: decomposition_table
            torch._subclasses.fake_tensor: FakeTensorMode
            torch.autograd: _get_sequence_nr
            torch.autograd.forward_ad: _current_level
            torch.backends.mha: _is_fastpath_enabled
            torch.ops.aten: _convolution _ctc_loss _fused_rms_norm_backward _linalg_check_errors _neg_view
              _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
              _thnn_fused_gru_cell _unsafe_view _thnn_fused_lstm_cell _embedding_bag_dense_backward
            torch.utils: _cxx_pytree
            torch.distributions.Distribution: _validate_args
            torch.utils._device: CURRENT_DEVICE DeviceContext _device_constructors
            torch.utils._python_dispatch: TorchDispatchMode _disable_current_modes
            torch.utils._pytree: SUPPORTED_NODES tree_flatten tree_flatten_with_path
            torch.utils.checkpoint: _CheckpointFrame
            ~torch.Tensor: _is_param
            ~torch.TypedStorage: _untyped_storage
            ~torch._ops.OpOverload: _op_dk
            ~torch.autograd.function.FunctionCtx: _raw_saved_tensors
            ~torch.autograd.graph.Node: _sequence_nr
            ~torch.nn.Module: _state_dict_hooks _state_dict_pre_hooks
            ~torch.optim.Optimizer: _optimizer_step_post_hooks _optimizer_step_pre_hooks _step_supports_amp_scaling
            """,
        ),
        Feature(
            "torch backend",
            'the backend "torch"',
            """
            backends.torch
            """,
            """
            torch: _int_mm _weight_int8pack_mm
            torch.Tensor: _make_wrapper_subclass
            torch.UntypedStorage: _cdata
            torch._C: _ExcludeDispatchKeyGuard _get_tracing_state _is_alias_of _is_any_autocast_enabled
              _len_torch_dispatch_stack _len_torch_function_stack _storage_Use_Count
            torch._C._functorch: is_batchedtensor is_functorch_wrapped_tensor is_gradtrackingtensor
              peek_interpreter_stack
            torch._functorch.pyfunctorch: temporarily_clear_interpreter_stack
            torch._higher_order_ops: scan
            torch._subclasses.fake_tensor: DataDependentOutputException DynamicOutputShapeException FakeTensor
              FakeTensorMode
            torch.autograd.forward_ad: _current_level
            torch.fx.graph_module._loader.eval_cache: pop
            torch.ops.aten: _scaled_dot_product_flash_attention_for_cpu
              _scaled_dot_product_flash_attention_for_cpu_backward
            torch.ops.mkldnn: _is_mkldnn_bf16_supported
            torch.utils._python_dispatch: _disable_current_modes
            torch.utils._pytree: tree_flatten
            ~torch._dynamo.assume_constant_result: _dynamo_marked_constant
            """,
        ),
        Feature(
            "torch.compile",
            '`torch.compile(backend="tensorgraft")`',
            """
            frontends.torch.graph.dynamo frontends.torch.compiled.host.cpu_functions frontends.jax.interop.dynamo
            """,
            """
            torch._dynamo: nonstrict_trace optimize
            torch._dynamo.backends.common: aot_autograd
            torch._dynamo.backends.registry: lookup_backend
            """,
            imports=True,
        ),
        Feature(
            "graph breaks",
            "functions of tensorgraft within `torch.compile`",
            """
            frontends.torch.compiled.in_dynamo
            """,
            """
            ~torch._dynamo.trace_rules: BUILTIN_INLINE_WHEN_CALLED
            """,
        ),
        Feature(
            "inductor",
            'programs of the backend "torch" compiled by Inductor',
            """
            backends.torch.program
            """,
            """
            torch._inductor.compile_fx: compile_fx
            torch._subclasses.fake_tensor: FakeTensorMode
            """,
        ),
        Feature(
            "tg.jit",
            "`tg.jit` of PyTorch programs",
            """
            frontends.torch.compiled.jit frontends.torch.compiled.tracing frontends.torch.compiled.guards.assumptions
            frontends.torch.compiled.guards.modules frontends.torch.compiled.guards.straight_keys
            frontends.torch.compiled.guards.retraces frontends.torch.compiled.optimizers.numbers
            frontends.torch.compiled.trace_contexts frontends.torch.compiled.indexing.indices
            frontends.torch.compiled.indexing.masks frontends.torch.compiled.module
            """,
            """
            torch.Tensor: _backward_hooks
            torch._C: _disabled_torch_function_impl _get_dispatch_stack_at _is_any_autocast_enabled
              _is_torch_function_enabled _len_torch_dispatch_stack _len_torch_function_stack
            torch._C._autograd: _top_saved_tensors_default_hooks
            torch._dynamo.eval_frame.OptimizedModule: _call_lazy_check
            torch.utils._pytree: tree_flatten_with_path
            ~torch._dynamo.eval_frame.OptimizedModule: _orig_mod
            torch.nn.modules.batchnorm._BatchNorm: _check_input_dim forward
            torch._C._distributed_c10d: Reducer
            torch._C._functorch: is_functorch_wrapped_tensor peek_interpreter_stack
            torch.autograd: _get_sequence_nr
            torch.autograd.forward_ad: _current_level
            torch.compiler: _is_compiling_flag
            torch.nn.utils.parametrize: _cache_enabled
            torch.optim: _functional
            torch.utils._device: DeviceContext
            torch.utils._python_dispatch: _disable_current_modes
            ~torch.nn.Module: _backward_pre_hooks _forward_hooks _forward_pre_hooks
            """,
        ),
        Feature(
            "tg.explain",
            "`tg.explain` and `tg.parallel.plan` of PyTorch programs",
            """
            frontends.torch.compiled.explain frontends.torch.compiled.meta_device
            """,
            """
            torch.Tensor: _backward_hooks
            torch.UntypedStorage: _cdata
            torch._C: _current_autograd_node _swap_tensor_impl
            torch._C._autograd: _unsafe_set_version_counter
            torch.autograd: _get_sequence_nr
            ~torch.autograd.graph.Node: _sequence_nr
            """,
        ),
        Feature(
            "tg.graft",
            "modules of PyTorch grafted onto other frameworks",
            """
            frontends.torch.graph frontends.jax.interop
            """,
            """
            torch._C: _get_tracing_state _set_tracing_state _from_dlpack
            torch._higher_order_ops.associative_scan: generic_associative_scan
            torch.autograd: _get_sequence_nr
            torch.utils._pytree: SUPPORTED_NODES register_constant tree_flatten
            torch.ops.aten: _neg_view
            """,
        ),
        Feature(
            "tg.export",
            "files of `torch.export` with loops",
            """
            exporting
            """,
            """
            torch._higher_order_ops: scan
            """,
        ),
        Feature(
            "tg.source",
            "source of PyTorch modules",
            """
            frontends.torch.codegen
            """,
            """
            torch._C._functorch: peek_interpreter_stack
            torch.utils._device: _device_constructors
            torch.utils._python_dispatch: TorchDispatchMode
            ~torch._ops.OpOverload: _op_dk
            ~torch.nn.Module: _forward_hooks _forward_pre_hooks _non_persistent_buffers_set
            """,
        ),
        Feature(
            "torch.jit",
            "modules of TorchScript on the device, and their files",
            """
            frontends.torch.device.scripted.* frontends.torch.device.script_files
            """,
            """
            torch.Tensor: _use_count
            torch.jit._builtins: _get_builtin_table
            ~torch.jit.RecursiveScriptModule: _c
            """,
        ),
        Feature(
            "sparse tensors",
            "sparse tensors on the device",
            """
            frontends.torch.sparse.*
            """,
            """
            torch: _validate_compressed_sparse_indices _validate_sparse_coo_tensor_args
            torch.Tensor: _coalesced_ _indices _nnz _values
            torch._C: DisableTorchFunctionSubclass _dispatch_get_registrations_for_dispatch_key
            torch._C._dynamo.eval_frame: set_eval_frame
            torch.ops.aten: _embedding_bag_dense_backward _embedding_bag_sparse_backward _spdiags
              _sparse_compressed_tensor_unsafe _sparse_coo_tensor_with_dims_and_tensors
            """,
        ),
        Feature(
            "torch.distributed",
            "collectives between processes",
            """
            frontends.torch.device.collectives frontends.torch.device.groups
            """,
            """
            torch.distributed.ProcessGroup: _get_backend
            torch.distributed.distributed_c10d: _get_default_store
            torch.distributed.distributed_c10d._world: pg_group_ranks
            torch.utils._python_dispatch: TorchDispatchMode
            ~torch.distributed.ProcessGroup.BackendOptions: _timeout
            """,
        ),
        Feature(
            "checkpoints",
            "`torch.distributed.checkpoint` of tensors on the device",
            """
            frontends.torch.device.checkpoint_files
            """,
            """
            torch.distributed.checkpoint.filesystem._FileSystemWriter: _metadata_exists
            """,
            imports=True,
        ),
        Feature(
            "tensorgraft run",
            "`torch.cuda` under `tensorgraft run`",
            """
            frontends.torch.device.accelerator frontends.torch.device.cuda_legacy
            """,
            """
            torch: _utils
            torch.utils._device: DeviceContext _device_constructors
            """,
        ),
        Feature(
            "torchao",
            "models that torchao has quantised",
            """
            frontends.torch.quantized.torchao frontends.torch.quantized.torchao_formats
            frontends.torch.quantized.torchao_inputs
            """,
            """
            torch.ops.aten: _weight_int4pack_mm_for_cpu
            """,
        ),
        Feature(
            "drift",
            "`tensorgraft doctor --drift`",
            """
            cli.drift.torch
            """,
            """
            torch._C: _jit_get_all_schemas
            torch._decomp: decomposition_table global_decomposition_table
            """,
        ),
        Feature(
            "tg.eval_shape",
            "`tg.eval_shape` of functions that call PyTorch itself",
            """
            transforms.torch_shapes
            """,
            """
            torch._subclasses.fake_tensor: DataDependentOutputException DynamicOutputShapeException FakeTensorMode
            torch.utils._pytree: tree_map
            """,
        ),
    ),
)
