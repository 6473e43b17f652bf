"""Reasons for kernels of operators that PyTorch takes apart into others, and how each operator is computed.

PyTorch's decompositions give the right values wherever they were tried. But they are several operators, most of which
convert dtypes and broadcast, and the first of them in a process imports `torch._decomp`, which takes a second.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.spec import SPECS
from tensorgraft.frontends.torch.dispatch.fallback import decompositions
from tensorgraft.frontends.torch.kernels.decomposed import DECOMPOSED

# The time of the decomposition relative to the kernel, on NumPy and, compiled, on JAX: the geometric mean for operands
# of 32 x 32 and 512 x 512, one core, PyTorch 2.9
SPEED: dict[str, tuple[float, float]] = {
    "_fused_rms_norm _fused_rms_norm_backward": (2.1, 4.0),
    "_log_softmax_backward_data _softmax_backward_data": (2.1, 2.0),
    "_safe_softmax": (3.1, 3.1),
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d": (3.8, 4.9),
    "_weight_norm_interface": (1.4, 1.1),
    "addcdiv addcmul": (2.7, 1.9),
    "all": (4.6, 1.2),
    "all.dim all.dims": (3.3, 2.1),
    "baddbmm baddbmm.dtype mv": (1.9, 2.3),
    "binary_cross_entropy_with_logits": (2.7, 3.7),
    "clamp_max clamp_max.Tensor clamp_min clamp_min.Tensor": (2.5, 3.2),
    "deg2rad rad2deg": (2.4, 2.7),
    "dot vdot": (1.9, 1.2),
    "frac": (3.3, 3.5),
    "index_add": (1.6, 1.4),
    "index_copy": (2.1, 1.6),
    "index_fill.int_Scalar index_fill.int_Tensor": (1.7, 0.9),
    "lerp.Scalar lerp.Tensor": (2.6, 2.4),
    "linspace logspace": (3.1, 1.7),
    "logaddexp": (1.3, 2.1),
    "logsumexp": (3.9, 4.5),
    "native_channel_shuffle pixel_unshuffle": (1.4, 2.0),
    "nll_loss2d_forward nll_loss_forward": (2.1, 1.5),
    "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward": (1.6, 1.3),
    "replication_pad1d": (4.2, 9.2),
    "roll": (2.9, 3.3),
    "sgn": (2.2, 3.8),
    "sigmoid_backward tanh_backward": (3.0, 2.8),
    "silu": (2.4, 2.3),
    "silu_backward": (3.3, 7.0),
    "threshold_backward": (2.2, 3.1),
    "tril triu": (2.3, 1.7),
    "upsample_linear1d": (2.6, 5.2),
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d": (4.2, 6.0),
    "xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor": (2.1, 1.5),
    "zero": (3.8, 1.2),
}
REASONS = {
    "the decomposition is as fast, but common programs would wait a second for the import of all of them": """
        floor_divide floor_divide.Scalar native_batch_norm_backward native_dropout_backward pixel_shuffle rsub.Scalar
        rsub.Tensor std.correction std_mean.correction sum
    """,
    "PyTorch's meta function takes an empty list of axes for none, its kernels for all": "nansum",
    "the decomposition refuses complex numbers, which the CPU takes": "nan_to_num",
    "the CPU rounds each step to the dtype, the decomposition the result": "logit",
    "one operator has one derivative, and one product of quantised weights": "linear",
    "decompositions of others call it; PyTorch itself takes it apart since 2.15": "linalg_vector_norm",
    "in place there is no decomposition, and it would run on the CPU": """
        fill.Tensor masked_fill.Scalar masked_fill.Tensor
    """,
    "the CPU rounds its numbers to an integer dtype, the decomposition does not": "threshold",
    "it raises what the CPU raises for values and shapes that the decomposition takes": """
        binary_cross_entropy max_unpool2d max_unpool3d multi_margin_loss multilabel_margin_loss_forward take
    """,
    "where the decomposition is refused, as from 256 rows on, the CPU would compute it": "eye eye.m",
    "PyTorch asks for the values of its ends": """
        linspace.Scalar_Tensor linspace.Tensor_Scalar linspace.Tensor_Tensor logspace.Scalar_Tensor
        logspace.Tensor_Scalar logspace.Tensor_Tensor
    """,
    "it is one composite of the hub, which keeps little in memory; the decomposition asks for the CPU's strides": """
        _scaled_dot_product_flash_attention_for_cpu
    """,
}


@functools.cache
def _core() -> frozenset[schema.Overload]:
    return frozenset(torch.export.default_decompositions().keys())


def is_decomposed(name: str) -> bool:
    """Return whether PyTorch itself takes the operator apart before a compiler sees it, into the core of ATen."""
    op = schema.overload(name)
    return op is not None and torch.Tag.core not in op.tags and op in _core()


def reasons() -> dict[str, str]:
    """Return for each operator that has a kernel although PyTorch takes it apart the reason. Raises nothing."""
    by_name = {
        name: f"faster: the decomposition takes {numpy:.1f} times as long on NumPy, {jax:.1f} on JAX"
        for names, (numpy, jax) in SPEED.items()
        for name in names.split()
    }
    why_not = by_name | {name: reason for reason, names in REASONS.items() for name in names.split()}
    return {name: reason for name, reason in why_not.items() if is_decomposed(name)}  # depends on the installed PyTorch


def operators() -> dict[str, str]:
    """Every overload of ATen that the device computes, by name, and how: "kernel" (with a reason where PyTorch would
    take it apart), "operation NAME" (it is one of the hub), or "decomposed" (by PyTorch). In-place and `out=` forms
    follow from those. Imports PyTorch's decompositions. Raises nothing.

    >>> import tensorgraft as tg
    >>> tg.torch.operators()["exp"], tg.torch.operators()["elu"]
    ('operation exp', 'decomposed')
    """
    return dict(sorted(_operators()))


def _operators() -> Iterator[tuple[str, str]]:
    reason_of = reasons()
    for name, spec in SPECS.items():
        computed_by = f"operation {spec.operation}" if spec.operation else "kernel"
        yield name, f"{computed_by}: {reason_of[name]}" if name in reason_of else computed_by
    functional = (op for op in decompositions() if isinstance(op, schema.Overload) and op.namespace == "aten")
    for op in functional:
        name = schema.short_name(op)
        plain = not schema.signature(op).written and not schema.has_composite(op)
        if name not in SPECS and plain and (name in DECOMPOSED.split() or _lacks_composite(op)):
            yield name, "decomposed"


def _lacks_composite(op: schema.Overload) -> bool:
    return not schema.has_kernel(op, "CompositeExplicitAutograd")
