"""The state of a module as arrays, and sparse tensors among state, arguments and results: each is its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import pytrees
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.tensors import cell_of, cpu_to_numpy, foreign_dtype, to_array
from tensorgraft.frontends.torch.sparse.parts import (
    SparseForm,
    form_of,
    is_sparse,
    named_parts,
    of_sparse_array,
    sparse_array_of,
)
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.sparse_arrays import SparseArray

Tensor = torch.Tensor


class ModuleState:
    """The parameters and buffers of a module by their names in `state_dict()`; of tied ones, the first.

    Of a sparse one they are its parts, `name.values` and for example `name.crow_indices`; indices are always buffers.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self.trained: set[str] = set()  # the names of parameters that require gradients
        self.forms: dict[str, SparseForm] = {}  # of those that are sparse
        self._ties: dict[str, str] = {}  # sparse ones that are another one
        for name, p in module.named_parameters():
            *indices, (values_name, values) = named_parts(name, p).items()
            self.parameters[values_name] = values
            self.buffers.update(indices)
            if p.requires_grad:
                self.trained.add(values_name)
        for name, b in module.named_buffers():
            self.buffers.update(named_parts(name, b))
        first: dict[int, str] = {}
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        for name, t in named:
            if not is_sparse(t):
                continue
            if first.setdefault(id(t), name) == name:
                self.forms[name] = form_of(t)
            else:
                self._ties[name] = first[id(t)]

    def arrays(self, xp: Backend) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return parameters and buffers as arrays of the backend, whose scope it is, in the user's configuration."""

        def out_of(t: Tensor) -> Array:
            dtype = xp.native_dtype(foreign_dtype(t.dtype))
            with xp.scope():
                if t.device.type == TYPE and cell_of(t).backend is xp:
                    return xp.astype(to_array(t.detach()), dtype)
                return xp.astype(xp.asarray(cpu_to_numpy(t.detach().cpu())), dtype)

        return (
            {name: out_of(p) for name, p in self.parameters.items()},
            {name: out_of(b) for name, b in self.buffers.items()},
        )

    def joined(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors by name, of which those of sparse ones are made of their parts. If `tensors` has the other
        names of tied ones, so has the result."""
        state = dict(tensors)
        for name, form in self.forms.items():
            state[name] = form.differentiable([state.pop(f"{name}.{part}") for part in form.part_names])
        for name, other in self._ties.items():
            for part in self.forms[other].part_names:
                if state.pop(f"{name}.{part}", None) is not None:
                    state[name] = state[other]
        return state

    def split(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors by name, parts of those that are sparse. Raises TracedValueError for one that has got another
        layout or size."""
        tensors: dict[str, Tensor] = {}
        for name, t in state.items():
            form = self.forms.get(name)
            if form is not None and (not is_sparse(t) or form_of(t) != form):
                raise TracedValueError(
                    f"the module gives {name} another layout or size, or makes it coalesced or no longer so, which"
                    " changes the names or shapes of its parts: keep the form that it had when it was grafted"
                )
            tensors.update(named_parts(name, t) if form is not None else {name: t})
        return tensors


def is_written(after: Tensor, before: Tensor, array: Array) -> bool:
    """Return True if a buffer has other values than the tensor `before` had, whose array was `array`."""
    cell = cell_of(before)
    return cell.array is not array or (after is not before and cell_of(after) is not cell)


def with_sparse_parts(xp: Backend, leaves: list[Any], structure: Any) -> tuple[list[Any], Any]:
    """Return leaves and structure with the sparse arrays of a framework taken apart."""
    parts = [None if type(x) in _NEVER_SPARSE or xp.is_array(x) else xp.sparse_parts(x) for x in leaves]
    if not any(part is not None for part in parts):
        return leaves, structure
    new = [x if part is None else part for x, part in zip(leaves, parts, strict=True)]
    return pytrees.flatten(pytrees.unflatten(new, structure))


_NEVER_SPARSE = frozenset({int, float, bool, str, type(None)})


def split_sparse(leaves: list[Any], structure: Any) -> tuple[list[Any], Any]:
    """Return leaves and structure with the sparse tensors among them taken apart."""
    if not any(map(is_sparse, leaves)):
        return leaves, structure
    return pytrees.flatten(pytrees.unflatten([sparse_array_of(x) if is_sparse(x) else x for x in leaves], structure))


def joined(tree: Any) -> Any:
    """Return a tree in which sparse arrays of tensors are sparse tensors."""
    leaves, structure = pytrees.flatten(tree, is_leaf=_is_apart)
    if not any(map(_is_apart, leaves)):
        return tree
    return pytrees.unflatten([of_sparse_array(x) if _is_apart(x) else x for x in leaves], structure)


def _is_apart(x: Any) -> bool:
    return type(x) is SparseArray
