"""Each raw operation of TensorFlow has a rule or a reason."""

from __future__ import annotations

import re

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tensorgraft.frontends.tensorflow import rules  # noqa: F401
from tensorgraft.frontends.tensorflow.missing_rules import NOT_OF_ARRAYS, PATTERNS, reason_of
from tensorgraft.frontends.tensorflow.planning import CALLS, HANDED_ON
from tensorgraft.frontends.tensorflow.rule import REASONS, RULES
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import PRINTS, STRINGS
from tensorgraft.frontends.tensorflow.version1.operations import RAISED, on_resources
from tensorgraft.frontends.tensorflow.version1.structure import LOOPS_AND_BRANCHES

RAW = {name for name in dir(tf.raw_ops) if op_def_registry.get(name) is not None}
BY_REFERENCE = {n for n in RAW if any(a.is_ref for a in op_def_registry.get(n).input_arg) and on_resources(n) in RULES}
PLANNED = {*CALLS, *HANDED_ON, "Const", "IdentityN", "Placeholder", "NoOp", "ControlTrigger"}
PLANNED |= {*RAISED, *LOOPS_AND_BRANCHES, *BY_REFERENCE}
DEPRECATED = {name for name in RAW if op_def_registry.get(name).HasField("deprecation")}


def test_each_raw_operation_has_a_rule_or_a_reason() -> None:
    said = {*RULES, *PLANNED, *REASONS, *DEPRECATED}
    assert sorted(name for name in RAW - said if reason_of(name) is None) == []


def test_no_reason_is_stale() -> None:
    left = RAW - {*RULES, *PLANNED}
    assert [form for form, _ in PATTERNS if form != "_.*" and not any(re.fullmatch(form, n) for n in left)] == []


def test_how_many_have_a_rule() -> None:
    """Of those that are neither strings, files, sets, devices nor deprecated."""
    with_rule = RAW & {*RULES, *PLANNED} - DEPRECATED - {*STRINGS, *PRINTS}
    counted = {n for n in RAW - DEPRECATED - {*STRINGS, *PRINTS} if n in with_rule or reason_of(n) not in NOT_OF_ARRAYS}
    assert len(with_rule) / len(counted) > 0.96, f"{len(with_rule)} of {len(counted)}"
