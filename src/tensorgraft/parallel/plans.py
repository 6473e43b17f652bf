"""Ready plans for `tg.parallel.shard_`: who has which part of which weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorgraft.hub.placement import Mesh

Rule = Callable[[str, tuple[int, ...], Mesh], Any]  # (name, shape, mesh) -> spec
Plan = Mapping[str, Any]
EVERY_AXIS = "*"  # in `Output.batch`: all axes of the mesh


@dataclass(frozen=True)
class Output:
    """The placement, in a plan, of the results of a submodule: `tg.parallel.constrain` of tensors with as many
    dimensions.

    Arguments:
        spec: as for `tg.parallel.shard`; () if there is only `batch`.
        batch: axes of the mesh, along which the first dimension of tensors of any number of dimensions is split, if it
            is divisible and as long as that of the submodule's arguments.
    """

    spec: tuple[Any, ...] = ()
    batch: tuple[str, ...] = ()


def data_parallel() -> dict[str, Any]:
    """Every device has the whole model, and a part of the batch (`tg.parallel.shard_batch`).
    Raises nothing."""
    return {}


def fully_sharded(*axes: str, smallest: int = 0) -> dict[str, Any]:
    """Split every parameter, its gradient and its optimizer's state along the largest divisible dimension; parameters
    are gathered only while they are used (ZeRO-3, Rajbhandari et al., arXiv 1910.02054). Results of submodules remain
    split along the batch, so that weights are gathered and not activations.

    Arguments:
        axes: the axes of the mesh over which parameters are split; by default all of them.
        smallest: parameters of fewer elements are not split.

    Returns a plan. Raises nothing; `shard_` raises ValueError for an axis that the mesh does not have.
    """

    def rule(name: str, shape: tuple[int, ...], mesh: Mesh) -> Any:
        names = axes or mesh.names
        count = math.prod(mesh.extents[a] for a in names if a in mesh.extents)
        fitting = [d for d, n in enumerate(shape) if n and n % count == 0]
        if not fitting or math.prod(shape) < smallest:
            return ()
        dim = max(fitting, key=lambda d: shape[d])
        return (None,) * dim + (tuple(names),)

    # two patterns that fit every name: one of parameters, one of submodules
    return {"*": rule, "**": Output(batch=axes or (EVERY_AXIS,))}


# The splits of PyTorch's own layers: a block needs one sum over the axis, at its end, if of each pair of matrices the
# first is split by its outputs and the second by its inputs (Shoeybi et al., Megatron-LM, arXiv 1909.08053).
_COLUMNS, _ROWS = "colwise", "rowwise"
_ATTENTION = {"in_proj_weight": _COLUMNS, "in_proj_bias": _COLUMNS, "out_proj.weight": _ROWS}
_LAYER = {
    **{f"self_attn.{name}": style for name, style in _ATTENTION.items()},
    **{f"multihead_attn.{name}": style for name, style in _ATTENTION.items()},
    "linear1.weight": _COLUMNS,
    "linear1.bias": _COLUMNS,
    "linear2.weight": _ROWS,
}


def tensor_parallel(module: Any, axis: str = "model") -> dict[str, Any]:
    """Split layers: the attention of `nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer` by heads and their
    feed-forward part by its inner width; Hugging Face's models by their `base_model_tp_plan`.

    Arguments:
        module: the model, of which names and sizes are used.
        axis: the axis of the mesh along which layers are split.

    Returns a plan. Raises ValueError for a model that has none of these layers.
    """
    import torch

    plan: dict[str, Any] = {}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.TransformerEncoderLayer | torch.nn.TransformerDecoderLayer):
            for inner, style in _LAYER.items():
                full = f"{name}.{inner}" if name else inner
                if full in parameters:
                    plan[full] = _split(style, parameters[full].dim(), axis)
    for pattern, style in declared(module, "tp").items():
        for name, p in parameters.items():
            owner, _, kind = name.rpartition(".")
            named = matches(name, pattern) or (matches(owner, pattern) and kind in ("weight", "bias"))
            if named and (spec := _split(style, p.dim(), axis)):
                plan[name] = spec
    if not plan:
        raise ValueError(
            f"tensor_parallel: {type(module).__name__} has no nn.TransformerEncoderLayer or DecoderLayer, and no"
            " base_model_tp_plan: write a plan, {'*.up.weight': (axis, None), '*.down.weight': (None, axis), ...}"
        )
    return plan


def _split(style: str, ndim: int, axis: str) -> Any:
    """Return the split of a weight (out, in), or of experts' (experts, out, in), or a bias (out); None if it is
    whole."""
    stack = (None,) * (ndim - 2)
    if style.removeprefix("packed_").startswith(_COLUMNS):
        return (*stack, axis, None) if ndim > 1 else (axis,)
    if style.removeprefix("packed_").startswith((_ROWS, "embedding_rowwise")) and ndim > 1:
        return (axis, None) if style.startswith("embedding") else (*stack, None, axis)
    return None


def declared(module: Any, kind: str) -> dict[str, str]:
    """Return the plan that a model of Hugging Face declares of its own layers; `kind`: "tp", or "ep" of experts."""
    declared_plan: dict[str, str] = {}
    prefix = getattr(module, "base_model_prefix", "")
    base = f"{prefix}." if prefix and hasattr(module, prefix) else ""
    config = getattr(module, "config", None)
    for pattern, style in (getattr(config, f"base_model_{kind}_plan", None) or {}).items():
        declared_plan[base + pattern] = style
    for pattern, style in (getattr(type(module), f"_{kind}_plan", None) or {}).items():
        declared_plan[pattern] = style
    return declared_plan


def matches(name: str, pattern: str) -> bool:
    """Return True if the patterns match; a star matches one part of a name."""
    parts, pattern_parts = name.split("."), pattern.split(".")
    return len(parts) == len(pattern_parts) and all(w in ("*", p) for p, w in zip(parts, pattern_parts, strict=True))


def sequence_parallel(module: Any, axis: str = "model", batch: str | None = "data") -> dict[str, Any]:
    """Extend `tensor_parallel`: between the layers that it splits, activations are split along the sequence
    (Korthikanti et al., arXiv 2205.05198), that is, the results of layer normalisation, (batch, sequence, features).

    Arguments:
        axis: the axis of the mesh along which layers and sequences are split.
        batch: the axis along which the batch is split; None for none.

    Returns a plan. Raises ValueError as `tensor_parallel` does, and where the model has no layer normalisation.
    """
    plan = tensor_parallel(module, axis)
    norms = [n for n, m in module.named_modules() if type(m).__name__.endswith(("LayerNorm", "RMSNorm")) and n]
    if not norms:
        raise ValueError(f"sequence_parallel: {type(module).__name__} has no layer normalisation")
    return plan | {name: Output((batch, axis, None)) for name in norms}
