"""The Array API standard, version 2025.12, on every backend: `import tensorgraft.array_api as xp`.

A backend is a device: `xp.zeros(3, device="jax")`, `x.to_device("numpy")`. Names and meaning are the standard's
(https://data-apis.org/array-api/2025.12/). Beyond it there are the dtypes `float16` and `bfloat16`, and what
`docs/array_api.md` lists.
"""

import math as _math
from typing import TYPE_CHECKING as _TYPE_CHECKING

from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.documentation import document_all as _document_all
from tensorgraft.frontends.array_api.core.fallbacks import fallbacks as fallbacks
from tensorgraft.frontends.array_api.core.taking import take, take_along_axis
from tensorgraft.frontends.array_api.standard import fft, linalg
from tensorgraft.frontends.array_api.standard.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from tensorgraft.frontends.array_api.standard.data_types import astype, can_cast, finfo, iinfo, isdtype, result_type
from tensorgraft.frontends.array_api.standard.elementwise import BINARY as _BINARY
from tensorgraft.frontends.array_api.standard.elementwise import UNARY as _UNARY
from tensorgraft.frontends.array_api.standard.elementwise import __all__ as _elementwise
from tensorgraft.frontends.array_api.standard.info import __array_namespace_info__
from tensorgraft.frontends.array_api.standard.linear_algebra import matmul, matrix_transpose, tensordot, vecdot
from tensorgraft.frontends.array_api.standard.manipulation import (
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    tile,
    unstack,
)
from tensorgraft.frontends.array_api.standard.searching import argmax, argmin, count_nonzero, nonzero, searchsorted
from tensorgraft.frontends.array_api.standard.sets import isin, unique_all, unique_counts, unique_inverse, unique_values
from tensorgraft.frontends.array_api.standard.sorting import argsort, sort
from tensorgraft.frontends.array_api.standard.statistical import (
    cumulative_prod,
    cumulative_sum,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from tensorgraft.frontends.array_api.standard.utility import all, any, diff
from tensorgraft.hub.dtypes import (
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

if _TYPE_CHECKING:
    from tensorgraft.frontends.array_api.declared import *  # noqa: F403
    from tensorgraft.frontends.array_api.standard.elementwise import clip as clip
    from tensorgraft.frontends.array_api.standard.elementwise import where as where
else:
    from tensorgraft.frontends.array_api.standard.elementwise import *  # noqa: F403  (a table of names)

__array_api_version__ = "2025.12"
API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")  # each holds what those before it have

e, inf, nan, pi, newaxis = _math.e, _math.inf, _math.nan, _math.pi, None
bool = bool_

__all__ = [
    *_elementwise,
    "API_VERSIONS",
    "Array",
    "__array_api_version__",
    "__array_namespace_info__",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "astype",
    "bfloat16",
    "bool",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "can_cast",
    "complex128",
    "complex64",
    "concat",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "e",
    "empty",
    "empty_like",
    "expand_dims",
    "eye",
    "fft",
    "finfo",
    "flip",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "full",
    "full_like",
    "iinfo",
    "inf",
    "int16",
    "int32",
    "int64",
    "int8",
    "isdtype",
    "isin",
    "linalg",
    "linspace",
    "matmul",
    "matrix_transpose",
    "max",
    "mean",
    "meshgrid",
    "min",
    "moveaxis",
    "nan",
    "newaxis",
    "nonzero",
    "ones",
    "ones_like",
    "permute_dims",
    "pi",
    "prod",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "searchsorted",
    "sort",
    "squeeze",
    "stack",
    "std",
    "sum",
    "take",
    "take_along_axis",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "var",
    "vecdot",
    "zeros",
    "zeros_like",
]

_document_all({_n: globals()[_n] for _n in __all__}, {_n: _row[0] for _n, _row in (_UNARY | _BINARY).items()})
_document_all({_n: getattr(linalg, _n) for _n in linalg.__all__}, {}, "linalg.")
_document_all({_n: getattr(fft, _n) for _n in fft.__all__}, {}, "fft.")
