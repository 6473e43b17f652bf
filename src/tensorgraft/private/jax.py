"""Private names of JAX, by feature (see `private`)."""

from __future__ import annotations

from tensorgraft.private.feature import Feature, Names

NAMES = Names(
    "jax",
    "JAX",
    oldest="0.9",
    tested=("0.9.0", "0.9.2", "0.10.2", "0.11.2", "0.12.0.1"),
    features=(
        Feature(
            "jax backend",
            'the backend "jax"',
            """
            backends.jax
            """,
            """
            jax._src.array: ArrayImpl
            jax._src.compilation_cache: _cache _cache_initialized _cache_initialized_mutex
            jax._src.interpreters.pxla: ExecuteReplicated
            jax._src.lib._jax: batched_device_put buffer_to_dlpack_managed_tensor
            jax._src.xla_bridge: _at_fork_handler_installed _backends
            jax.interpreters.ad: Zero primitive_jvps primitive_transposes
            jax.interpreters.batching: primitive_batchers
            jax.interpreters.mlir: lower_fun register_lowering
            jax.interpreters.partial_eval: DynamicJaxprTracer
            ~jax.stages.Compiled: _executable
            """,
        ),
        Feature(
            "many devices",
            "arrays over many devices and processes on JAX",
            """
            backends.jax.sharding
            """,
            """
            jax._src.api: clean_up
            jax._src.array: ArrayImpl
            jax._src.clusters.ClusterEnv: _cluster_types
            jax._src.compiler: backend_compile_and_load
            jax._src.core: extend_axis_env_nd
            jax._src.distributed.global_state: client num_processes service
            jax._src.lib.xla_client: DeviceList
            jax._src.xla_bridge: _backends
            """,
        ),
        Feature(
            "JAX programs",
            "JAX programs grafted onto other frameworks",
            """
            frontends.jax
            """,
            """
            jax._src.array: ArrayImpl
            jax._src.config: trace_context
            jax._src.interpreters.mlir: _lowerings _platform_specific_lowerings
            jax.interpreters.partial_eval: dce_jaxpr
            ~jax.dtypes.prng_key: _impl
            """,
        ),
        Feature(
            "references",
            "JAX functions that write to arrays (`jax.new_ref`), or call the host",
            """
            frontends.jax.references
            """,
            """
            jax._src.core: internal_mutable_array_effect
            jax._src.state.discharge: discharge_state
            """,
        ),
        Feature(
            "drift",
            "`tensorgraft doctor --drift`",
            """
            cli.drift.jax
            """,
            """
            jax._src.interpreters.mlir: _lowerings _platform_specific_lowerings
            """,
        ),
        Feature(
            "quantised operands",
            "quantised arrays among the operands of JAX functions",
            """
            frontends.jax.quantized
            """,
            """
            jax._src.core: pytype_aval_mappings
            jax._src.dtypes: canonicalize_value_handlers
            """,
        ),
    ),
)
