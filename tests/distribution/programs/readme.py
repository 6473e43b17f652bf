"""The programs of README, one after the other, and those of docs/index.md, as a reader would type them."""

import re
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

root = Path(sys.argv[1])
given = {"jax_function": jnp.sin, "equinox_model": eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))}
for page in (root / "README.md", root / "docs" / "index.md"):
    names = dict(given)
    for program in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(program, str(page), "exec"), names)
