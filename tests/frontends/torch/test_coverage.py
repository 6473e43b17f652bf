"""No operator tagged core ATen runs on the CPU for want of a kernel."""

import torch

import tensorgraft.frontends.torch  # noqa: F401  (registers the kernels)
from tensorgraft.frontends.torch.dispatch import fallback


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
