"""A plan for mixtures of experts: who has which experts."""

from __future__ import annotations

import fnmatch
from typing import Any

from tensorgraft.parallel.plans import declared, matches


def expert_parallel(module: Any, axis: str | tuple[str, ...] = "expert", experts: str | None = None) -> dict[str, Any]:
    """Split the experts of a model over the devices (Lepikhin et al., GShard, arXiv 2006.16668); other weights are
    whole.

    Experts whose weights are stacked (experts, ...) are split by expert: those of Hugging Face's models that have a
    `base_model_ep_plan`, and those of modules whose name or class says "expert" or "moe". Experts that are separate
    modules, in an `nn.ModuleList` of such a name, are split within each expert, because only tensors are split: the
    first matrix by its outputs, and one that leads back to the input width by its inputs.

    Arguments:
        axis: the axis of the mesh along which experts are split, or several axes.
        experts: a pattern of names (`fnmatch`) of stacked weights, instead of those that are found.

    Returns a plan, which goes together with others: `tensor_parallel(model) | expert_parallel(model)`, for example.
    Raises ValueError where there are no such experts.

    >>> import tensorgraft as tg, torch
    >>> model = torch.nn.ModuleDict({"experts": torch.nn.ModuleList(torch.nn.Linear(4, 8) for _ in range(2))})
    >>> tg.parallel.expert_parallel(model)["experts.1.weight"]
    ('expert', None)
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if experts is not None:
        matching = fnmatch.filter(parameters, experts)
    else:
        patterns = [p for p, style in declared(module, "ep").items() if style == "grouped_gemm"]
        matching = [n for n in parameters if any(matches(n, p) for p in patterns)] or _stacked(module)
    plan: dict[str, Any] = dict.fromkeys(matching, (axis,))
    if experts is None and not plan:
        plan = _in_lists(module, axis)
    if not plan:
        missing = "no weights of experts" if experts is None else f"no parameter that fits experts={experts!r}"
        raise ValueError(
            f"expert_parallel: {type(module).__name__} has {missing}: name the stacked ones with experts='*.moe.w*',"
            f" or write a plan, {{'*.moe.w1': ({axis!r},), ...}}"
        )
    return plan


def _says_so(name: str, part: Any) -> bool:
    names = f"{name.rpartition('.')[2]} {type(part).__name__}".lower()
    return "expert" in names or "moe" in names


def _stacked(module: Any) -> list[str]:
    """Parameters of modules that have a stack of matrices, by as many rows as that has matrices."""
    stacked = []
    for name, part in module.named_modules():
        params = dict(part.named_parameters(recurse=False)) if _says_so(name, part) else {}
        counts = {p.shape[0] for p in params.values() if p.dim() > 2}
        stacked += [f"{name}.{n}" if name else n for n, p in params.items() if p.dim() > 1 and p.shape[0] in counts]
    return stacked


def _in_lists(module: Any, axis: str | tuple[str, ...]) -> dict[str, Any]:
    import torch

    plan: dict[str, Any] = {}
    for name, part in module.named_modules():
        if not isinstance(part, torch.nn.ModuleList) or not _says_so(name, part):
            continue
        for number, expert in part.named_children():
            layers = [(n, m) for n, m in expert.named_modules() if isinstance(m, torch.nn.Linear)]
            width = layers[0][1].in_features if layers else 0
            for n, layer in layers:
                full = ".".join(filter(None, (name, number, n)))
                leads_back = layer.out_features == width and layer is not layers[0][1]
                plan[f"{full}.weight"] = (None, axis) if leads_back else (axis, None)
                if layer.bias is not None and not leads_back:
                    plan[f"{full}.bias"] = (axis,)
    return plan
