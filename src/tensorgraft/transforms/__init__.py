"""Transforms of programs: compilation and its explanation, derivatives, and programs whose values are pytrees of any
kind."""

from tensorgraft.arrays import is_array, is_array_like, is_inexact_array, is_inexact_array_like
from tensorgraft.compiled.explanation import Explanation
from tensorgraft.compiled.uncompiled import UncompiledWarning
from tensorgraft.transforms.abstract import AbstractClassVar, AbstractVar
from tensorgraft.transforms.control_flow import cond, fori_loop, scan, while_loop
from tensorgraft.transforms.custom import custom_vjp
from tensorgraft.transforms.error_if import error_if
from tensorgraft.transforms.eval_shape import ShapeDtype, filter_eval_shape
from tensorgraft.transforms.explain import explain
from tensorgraft.transforms.filtered_checkpoint import filter_checkpoint
from tensorgraft.transforms.filtered_gradients import (
    filter_grad,
    filter_hessian,
    filter_jacfwd,
    filter_jacrev,
    filter_jvp,
    filter_value_and_grad,
    filter_vjp,
)
from tensorgraft.transforms.filtered_jit import assert_max_traces, filter_jit, get_num_traces
from tensorgraft.transforms.filtered_vmap import filter_vmap, if_array
from tensorgraft.transforms.filters import combine, filter, partition
from tensorgraft.transforms.jit import jit, report
from tensorgraft.transforms.module import Module, Partial, field, tree_inference
from tensorgraft.transforms.pformat import tree_pformat
from tensorgraft.transforms.serialisation import tree_deserialise_leaves, tree_serialise_leaves
from tensorgraft.transforms.trees import tree_at, tree_equal
from tensorgraft.transforms.updating import apply_updates

__all__ = [
    "AbstractClassVar",
    "AbstractVar",
    "Explanation",
    "Module",
    "Partial",
    "ShapeDtype",
    "UncompiledWarning",
    "apply_updates",
    "assert_max_traces",
    "combine",
    "cond",
    "custom_vjp",
    "error_if",
    "explain",
    "field",
    "filter",
    "filter_checkpoint",
    "filter_eval_shape",
    "filter_grad",
    "filter_hessian",
    "filter_jacfwd",
    "filter_jacrev",
    "filter_jit",
    "filter_jvp",
    "filter_value_and_grad",
    "filter_vjp",
    "filter_vmap",
    "fori_loop",
    "get_num_traces",
    "if_array",
    "is_array",
    "is_array_like",
    "is_inexact_array",
    "is_inexact_array_like",
    "jit",
    "partition",
    "report",
    "scan",
    "tree_at",
    "tree_deserialise_leaves",
    "tree_equal",
    "tree_inference",
    "tree_pformat",
    "tree_serialise_leaves",
    "while_loop",
]
