"""The pairs that judge `tg.port` are of the same networks: converted by hand, their programs agree."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ecosystem.port import recurrent
from ecosystem.port.pair import Pair, load, randomized, weights

HERE = recurrent.PAIRS  # whose packages the tests have anyway
QUICK = ("LSTM in both directions: PyTorch to Keras", "GRU: PyTorch to Flax Linen", "LSTM: PyTorch to Haiku")


@pytest.mark.parametrize(
    "pair", [pytest.param(p, marks=() if p.name in QUICK else pytest.mark.slow, id=p.name) for p in HERE]
)
def test_true(pair: Pair) -> None:
    assert pair.convert is not None and not pair.packages
    source = pair.source()
    before = pair.target()
    assert pair.apart(source, before, 0) > 0.1  # other weights, other outputs
    old = weights(before)
    target = pair.convert(source, before)
    assert not [name for name, value in weights(target).items() if np.array_equal(value, old[name])]
    for size in pair.sizes:
        apart = pair.apart(source, target, size)
        assert apart > 1e-3 if pair.difference else apart < 1e-5, (size, apart)


def test_weights_of_other_shapes_are_refused() -> None:
    program = HERE[0].target()
    name, value = next(iter(weights(program).items()))
    with pytest.raises(ValueError, match=re.escape(f"{name}: {value.T.shape} for {value.shape}")):
        load(program, {name: value.T})


def test_no_two_weights_are_alike() -> None:
    values = np.concatenate([value.ravel() for value in weights(randomized(HERE[0].source(), 5)).values()])
    assert len(set(values.tolist())) > 0.99 * values.size
