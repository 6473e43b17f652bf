"""Shapes of what functions of PyTorch's own tensors return, by its fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._pytree import tree_map

from tensorgraft.compiled.source_location import Place, is_ours
from tensorgraft.compiled.traced_value_errors import in_extent
from tensorgraft.errors import ShapeError, TracedValueError
from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract import ShapeDtype


def evaluate(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return what `fn` returns for fake tensors, with descriptions in the place of tensors."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            x = torch.from_numpy(x)
        if isinstance(x, torch.Tensor):
            return mode.from_tensor(x)
        if isinstance(x, ShapeDtype):
            return torch.empty(x.shape, dtype=getattr(torch, x.dtype.name))
        return x

    with mode:
        fakes, named = tree_map(fake, (tuple(args), kwargs))
        try:
            out = fn(*fakes, **named)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise _traced_value_error(error, isinstance(error, DynamicOutputShapeException)) from None
    return tree_map(
        lambda x: ShapeDtype(tuple(x.shape), _numpy_dtype(x.dtype)) if isinstance(x, torch.Tensor) else x, out
    )


def _traced_value_error(error: Exception, sized: bool) -> TracedValueError:
    """Return the error that replaces PyTorch's `error`: a value was read, or (`sized`) the shape of a result depends on
    values."""
    library, location, at = str(Path(torch.__file__).parent), None, error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if not is_ours(file) and not file.startswith(library):
            location = Place(at.tb_frame.f_code, at.tb_lasti)
        at = at.tb_next
    lines = [f"{location.quoted} needs values of tensors now." if location else "Values of tensors are needed now.",
             "Inside filter_eval_shape a tensor has no value yet."]  # fmt: skip
    if sized or (location is not None and in_extent(location.node)):
        lines += ["  keep it static:  Python ints, with min and max",
                  "  bound and mask:  a size n that is always enough, and torch.arange(n) < k"]  # fmt: skip
        return ShapeError("\n".join(lines))
    lines.append("  stay a tensor:  torch.where, torch.cond, or the tensor itself instead of its value")
    return TracedValueError("\n".join(lines))


def _numpy_dtype(dtype: Any) -> np.dtype:
    """Return the NumPy dtype of a dtype of PyTorch's."""
    name = str(dtype).removeprefix("torch.")
    return getattr(dtypes, "bool_" if name == "bool" else name)
