"""Private names of TensorFlow, by feature (see `private`)."""

from __future__ import annotations

from tensorgraft.private.feature import Feature, Names

NAMES = Names(
    "tensorflow",
    "TensorFlow",
    oldest="2.20",
    tested=("2.20.0", "2.21.0"),
    features=(
        Feature(
            "tensorflow backend",
            'the backend "tensorflow"',
            """
            backends.tensorflow
            """,
            """
            tensorflow.python.eager.context: context
            tensorflow.python.eager.execute: execute
            tensorflow.python.eager.polymorphic_function.attributes: XLA_COMPILE
            tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction: _call_flat
              from_func_graph
            tensorflow.python.eager.record: could_possibly_record stop_recording
            tensorflow.python.framework.auto_control_deps: AutomaticControlDependencies
            tensorflow.python.framework.ops.EagerTensor: _shape_tuple
            tensorflow.python.ops.gradients_util: PossibleTapeGradientTypes
            ~tensorflow.Module: _track_variable
            ~tensorflow.Tensor: _datatype_enum
            ~tensorflow.python.framework.func_graph.FuncGraph: _create_placeholder_helper _function_captures
            """,
        ),
        Feature(
            "exported programs",
            "programs of JAX within TensorFlow",
            """
            backends.tensorflow.exported
            """,
            """
            tensorflow.compiler.tf2xla.python.xla: call_module call_module_disable_check_platform
            """,
        ),
        Feature(
            "TensorFlow programs",
            "TensorFlow functions grafted onto other frameworks",
            """
            frontends.tensorflow
            """,
            """
            tensorflow.python.autograph.core.ag_ctx: ControlStatusCtx
            tensorflow.python.autograph.core.ag_ctx.Status: ENABLED
            tensorflow.python.eager.context: context
            tensorflow.python.eager.execute: execute
            tensorflow.python.framework.function_def_to_graph: function_def_to_graph
            tensorflow.python.framework.ops.EagerTensor: _shape_tuple
            tensorflow.python.framework.ops.gradient_registry: lookup
            tensorflow.python.pywrap_tfe: TFE_FromDlpackCapsule TFE_ToDlpackCapsule
            ~tensorflow.Tensor: _handle_data
            ~tensorflow.python.eager.polymorphic_function.polymorphic_function.Function: _autograph
            """,
        ),
        Feature(
            "TensorFlow 1",
            "graphs and SavedModels of TensorFlow 1",
            """
            frontends.tensorflow.version1
            """,
            """
            tensorflow.python.framework.function_def_to_graph: function_def_to_graph_def
            """,
            imports=True,
        ),
        Feature(
            "tensorgraft run",
            "TensorFlow programs under `tensorgraft run`",
            """
            frontends.tensorflow.function_override
            """,
            """
            tensorflow.python.eager.polymorphic_function.atomic_function.AtomicFunction: call_flat
            tensorflow.python.eager.record: stop_recording
            tensorflow.python.ops.handle_data_util: set_handle_data
            ~tensorflow.Tensor: _handle_data
            ~tensorflow.python.eager.polymorphic_function.atomic_function.AtomicFunction: _bound_context
            """,
        ),
    ),
)
