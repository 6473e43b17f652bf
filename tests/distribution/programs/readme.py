"""README's programs, one after the other, as a reader would type them."""

import re
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

text = (Path(sys.argv[1]) / "README.md").read_text()
names = {"jax_function": jnp.sin, "equinox_model": eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))}
for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
    exec(compile(program, "README.md", "exec"), names)
