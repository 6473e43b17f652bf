"""Prints, as JSON, which names of PyTorch differ from those of a PyTorch without tensorgraft: in its modules and in the
classes there. Run as a script in a process of its own, with TORCH_DEVICE_BACKEND_AUTOLOAD=0."""

import json
import sys
from multiprocessing.reduction import ForkingPickler
from types import ModuleType

import torch
import torch._higher_order_ops
import torch.amp
import torch.cuda.graphs
import torch.func
import torch.jit
import torch.library
import torch.multiprocessing
import torch.optim
import torch.overrides
import torch.utils._device
import torch.utils.checkpoint
import torch.utils.data
import torch.utils.dlpack

torch.utils._device._device_constructors()


def places():
    """(name, owner, attribute) of all that PyTorch's modules and their classes have."""
    seen = set()
    for name, module in [*sys.modules.items()]:
        if not isinstance(module, ModuleType) or name.partition(".")[0] != "torch" or name.startswith("torch.graft"):
            continue
        for key, value in [*vars(module).items()]:
            yield f"{name}.{key}", module, key
            if isinstance(value, type) and str(value.__module__).startswith("torch") and value not in seen:
                seen.add(value)
                owner = f"{value.__module__}.{value.__qualname__}".replace("torch.jit.torch.jit.", "torch.jit.")
                owner = {"torch._tensor.Tensor": "torch.Tensor"}.get(owner, owner)
                yield from ((f"{owner}.{k}", value, k) for k in [*vars(value)])


def snapshot():
    held = {(id(owner), key): (vars(owner)[key], name) for name, owner, key in places()}
    registered = {
        "packages": [*torch.serialization._package_registry],
        "globals": torch.serialization.get_safe_globals(),
        "reducers": ForkingPickler._extra_reducers,
        "uninitialized": torch.nn.parameter.UninitializedTensorMixin._allowed_methods,
    }
    return held, {name: len(of) for name, of in registered.items()}


def changes(before, after):
    """Names and places that are others or new: no modules, which were imported since, nor what PyTorch notes."""
    return {
        place: name
        for place, (value, name) in after.items()
        if (place not in before or before[place][0] is not value)
        and not isinstance(value, ModuleType | set | dict)
        and name not in PYTORCHS_OWN
    }


# what PyTorch itself assigns in the course of a program
PYTORCHS_OWN = {"torch._opaque_base._FakeScriptObject_cls", "torch._dynamo.trace_rules.SKIP_DIRS_RE"}


def main():
    before, registered = snapshot()
    from tensorgraft.frontends import torch_entry

    torch_entry.autoload()
    at_import, _ = snapshot()
    assert "tensorgraft.frontends.torch" not in sys.modules
    (torch.ones(2, device="graft") + 1).tolist()
    at_use, more = snapshot()
    from tensorgraft.frontends.torch.core import devices

    devices.slot_named("numpy")
    devices.on_change[0](1)
    at_index, _ = snapshot()
    devices.on_change[0](0)
    again, _ = snapshot()
    from tensorgraft.frontends.torch_entry import patches, patching

    def named(rows):
        found = {}
        for row in rows:
            for name in (row.name, *row.also):
                if not row.registers or name in row.also or name == "torch.graft":
                    owner, key = patching.located(name)
                    found[id(owner), key] = name
        return found

    table = named(patches.TABLE)
    now = {
        "import": changes(before, at_import),
        "use": changes(before, at_use),
        "index": changes(before, at_index),
        "index 0 again": changes(before, again),
        "table": {place: at_index.get(place, (0, name))[1] for place, name in table.items()},
        "table at import": {
            place: at_import.get(place, (0, name))[1]
            for place, name in named(r for r in patches.TABLE if r.at == "import").items()
        },
    }
    grown = {name for name, n in more.items() if n != registered[name]}
    assert grown == {"packages", "globals", "reducers", "uninitialized"}, grown
    print(json.dumps({when: sorted(names.values()) for when, names in now.items()}))


if __name__ == "__main__":
    main()
