"""Einstein sums on backends, beside NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from tensorgraft.hub import contraction, registry

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ijk,jil,kl->ij", [(2, 3, 4), (3, 2, 5), (4, 5)]),
        ("b...i,b...j->b...ij", [(2, 5, 3), (2, 5, 4)]),
        ("...ij,jk->...ik", [(6, 2, 3), (3, 4)]),
        ("bij,bjk->bik", [(1, 2, 3), (5, 3, 4)]),
        ("b i , b i", [(2, 3), (2, 3)]),
        ("ii->i", [(3, 3)]),
        ("iji->j", [(3, 2, 3)]),
        ("ba", [(2, 3)]),
        ("...ii", [(4, 3, 3)]),
        ("i,i,i->", [(3,), (3,), (3,)]),
        ("ij,i->ji", [(1, 3), (4,)]),
    ],
)
@pytest.mark.parametrize("on", ["numpy", "jax"])
def test_like_numpy(on: str, equation: str, shapes: list[tuple[int, ...]]) -> None:
    xp, arrays = registry.get(on), [RNG.normal(size=s).astype(np.float32) for s in shapes]
    with xp.scope():
        actual = xp.to_numpy(contraction.einsum(xp, equation, *map(xp.asarray, arrays)))
    np.testing.assert_allclose(actual, np.einsum(equation, *arrays), rtol=1e-5, atol=1e-5)


def test_a_label_that_comes_again_in_the_result() -> None:
    x = RNG.normal(size=(2, 3))
    actual = contraction.einsum(registry.get("numpy"), "bi->bii", x)
    np.testing.assert_array_equal(actual, x[:, :, None] * np.eye(3))
