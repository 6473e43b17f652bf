"""Functions of generated files that load and save weights, in checkpoints with the names of the source."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensorgraft import files
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import SourceTrace

NAMES = ("nested", "flat", "load_weights", "save_weights", "load_file", "save_file", "TIES", "BUFFERS")
NESTED = '''
def nested(flat: dict) -> dict:
    """{"h.0.w": x} as {"h": [{"w": x}]}: numbers that count from 0 are places in a list."""
    tree: dict = {}
    for path, value in flat.items():
        *parts, last = path.split(".")
        node = tree
        for part in parts:
            node = node.setdefault(part, {})
        node[last] = value

    def listed(node):
        if not isinstance(node, dict):
            return node
        node = {int(k) if k.isdigit() else k: listed(v) for k, v in node.items()}
        return [node[i] for i in range(len(node))] if set(node) == set(range(len(node))) else node

    return listed(tree)
'''

FLAT = '''
def flat(tree, prefix: str = "") -> dict:
    """The opposite of `nested`."""
    if not isinstance(tree, dict | list):
        return {prefix[:-1]: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {k: v for name, child in items for k, v in flat(child, f"{prefix}{name}.").items()}
'''


def functions(trace: SourceTrace, target: Target, stateful: bool, trained: bool = True) -> list[str]:
    """Return the text of `load_weights` and `save_weights`; empty for a program without weights. The program takes
    buffers (`stateful`), parameters (`trained`), or both."""
    if not trace.weights:
        return []
    array = target.load
    ties = dict(trace.aliases)
    parts = []
    if ties:
        parts.append(f"# names of one array, and the name that it has here\nTIES = {ties!r}")
    last = sorted({path.rsplit(".", 1)[-1] for path in trace.buffers})
    condition = "name.rsplit('.', 1)[-1] in BUFFERS"
    if any(path.rsplit(".", 1)[-1] in last for path in trace.parameters):
        last, condition = list(trace.buffers), "name in BUFFERS"
    if trace.buffers and (trained or trace.parameters or not stateful):
        parts.append(f"# arrays that are not trained\nBUFFERS = {{{', '.join(map(repr, last))}}}")
    parts += [NESTED, FLAT]
    without_ties = " if name not in TIES" if ties else ""
    if stateful and not trained:
        filters = f" if {condition}" if trace.parameters else ""
        filters = without_ties + filters.replace(" if ", " and ") if without_ties else filters
        parts.append(f'''
def load_weights(path: str) -> dict:
    """The state in a safetensors file with the names of the original."""
    return nested({{name: {array} for name, x in load_file(path).items(){filters}}})
''')
    elif stateful:
        parts.append(f'''
def load_weights(path: str) -> tuple[dict, dict]:
    """(parameters, buffers) of a safetensors file with the names of the original."""
    weights = {{name: {array} for name, x in load_file(path).items(){without_ties}}}
    buffers = {{name: x for name, x in weights.items() if {condition}}}
    params = {{name: x for name, x in weights.items() if name not in buffers}}
    return nested(params), nested(buffers)
''')
    else:
        selected = f"{{name: x for name, x in weights.items() if not {condition}}}" if trace.buffers else "weights"
        selected = selected.replace("not name in", "name not in").replace(
            "not name.rsplit('.', 1)[-1] in", "name.rsplit('.', 1)[-1] not in"
        )
        parts.append(f'''
def load_weights(path: str) -> dict:
    """The parameters of a safetensors file with the names of the original."""
    weights = {{name: {array} for name, x in load_file(path).items(){without_ties}}}
    return nested({selected})
''')
    tied = "    weights |= {name: weights[source] for name, source in TIES.items()}\n" if ties else ""
    arguments = [name for name, is_taken in (("params", trained or not stateful), ("buffers", stateful)) if is_taken]
    signature = ", ".join(f"{name}: dict" for name in arguments)
    flattened = "{**flat(params), **flat(buffers)}" if len(arguments) > 1 else f"flat({arguments[0]})"
    parts.append(f'''
def save_weights({signature}, path: str) -> None:
    """Write a file that the original loads."""
    weights = {flattened}
{tied}    save_file({{name: {target.save} for name, x in weights.items()}}, path)
''')
    return [p.strip() for p in parts]


def write_weights(weights: Mapping[str, np.ndarray], path: str) -> None:
    """Write weights to a safetensors file."""
    from safetensors.numpy import save

    files.write(path, save({name: np.array(w, order="C") for name, w in weights.items()}))
