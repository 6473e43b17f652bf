"""The styles of each target."""

from __future__ import annotations

import importlib

from tensorgraft.codegen.styles import Style
from tensorgraft.codegen.targets import Target


def style_of(name: str | None, target: Target) -> type[Style]:
    """Return a style of the target, by default its first. Raises ValueError for an unknown name."""
    styles = STYLES.get(target.name, {"functions": "nested.Nested"})
    class_path = next(iter(styles.values())) if name is None else styles.get(name)
    if class_path is None:
        raise ValueError(
            f"style={name!r} is not a style of {target.name}: expected one of {', '.join(map(repr, styles))}"
        )
    module, cls = class_path.split(".")
    return getattr(importlib.import_module(f"tensorgraft.codegen.styles.{module}"), cls)


STYLES = {
    "torch": {"modules": "torch.TorchModules"},
    "jax": {"functions": "nested.Nested", "equinox": "jax.Equinox", "flax": "jax.Flax"},
    "tensorflow": {
        "modules": "tensorflow.TensorFlowModules",
        "keras": "tensorflow.Keras",
        "functions": "nested.Nested",
    },
}
