"""Errors for a program that needs the value of an array that is only being traced."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from tensorgraft.compiled import traced_value_errors
from tensorgraft.compiled.source_location import program_frame
from tensorgraft.errors import ShapeError, TracedValueError
from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.hub.array import Array
from tensorgraft.storage import Storage


class _Array(Array, Protocol):
    """The part of `core.array.Array` that errors tell of."""

    _cell: Storage


def _traced(x: _Array) -> traced_value_errors.TracedArray:
    return traced_value_errors.TracedArray(x, x.dtype, x.shape, tracing.origin_of(x._cell), tracing.name_of_trace())


def value_needed(x: _Array, conversion: str) -> TracedValueError:
    return traced_value_errors.value_needed(program_frame(sys._getframe(1)), _traced(x), conversion)


def derivative_lost(x: _Array, conversion: str) -> TracedValueError:
    traced = _traced(x)._replace(trace=tracing.name_of_derivative())
    return traced_value_errors.derivative_lost(program_frame(sys._getframe(1)), traced, conversion)


def shape_needed(name: str, shape: Any, x: _Array) -> ShapeError:
    return traced_value_errors.shape_needed(program_frame(sys._getframe(1)), name, shape, _traced(x))


def result_shape_needed(x: _Array) -> ShapeError:
    return traced_value_errors.result_shape_needed(program_frame(sys._getframe(1)), _traced(x))
