"""No operator tagged core ATen runs on the CPU for want of a kernel, and no kernel is there without a reason."""

import torch

import tensorgraft as tg
import tensorgraft.frontends.torch
from tensorgraft.frontends.torch.core.spec import SPECS
from tensorgraft.frontends.torch.dispatch import fallback
from tensorgraft.frontends.torch.kernels import reasons


def test_core_aten():
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composites = [
        f"Composite{kind}" for kind in ("ImplicitAutograd", "ExplicitAutograd", "ExplicitAutogradNonFunctional")
    ]
    core, missing = 0, []
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", list)():
            op = getattr(packet, overload)
            if torch.Tag.core in op.tags:
                core += 1
                known = any(has(op.name(), key) for key in ("PrivateUse1", *composites))
                if not known and op not in fallback.decompositions():
                    missing.append(op.name())
    assert core > 150
    assert not missing


def test_a_kernel_that_pytorch_takes_apart_has_a_reason():
    kernels = {name for name, spec in SPECS.items() if not spec.operation and reasons.is_decomposed(name)}
    assert set(reasons.reasons()) == kernels
    names = [name for names in (*reasons.SPEED, *reasons.REASONS.values()) for name in names.split()]
    assert len(names) == len(set(names))


def test_how_operators_are_computed():
    table = tg.torch.operators()
    assert table["exp"] == "operation exp" and table["cumsum"] == "kernel" and table["mse_loss"] == "decomposed"
    assert table["silu"].startswith("kernel: faster") and set(SPECS) <= set(table)
