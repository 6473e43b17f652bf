"""Random numbers in PyTorch."""

from __future__ import annotations

from tensorgraft.codegen.targets import Rule
from tensorgraft.codegen.targets.torch.common import unless_float32

RULES: dict[str, Rule] = {
    "fold_in": "key",
    "uniform": lambda w, key, shape, dtype: w.fill(
        "torch.rand(shape, generator=key, dtype=dtype)", key=key, shape=shape, dtype=unless_float32(dtype)),
    "normal": lambda w, key, shape, dtype: w.fill(
        "torch.randn(shape, generator=key, dtype=dtype)", key=key, shape=shape, dtype=unless_float32(dtype)),
    "randint": "torch.randint(low, high, shape, generator=key, dtype=dtype)",
    "permutation": "torch.randperm(n, generator=key)",
    "exponential": lambda w, key, shape, dtype: w.fill(
        "torch.empty(shape, dtype=dtype).exponential_(generator=key)", key=key, shape=shape,
        dtype=unless_float32(dtype)),
    **{f"jax_{name}": f"jax_{name}(key, shape)" for name in ("bits", "uniform", "normal", "split")},
    "jax_fold_in": "jax_fold_in(key, data)",
    "split_key": lambda w, key: w((key, key)),
}  # fmt: skip
