"""Every operation of the hub and every word in ONNX: the model of one call is run by ONNX Runtime, and compared with
what the operation means. The operations are the rows of `tests/hub`."""

from __future__ import annotations

import random
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.codegen import word_cases
from tests.codegen.test_targets import ROWS, WORD_DTYPES, as_vars, compare_results
from tests.codegen.writer import leaves
from tests.hub.cases import operation
from tests.hub.checks import backend, one_of_each_kind
from tests.hub.draw import Draw

from tensorgraft.codegen.recorders.calls import NotExpressibleError
from tensorgraft.codegen.simplification.expanding import expand
from tensorgraft.codegen.trace import Frame, SourceStep, SourceTrace
from tensorgraft.codegen.words import WORDS
from tensorgraft.exporting.formats.onnx import model_bytes
from tensorgraft.exporting.onnx.rule import rules_of
from tensorgraft.exporting.onnx.writing import written
from tensorgraft.hub import dtypes
from tensorgraft.hub.operations import operations
from tensorgraft.hub.recorded.block import Var
from tensorgraft.hub.recorded.tracing import program_backend

ort = pytest.importorskip("onnxruntime")
OPSET = 20
SAMPLED = 3

# What ONNX has no operator for, nor an expression in others.
LACKING = {
    *("erf_inv", "lgamma", "digamma", "bessel_i0e", "bessel_i1e", "igamma", "igammac", "zeta", "polygamma"),
    *("bitcast", "nextafter", "cummax", "cummin", "cumprod", "cumlogsumexp"),
    *("cholesky", "qr", "svd", "svdvals", "eigh", "eig", "lu", "triangular_solve", "householder_product"),
    *("solve", "inv", "lu_solve", "tridiagonal_solve"),
    *("complex", "conj", "real", "imag", "angle", "fft", "ifft", "rfft", "irfft"),
}


ROUNDED = {"layer_norm", "batch_norm", "gelu"}  # attributes of ONNX are float32, and so is the runtime's arithmetic
WITHOUT_NAN = {"reduce_window max"}  # the runtime's MaxPool passes over NaN


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dtype" not in metafunc.fixturenames:
        return
    whole = metafunc.config.getoption("--slow")
    rows = []
    for key in word_cases.CASES if metafunc.function is test_word else ROWS:
        every = WORD_DTYPES[:1] if metafunc.function is test_word else ROWS[key].dtypes
        some = one_of_each_kind(f"onnx {key}", every)
        if whole or zlib.crc32(key.encode()) % SAMPLED == 0:
            rows += [
                pytest.param(key, dtype, id=f"{key}-{dtype}")
                for dtype in (every if whole else [dtypes.float32] if dtypes.float32 in every else some[:1])
            ]
    metafunc.parametrize(("key", "dtype"), rows)


def traced(method: str, arguments: Any) -> tuple[SourceTrace, list[Var]]:
    """The trace of a call."""
    xp = program_backend()
    parameters = list(dict.fromkeys(v for v in leaves(list(arguments)) if type(v) is Var))
    with xp.recording() as calls:
        fn = getattr(xp, method) if method in operations() else WORDS[method].__get__(xp)
        result = fn(*arguments)
    if method in WORDS:  # its results look like what the definition gives
        calls = [SourceStep(method, arguments, {}, result)]
    steps = [SourceStep(c.method, c.args, c.kwargs, c.results) for c in calls]
    result = list(result) if isinstance(result, list | tuple) else result
    root = Frame("call", "", steps, [(f"a{k}", v) for k, v in enumerate(parameters)], result)
    trace = SourceTrace("torch", "call", root, root.arguments, result, {}, {}, {}, {}, {})
    expand(trace, SimpleNamespace(name="onnx", rules=rules_of(OPSET)))  # type: ignore[arg-type]
    return trace, parameters


def run(trace: SourceTrace, parameters: list[Var], arrays: list[np.ndarray]) -> list[np.ndarray]:
    names = [f"a{k}" for k in range(len(parameters))]
    model = written(trace, names, [list(v.shape) for v in parameters], [], OPSET)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model_bytes(model.proto, model.arrays), options, providers=["CPUExecutionProvider"])
    found = session.run(None, dict(zip(names, arrays, strict=True)))
    return [np.asarray(x) for x in found]


def unsupported(key: str, dtype: np.dtype, arguments: Any) -> str | None:
    kinds = {x.dtype for x in leaves(list(arguments)) if isinstance(x, np.ndarray)} | {np.dtype(dtype)}
    if any(dtypes.is_complex(t) for t in kinds):
        return "ONNX's operators take no complex numbers"
    if any(dtypes.is_floating(t) and t.itemsize < 4 for t in kinds):
        return "ONNX Runtime has few kernels for narrow floats on the CPU"
    if dtype == np.float64 and key in ROUNDED:
        return "computed in float32"
    if key in WITHOUT_NAN and any(np.isnan(x).any() for x in leaves(list(arguments)) if isinstance(x, np.ndarray)):
        return "NaN in a maximum"
    return None


def check(key: str, dtype: np.dtype, arguments: Any) -> list[np.ndarray]:
    if (why := unsupported(key, dtype, arguments)) is not None:
        pytest.skip(why)
    variables = as_vars(arguments)
    try:
        trace, parameters = traced(operation(key), variables)
        by_var = dict(zip(map(id, leaves(list(variables))), leaves(list(arguments)), strict=True))
        return run(trace, parameters, [by_var[id(v)] for v in parameters])
    except NotExpressibleError as error:
        assert operation(key) in LACKING or "cannot be written" in str(error)
        pytest.skip(str(error))
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "Type Error" in str(error):
            pytest.skip(f"ONNX Runtime: {str(error)[:200]}")
        raise


def test_operation(key: str, dtype: np.dtype) -> None:
    d = Draw(random.Random(f"{key} 0").randint, dtype)
    arguments = ROWS[key].arguments(d)
    if operation(key) == "nonzero":
        pytest.skip("a shape that depends on values is not traced")
    compare_results(key, ROWS[key], d, arguments, check(key, dtype, arguments))


def test_word(key: str, dtype: np.dtype) -> None:
    d = Draw(random.Random(f"{key} 0").randint, dtype)
    arguments = word_cases.CASES[key](d)
    with np.errstate(all="ignore"):
        wanted = list(map(np.asarray, leaves(WORDS[operation(key)](backend("numpy"), *arguments))))
    for x, y in zip(check(key, dtype, arguments), wanted, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
