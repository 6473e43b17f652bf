"""Pieces of a product: the channels of heads and gates that are computed together and cut apart afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tensorgraft.porting.graph import ProgramGraph
from tensorgraft.porting.nodes import MOVEMENT, POINTWISE, ValueNode, evaluate, number_of

MOST_PIECES = 8
MOST_IMAGES = 64  # of the channels of a product, in what is computed from it


def channels_of(node: ValueNode) -> np.ndarray:
    """The channel of each element of a product, as `terms.Rows` counts them."""
    if node.op == "convolution":
        n = node.shape[1]
        return np.broadcast_to(np.arange(n).reshape(1, n, *(1,) * (len(node.shape) - 2)), node.shape)
    (_, cw), (_, bw) = node.args[2], node.args[3]
    w = node.args[1]
    wide = [w.shape[a] for a in bw], [w.shape[a] for a in range(len(w.shape)) if a not in cw and a not in bw]
    lead, free = int(np.prod(wide[0], dtype=int)), int(np.prod(wide[1], dtype=int))
    middle = node.size // max(lead * free, 1)
    numbers = np.arange(lead * free).reshape(lead, 1, free)
    return np.broadcast_to(numbers, (lead, middle, free)).reshape(node.shape)


def pieces(graph: ProgramGraph, node: ValueNode) -> list[np.ndarray]:
    """The channels of a product in the pieces into which the program cuts it, by their first channels."""
    if node not in graph.pieces:
        graph.pieces[node] = _pieces(node)
    return graph.pieces[node]


def _pieces(node: ValueNode) -> list[np.ndarray]:
    first = channels_of(node)
    whole = np.arange(int(first.max()) + 1 if first.size else 0)
    found: dict[frozenset[int], np.ndarray] = {}
    for x, image in _images(node):
        if x.op == "slice":
            channels, at = np.unique(image, return_index=True)
            found[frozenset(channels.tolist())] = channels[np.argsort(at)]
    least = [c for key, c in found.items() if not any(other < key for other in found)]
    cut = np.concatenate([*least, whole[:0]])
    rest = np.setdiff1d(whole, cut)  # the reset gate of a first state, which is zeros, has no use
    if len(least) > MOST_PIECES or len(np.unique(cut)) < len(cut) or not least:
        return [whole]
    return sorted([*least, rest] if rest.size else least, key=lambda p: int(p.min()))


def _images(node: ValueNode) -> Iterator[tuple[ValueNode, np.ndarray]]:
    """The values that are computed from a product element by element, with the channel of each element."""
    images, waiting = {node: channels_of(node)}, [node]
    while waiting and len(images) < MOST_IMAGES:
        x = waiting.pop(0)
        for use in x.uses:
            if use in images or use.size > 4 * node.size:
                continue
            if use.op in MOVEMENT:
                images[use] = np.asarray(evaluate(use.op, (images[x], *use.args[1:]), {}))
            elif use.shape == x.shape and (use.op in ("add", "subtract", "affine", "astype") or _is_function(use)):
                images[use] = images[x]
            else:
                continue
            waiting.append(use)
            yield use, images[use]


def _is_function(node: ValueNode) -> bool:
    return node.op in POINTWISE and len(list(node.inputs())) == 1


def complements(node: ValueNode) -> frozenset[int]:
    """The channels of a product that become a gate of which one minus it is used as well: this may be the gate of
    another program, with weights of the other sign."""
    found: set[int] = set()
    gates: set[ValueNode] = set()
    for x, image in _images(node):
        if x.op == "sigmoid" or (x.op in MOVEMENT and x.args[0] in gates):
            gates.add(x)
            if any(u.op == "subtract" and number_of(u.args[0]) == 1 and u.args[1] is x for u in x.uses):
                found.update(np.unique(image).tolist())
    return frozenset(found)
