"""The pairs that judge `tg.port` are of the same networks: converted by hand, their programs agree."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ecosystem.port import recurrent
from ecosystem.port.pair import CLOSE, Pair, difference, leaves, load, randomized, run, weights
from ecosystem.port.pairs import PAIRS
from ecosystem.port.planted import NETWORKS, Network, planted, unplanted

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
        assert apart > 1e-3 if pair.difference else apart < CLOSE, (size, apart)


@pytest.mark.parametrize("network", [pytest.param(n, id=n.name) for n in NETWORKS])
def test_planted(network: Network) -> None:
    """Of equal values the programs are equal as they are, and differ where a difference is planted."""
    values = network.values(1)
    ours, theirs = network.examples(0)
    expected = leaves(run(network.source(values), *ours))[0]
    for change in ("", *network.equal, *network.changes):
        found = leaves(run(network.target(values, change), *theirs))[0]
        apart = difference(expected, found)
        if change in network.changes:
            assert apart > CLOSE and network.lines(change), change
        else:
            assert apart < CLOSE, change


def test_of_each_kind() -> None:
    assert len(planted()) >= 40 and len(unplanted()) >= 10
    reasons = "epsilon gelu scale rotary order padding corners variance gates bias mask dtype offset tied"
    assert {reason for _, _, reason in planted()} == set(reasons.split())
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) and len([p for p in PAIRS if not p.difference]) >= 24


def test_a_line_without_a_marker_is_an_error() -> None:
    with pytest.raises(LookupError, match=re.escape("encoder.py has no line with `# planted: nothing`")):
        NETWORKS[0].lines("nothing")


def test_weights_of_other_shapes_are_refused() -> None:
    program = HERE[0].target()
    name, value = next(iter(weights(program).items()))
    with pytest.raises(ValueError, match=re.escape(f"{name}: {value.T.shape} for {value.shape}")):
        load(program, {name: value.T})


def test_no_two_weights_are_alike() -> None:
    values = np.concatenate([value.ravel() for value in weights(randomized(HERE[0].source(), 5)).values()])
    assert len(set(values.tolist())) > 0.99 * values.size
