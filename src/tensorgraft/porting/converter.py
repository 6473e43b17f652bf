"""A mapping as a Python file that converts checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorgraft.codegen.output.text import formatted

if TYPE_CHECKING:
    from tensorgraft.porting.mapping import Mapping

_TEXT = '''"""Converts a checkpoint of {source} to one of {target}.

    python converter.py IN.safetensors OUT.safetensors
"""

import sys

import numpy as np
from safetensors.numpy import load_file, save_file
{aliases}

def convert(source):
    """The arrays of {target}, by name, from those of {source}."""
{ties}    target = {{}}
{lines}
    return {{name: np.ascontiguousarray(x) for name, x in target.items()}}


if __name__ == "__main__":
    save_file(convert(load_file(sys.argv[1])), sys.argv[2])
'''


def converter(mapping: Mapping) -> str:
    """The text of the file. Raises ValueError where parameters are unmatched."""
    if mapping.unmatched:
        raise ValueError(f"no array is known for {', '.join(mapping.unmatched)}")
    lines = [f"    target[{e.target!r}] = {e.steps}" for e in mapping]
    lines += [f"    target[{a!r}] = target[{n!r}].copy()" for a, n in mapping.target_aliases.items()]
    aliases, ties = "", ""
    if mapping.aliases:
        aliases = f"\n# further names of arrays, and the name that they have here\nTIES = {mapping.aliases!r}\n"
        ties = "    source = {TIES.get(name, name): x for name, x in source.items()}\n"
    names = {"source": mapping.source_name, "target": mapping.target_name}
    return formatted(_TEXT.format(**names, aliases=aliases, ties=ties, lines="\n".join(lines)))
