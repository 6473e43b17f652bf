"""The examples of docs/operators.md run, one after the other, and give what they say."""

import re
from pathlib import Path

import numpy as np

TEXT = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()


def test_examples():
    names: dict = {}
    for program in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(program, "docs/operators.md", "exec"), names)
        if "found = ops.linear_solve" in program:
            np.testing.assert_allclose(np.asarray(names["found"].value), [1 / 11, 7 / 11])
    a, b, tg, ops = (names[k] for k in ("a", "b", "tg", "ops"))
    matrix = np.asarray(a)
    np.testing.assert_allclose(np.asarray(names["A"].mv(b)), [6, 7])
    np.testing.assert_allclose(np.asarray(ops.linear_solve(names["A"], b).value), [1 / 11, 7 / 11])
    assert names["F"].shape == (4, 4)
    np.testing.assert_allclose(np.asarray(names["H"].as_matrix()), np.diag([12, 48, 108]))
    assert ops.MatrixLinearOperator(a, "lower_triangular").T.tags == {"upper_triangular"}
    assert (names["A"] + 2 * names["A"]).tags == {"positive_semidefinite", "hermitian", "symmetric"}
    assert not (names["A"] @ names["A"]).tags
    inverse = np.linalg.inv(matrix + np.eye(2))
    slope = -np.sum(inverse @ inverse @ np.asarray(b))
    np.testing.assert_allclose(np.asarray(tg.jit(tg.grad(names["loss"]))(names["theta"])), slope)


def test_every_public_name_is_there():
    import tensorgraft.operators as ops

    for name in ops.__all__:
        if name.endswith("LinearOperator"):
            assert name in TEXT or name in {
                "ConjugateLinearOperator", "ProductLinearOperator", "ScaledLinearOperator", "SumLinearOperator",
                "TransposeLinearOperator",
            }, name  # fmt: skip
