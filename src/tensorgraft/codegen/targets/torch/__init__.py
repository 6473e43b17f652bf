"""PyTorch: methods of tensors, `torch` and `torch.nn.functional`."""

from __future__ import annotations

from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.targets.helpers import torch as helpers
from tensorgraft.codegen.targets.torch import (
    control_flow,
    elementwise,
    indexing,
    neural,
    products,
    random,
    reductions,
    shapes,
)
from tensorgraft.codegen.targets.torch.common import dtype_name

_TABLES = (elementwise, reductions, shapes, indexing, products, random, control_flow, neural)

TARGET = Target(
    name="torch",
    imports={
        "Any": "from typing import Any",
        "Callable": "from collections.abc import Callable",
        "Sequence": "from collections.abc import Sequence",
        "math": "import math",
        "torch": "import torch",
        "F": "import torch.nn.functional as F",
    },
    rules={method: rule for table in _TABLES for method, rule in table.RULES.items()},
    dtype=dtype_name,
    array="torch.Tensor",
    constant="torch.tensor(x, dtype=dtype)",
    infinity="torch.inf",
    nan="torch.nan",
    helpers=helpers,
    title="PyTorch",
    runner="torch",
)
