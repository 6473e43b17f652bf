"""Autocast of arrays: operations of a backend cast as the table of the region says, eagerly and compiled."""

import numpy as np
import optree
import pytest
from tests.hub.checks import ABSTRACT, BACKENDS, backend, to_backend, to_host

import tensorgraft as tg
from tensorgraft import precision
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.precision.operations import BY_ARGUMENTS, OPERATORS
from tensorgraft.precision.policies import LOWER, POLICIES, PROMOTE

pytestmark = pytest.mark.sampled

F32, F64, F16, BF16 = dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16
_draw = np.random.default_rng(0)


def drawn(*shape, dtype=F32):
    return _draw.uniform(0.1, 0.9, shape).astype(dtype)


A, B, V = drawn(4, 4), drawn(4, 4), drawn(4)
SPD = A @ A.T + np.eye(4, dtype=F32)
INDICES = np.array([[0, 1, 2, 3]])
# operation -> arguments of it, none of them in low precision
ARGUMENTS = {
    "matmul": (A, B),
    "dot_general": (A, B, ((1,), (0,))),
    "convolution": (drawn(1, 2, 5, 5), drawn(3, 2, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1)),
    "convolution_weights": (drawn(1, 2, 5, 5), drawn(1, 3, 5, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    "pow": (A, B),
    "put_along_axis": (A, INDICES, V[None], 0, "add"),
    "atan2": (A, B),
    "sum": (A, 0),
    "prod": (A, 0),
    "softmax": (A, 1),
    "log_softmax": (A, 1),
    "logsumexp": (A, 1),
    "cumsum": (A, 1),
    "cumprod": (A, 1),
    "attention": (A[None, None], B[None, None], SPD[None, None]),
    "concat": ([A, B], 0),
    "stack": ([A, B], 0),
    "scatter": (A, (INDICES[0],), B),
    "cholesky": (SPD,),
    "eigh": (SPD,),
    "triangular_solve": (SPD, B, True),
    "householder_product": (A, V),
    "lu_solve": (SPD, INDICES[0].astype(np.int32), B),
    "solve": (SPD, B),
    "fft": (A.astype(dtypes.complex64), 0),
    "ifft": (A.astype(dtypes.complex64), 0),
    "irfft": (A.astype(dtypes.complex64), 6, 0),
    "rfft": (A, 0),
}


def low(tree, dtype=BF16):
    return optree.tree_map(
        lambda x: x.astype(dtype) if isinstance(x, np.ndarray) and dtypes.is_floating(x.dtype) else x, tree
    )


def kind(policy, name, *args):
    is_array = ABSTRACT.is_array
    rows = BY_ARGUMENTS[name](lambda x: isinstance(x, np.ndarray) or is_array(x), *args) if name in BY_ARGUMENTS else ""
    table = POLICIES[policy]
    return next((table[row] for row in (rows or OPERATORS[name]).split() if row in table), None)


@pytest.fixture(params=BACKENDS)
def xp(request):
    found = backend(request.param)
    with found.scope():
        yield found


def test_every_operation_and_row_exists():
    for name, rows in OPERATORS.items():
        assert callable(getattr(Backend, name))
        for row in rows.split():
            assert any(row in table for table in POLICIES.values()), row
    for name in BY_ARGUMENTS:
        assert callable(getattr(Backend, name))


def test_outside_and_in_an_island_it_is_the_backend_itself(xp):
    assert precision.autocasting(xp) is xp
    with tg.autocast("bfloat16"):
        assert precision.autocasting(xp) is not xp
        with tg.autocast(enabled=False):
            assert precision.autocasting(xp) is xp


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", [*OPERATORS, *BY_ARGUMENTS])
def test_operands_are_cast_by_the_table(xp, name, policy):
    args = ARGUMENTS.get(name, (A,))
    row = kind(policy, name, *args)
    for given in (args, low(args)):
        if row is None and given is not args and name not in ("sum", "prod", "cumsum", "exp", "concat", "softmax"):
            continue  # not cast, and of linear algebra there is none in low precision
        wanted = given if row is None else low(args) if row == LOWER else args
        if row not in (LOWER, None) and given is not args:  # rounded before it is made wide again
            wanted = given if row == PROMOTE else low(low(args), F32)
        with tg.autocast("bfloat16", policy=policy):
            out = getattr(precision.autocasting(xp), name)(*to_backend(xp, given))
        same = getattr(xp, name)(*to_backend(xp, wanted))
        for x, y in zip(optree.tree_leaves(to_host(xp, out)), optree.tree_leaves(to_host(xp, same)), strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", BACKENDS)
def test_compiled(name):
    xp = backend(name)

    def attention(q, k, scale):
        cast = precision.autocasting(xp)
        scores = cast.matmul(q, cast.matrix_transpose(k))
        weights = cast.softmax(cast.multiply(scores, scale), 1)
        return scores, weights, cast.matmul(weights, k), cast.mean(weights)

    with tg.autocast("bfloat16"):
        compiled = xp.compile(attention)
        with xp.scope():
            q, k = xp.asarray(A), xp.asarray(B)
        out = compiled(q, k, 0.5)
    assert [xp.dtype_of(x) for x in out] == [BF16, F32, BF16, F32]
    with xp.scope():
        want = xp.matmul(xp.astype(q, BF16), xp.astype(xp.matrix_transpose(k), BF16))
        assert np.array_equal(xp.to_numpy(out[0]), xp.to_numpy(want))


def test_what_is_not_eligible_is_left_alone(xp):
    with tg.autocast("bfloat16"):
        cast = precision.autocasting(xp)
        for dtype in (F64, dtypes.int64, dtypes.complex64):
            x = xp.asarray(A.astype(dtype))
            assert xp.dtype_of(cast.matmul(x, x)) == dtype
        assert xp.dtype_of(cast.exp(xp.asarray(A.astype(F64)))) == F64
        x = xp.asarray(A)
        assert cast.astype(x, BF16) is not None and cast.shape(x) == (4, 4)
        assert xp.dtype_of(cast.add(x, x)) == F32


def test_an_explicit_dtype_of_the_result_wins(xp):
    with tg.autocast("bfloat16"):
        out = precision.autocasting(xp).matmul(xp.asarray(A), xp.asarray(B), dtype=F32)
    assert xp.dtype_of(out) == F32
    exact = low(A).astype(F32) @ low(B).astype(F32)
    np.testing.assert_allclose(xp.to_numpy(out), exact, rtol=1e-6)


def test_promotion(xp):
    half, full, brain = (xp.asarray(A.astype(d)) for d in (F16, F32, BF16))
    with tg.autocast("float16", policy="cpu"):
        cast = precision.autocasting(xp)
        assert xp.dtype_of(cast.concat([half, full], axis=0)) == F32
        assert xp.dtype_of(cast.concat([half, half], axis=0)) == F16
        with pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
            cast.concat([half, brain], axis=0)
    with tg.autocast("float16"):
        assert xp.dtype_of(precision.autocasting(xp).atan2(full, half)) == F32


def test_scalars_follow_the_arrays(xp):
    x = xp.asarray(A.astype(BF16))
    with tg.autocast("bfloat16"):
        cast = precision.autocasting(xp)
        assert xp.dtype_of(cast.pow(x, 2.0)) == xp.dtype_of(cast.pow(2.0, x)) == F32
    with tg.autocast("bfloat16", policy="xla"):  # has the scalar exponent alone
        cast = precision.autocasting(xp)
        assert xp.dtype_of(cast.pow(x, 2.0)) == F32 and xp.dtype_of(cast.pow(x, x)) == BF16
