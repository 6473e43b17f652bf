"""TensorFlow: functions of `tf`, `tf.math`, `tf.nn` and `tf.linalg`."""

from __future__ import annotations

import numpy as np

from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.targets.helpers import tensorflow as helpers
from tensorgraft.codegen.targets.tensorflow import (
    control_flow,
    elementwise,
    indexing,
    neural,
    products,
    random,
    reductions,
    shapes,
)
from tensorgraft.codegen.targets.tensorflow.common import dtype_name

_TABLES = (elementwise, reductions, shapes, indexing, products, random, control_flow, neural)

TARGET = Target(
    name="tensorflow",
    title="TensorFlow",
    key=np.int32,
    imports={
        "Any": "from typing import Any",
        "Callable": "from collections.abc import Callable",
        "Sequence": "from collections.abc import Sequence",
        "math": "import math",
        "np": "import numpy as np",
        "tf": "import tensorflow as tf",
    },
    rules={method: rule for table in _TABLES for method, rule in table.RULES.items()},
    dtype=dtype_name,
    array="tf.Tensor",
    constant="tf.constant(x, dtype)",
    infinity="math.inf",
    nan="math.nan",
    load="tf.constant(x)",
    save="x.numpy()",
    runner="tensorflow",
    helpers=helpers,
)
