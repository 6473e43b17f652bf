"""What the table of tags says holds: of every tag, and of everything that is made of operators with it."""

import numpy as np
import pytest
from tests.operators.test_operators import HOLDS, cplx, real, spd

import tensorgraft.array_api as xp
import tensorgraft.operators as ops
from tensorgraft.operators import tags as table

N = 4


def examples(tag):
    """Matrices, real and complex, that have the tag and no other that does not follow."""
    for kind in (real, cplx):
        a = kind(N, N) + 3 * np.eye(N)
        yield {
            "symmetric": a + a.T,
            "hermitian": a + a.conj().T,
            "positive_semidefinite": spd(N, kind),
            "negative_semidefinite": -spd(N, kind),
            "diagonal": np.diag(np.diag(a)),
            "tridiagonal": np.tril(np.triu(a, -1), 1),
            "lower_triangular": np.tril(a),
            "upper_triangular": np.triu(a),
            "unit_diagonal": a - np.diag(np.diag(a)) + np.eye(N),
            "unitary": np.linalg.qr(a)[0],
        }[tag]


def check(op):
    matrix = np.asarray(op.as_matrix())
    for tag in op.tags:
        assert HOLDS[tag](matrix), f"{type(op).__name__} is not {tag}"


@pytest.mark.parametrize("tag", table.RULES)
def test_rules_hold(tag):
    given = [ops.MatrixLinearOperator(xp.asarray(a, device="numpy"), tag) for a in examples(tag)]
    others = [
        ops.MatrixLinearOperator(xp.asarray(a, device="numpy"), other) for other in table.RULES for a in examples(other)
    ]
    for op in given:
        check(op)
        for made in (op.T, op.H, op.H.T, 2 * op, -op, op * 0.0, ops.InverseLinearOperator(op)):
            check(made)
        if op.dtype.kind == "c":
            check(op * 1j)
        for other in others:
            for made in (op + other, op @ other, ops.KroneckerLinearOperator([op, other]),
                         ops.BlockDiagonalLinearOperator([op, other])):  # fmt: skip
                check(made)
    both = ops.MatrixLinearOperator(xp.asarray(np.tril(real(N, N), -1) + np.eye(N), device="numpy"),
                                    ("lower_triangular", "unit_diagonal"))  # fmt: skip
    for made in (both @ both, both.T, ops.InverseLinearOperator(both), ops.KroneckerLinearOperator([both, both])):
        check(made)
        assert "unit_diagonal" in made.tags


def test_nothing_is_lost_that_is_known():
    def op(tags):
        return ops.MatrixLinearOperator(xp.eye(N, device="numpy"), tags)

    psd = op("positive_semidefinite")
    assert psd.tags == {"positive_semidefinite", "hermitian", "symmetric"}
    assert "negative_semidefinite" in (-psd).tags and "positive_semidefinite" in (psd + psd / 2).tags
    assert op("lower_triangular").T.tags == {"upper_triangular"}
    assert "diagonal" in op(("lower_triangular", "upper_triangular")).tags
    assert "tridiagonal" in (op("tridiagonal") @ op("diagonal")).tags
    minus = op("negative_semidefinite")
    assert "positive_semidefinite" in ops.KroneckerLinearOperator([minus, minus]).tags
    assert "positive_semidefinite" in ops.InverseLinearOperator(psd).tags
    scale = xp.asarray(2.0, device="numpy")
    assert (psd * scale).tags == {"hermitian", "symmetric"}  # the sign of an array is not looked at
