"""Raw operations over the dtypes that TensorFlow's kernels have, in several shapes, on each backend."""

from __future__ import annotations

import pytest
from tests.frontends.tensorflow.agreement import checked
from tests.frontends.tensorflow.cells import cells, operations
from tests.frontends.tensorflow.common import BACKENDS, saturates
from tests.frontends.tensorflow.raw_operations import FREQUENT, KNOWN, figures, reason_of

OPERATIONS = operations()
_EACH = 36  # operations, and of one's cells, of which one is in the short run


def wrong(op: str, backends: tuple[str, ...], every: int = 1) -> list[str]:
    _, off = checked(op, backends, every)
    return [f"{b}:{cell} {why}" for b in backends for cell, why in off[b].items() if reason_of(b, cell) is None]


@pytest.mark.slow
@pytest.mark.parametrize("op", [op for op in OPERATIONS if not saturates(op)])
def test_operation(op: str) -> None:
    assert wrong(op, BACKENDS) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_some(backend: str) -> None:
    some = OPERATIONS[BACKENDS.index(backend) * _EACH // len(BACKENDS) :: _EACH]
    assert [line for op in some if not saturates(op) for line in wrong(op, (backend,), _EACH)] == []


# what the cells have found
FOUND = ["Mean", "ResourceScatterDiv", "ResourceScatterNdSub", "Svd", "MatrixInverse", "LRNGrad", "Zeta", "Polygamma"]
FOUND += ["Digamma", "Igamma", "ClipByValue", "Dilation2D", "SegmentMean", "MaxPoolWithArgmax", "AssignVariableOp"]


@pytest.mark.parametrize("op", FOUND)
def test_found(op: str) -> None:
    assert wrong(op, (BACKENDS[FOUND.index(op) % len(BACKENDS)],), 8) == []


def test_cells_cover_what_kernels_take() -> None:
    of = {op: cells(op) for op in ("AddV2", "GatherV2", "QuantizedAdd", "TensorListStack")}
    assert {dict(cell.dtypes)["T"] for cell in of["AddV2"]} >= {"bfloat16", "uint16", "complex128"}
    assert {cell.variant for cell in of["AddV2"]} >= {"plain", "empty", "scalar", "broadcast", "ends"}
    assert {dict(cell.dtypes)["Tparams"] for cell in of["GatherV2"]} >= {"bool", "qint8", "uint64"}
    assert {dict(cell.dtypes)["Taxis"] for cell in of["GatherV2"]} == {"int32", "int64"}
    assert dict(of["QuantizedAdd"][0].dtypes) == {"T1": "quint8", "T2": "quint8", "Toutput": "qint32"}
    assert {dict(cell.dtypes)["element_dtype"] for cell in of["TensorListStack"]} >= {"float16", "quint8"}


def test_what_is_known_is_met() -> None:
    met = {op for op in OPERATIONS for form in KNOWN if form.startswith(op)}
    assert len(met) == len(KNOWN)


def test_figures() -> None:
    run = {"cells": {"Add": 3, "Sub": 2, "Neg": 0}, "wrong": {"numpy": ["Add[int8]", "Add[int8]empty"]}}
    assert figures(run, "numpy") == (1, 3, 3, 5)
    assert figures(run, "numpy", {"Sub"}) == (1, 1, 2, 2)
    assert len(set(FREQUENT)) == 300
