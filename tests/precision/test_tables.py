"""The tables of `precision` are those of the installed PyTorch, and the device's kernels those of the tables."""

import pytest
import torch
from tests.precision import oracle

import tensorgraft as tg
from tensorgraft.frontends.torch.core import schema
from tensorgraft.precision.policies import DEFAULT_DTYPES, KINDS, POLICIES

SIZES = {"cuda": 120, "cpu": 128, "xla": 66}


def here(policy):
    """The table's rows of operators that the installed PyTorch has: releases add and drop some."""
    rows = {name: kind for name, kind in POLICIES[policy].items() if schema.overload(name) is not None}
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA"):  # 2.10
        rows.pop("rms_norm", None)
    return rows


def drift(device):
    """Overload -> (our kind, PyTorch's), where they differ."""
    ours, theirs = here(device), oracle.table(device)
    theirs.pop("_cudnn_rnn", None)  # in builds with CUDA alone: an operator that no other device has
    both = {name: (ours.get(name), theirs.get(name)) for name in sorted({*ours, *theirs})}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_installed_pytorch_has_these_tables(device, monkeypatch):
    """Fails when PyTorch changes: then the table in `precision/policies.py` is to follow."""
    assert drift(device) == {}
    monkeypatch.delitem(POLICIES[device], "mm")
    monkeypatch.setitem(POLICIES[device], "prelu", "fp32")
    monkeypatch.setitem(POLICIES[device], "relu", "promote")
    lower = "lower_precision_fp"
    assert drift(device) == {"mm": (None, lower), "prelu": ("fp32", lower), "relu": ("promote", None)}


@pytest.mark.parametrize("policy", POLICIES)
def test_kernels_are_those_of_the_policy(policy):
    # an LSTM is oneDNN's `mkldnn_rnn_layer` there, which the table has
    whole = {"lstm.input": "lower_precision_fp"} if policy == "cpu" else {}
    with tg.autocast_policy(policy):
        assert oracle.table("graft") == here(policy) | whole
    assert oracle.table("graft") == here("cuda")


def test_tables_are_well_formed():
    assert {name: len(table) for name, table in POLICIES.items()} == SIZES
    assert all(kind in KINDS for table in POLICIES.values() for kind in table.values())
    assert set(DEFAULT_DTYPES) == set(POLICIES)
