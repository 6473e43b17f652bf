"""State dicts with quantised tensors as ordinary tensors and strings, for safetensors and other formats that know no
more. The names are those of torchao's functions for this."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from tensorgraft.frontends.torch.quantized.files import described, rebuild
from tensorgraft.frontends.torch.quantized.tensors import is_quantized
from tensorgraft.quantization.scheme import Scheme

KEY = "tensorgraft.quantized"


def flatten_tensor_state_dict(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Flatten a state dict into the arguments of `safetensors.torch.save_file(tensors, path, metadata)`.

    Arguments:
        state: tensors by name; of a quantised one, `"name"`, there will be the codes and scales, `"name.codes"`,
            `"name.scale"`, ... on the CPU, once for all that share a storage. Others stay as they are.

    Returns (tensors, metadata). Raises ValueError where such a name is taken.
    """
    tensors: dict[str, torch.Tensor] = {name: t for name, t in state.items() if not is_quantized(t)}
    flat: dict[str, Any] = {}
    storages: dict[int, str] = {}
    for name, t in state.items():
        if not is_quantized(t):
            continue
        parts, base, scheme, names, (size, stride, offset) = described(t)
        owner = storages.setdefault(t.untyped_storage()._cdata, name)
        flat[name] = [owner, base, scheme, names, size, stride, offset]
        if owner != name:
            continue
        for part, tensor in zip(Scheme(*scheme).parts, parts, strict=True):
            if (part_name := f"{name}.{part}") in state:
                raise ValueError(
                    f"flatten_tensor_state_dict: {name!r} is quantised, but the name {part_name!r} is in use: rename it"
                )
            tensors[part_name] = tensor
    return tensors, {KEY: json.dumps(flat)}


def unflatten_tensor_state_dict(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None, device: Any = "cpu"
) -> dict[str, torch.Tensor]:
    """Return the state dict of which `flatten_tensor_state_dict` made these, on a device.

    Arguments:
        tensors: as `safetensors.torch.load_file` gives them.
        metadata: as `safetensors.safe_open(...).metadata()` gives it.
        device: as `tg.device` gives it, or "cpu".

    Raises ValueError for codes or scales that are missing, or that fit no scheme, and for metadata that are broken.
    """
    part_names: set[str] = set()
    state = {}
    for name, (owner, base, scheme, names, size, stride, offset) in _described(metadata).items():
        encoding, granularity, group, block, axis, symmetric, activation, fixed, table = scheme
        fields = (encoding, granularity, group, tuple(block), axis, symmetric, activation, fixed, tuple(table))
        parts = [f"{owner}.{part}" for part in Scheme(*fields).parts]
        if missing := [part for part in parts if part not in tensors]:
            raise ValueError(f"unflatten_tensor_state_dict: {name!r} is quantised, but {missing[0]!r} is missing")
        part_names.update(parts)
        arrays = [tensors[part].cpu() for part in parts]
        where = (tuple(size), tuple(stride), offset, False)
        state[name] = rebuild(str(torch.device(device)), arrays, tuple(base), fields, names, *where)
    return {**{name: t.to(device) for name, t in tensors.items() if name not in part_names}, **state}


def _described(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the description of each quantised tensor: seven fields, of which the third, its scheme, has nine."""
    try:
        descriptions = json.loads((metadata or {}).get(KEY, "{}"))
        for row in descriptions.values():
            *_, scheme, _names, size, stride, _offset = row
            if (
                len(row) != 7
                or len(scheme) != 9
                or not all(type(x) is list for x in (size, stride, scheme[3], scheme[8]))
            ):
                raise ValueError(f"{row} does not describe a quantised tensor")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"unflatten_tensor_state_dict: the metadata are broken: {error}") from error
    return descriptions
