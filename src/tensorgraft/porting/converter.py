"""A mapping as a Python file that converts checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from tensorgraft.codegen.output.text import formatted

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


def converter(
    source_name: str,
    target_name: str,
    steps: Mapping[str, str],
    aliases: Mapping[str, str],
    target_aliases: Mapping[str, str],
) -> str:
    """The text of the file. `steps` are the target's arrays in NumPy's words, `aliases` further names of the source's,
    `target_aliases` of the target's."""
    lines = [f"    target[{name!r}] = {text}" for name, text in steps.items()]
    lines += [f"    target[{alias!r}] = target[{name!r}].copy()" for alias, name in target_aliases.items()]
    constants, ties = "", ""
    if aliases:
        constants = f"\n# further names of arrays, and the name that they have here\nTIES = {dict(aliases)!r}\n"
        ties = "    source = {TIES.get(name, name): x for name, x in source.items()}\n"
    names = {"source": source_name, "target": target_name}
    return formatted(_TEXT.format(**names, aliases=constants, ties=ties, lines="\n".join(lines)))
