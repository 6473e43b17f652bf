"""Classes of `nn.Module`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tensorgraft.source.expressions import fill, literal, name, text
from tensorgraft.source.functions import Function
from tensorgraft.source.styles.classes import Classes, Node, Scope
from tensorgraft.source.styles.layers import TORCH
from tensorgraft.source.styles.modules import ModuleForms
from tensorgraft.source.styles.preparing import with_assignments, without_keys
from tensorgraft.source.targets import Target
from tensorgraft.source.trace import Step, Trace

if TYPE_CHECKING:
    from tensorgraft.source.writing import FunctionWriter


class TorchModules(Classes):
    missing = "nn.Identity()"

    def __init__(self, target: Target, trace: Trace, functions: list[Function]) -> None:
        super().__init__(target, trace, functions)
        self.imports = {
            "nn": "from torch import nn",
            "load_file": "from safetensors.torch import load_file, save_file",
            "save_file": "from safetensors.torch import load_file, save_file",
        }

    @classmethod
    def prepare(cls, trace: Trace) -> None:
        without_keys(trace)
        with_assignments(trace)

    @classmethod
    def modules(cls) -> ModuleForms:
        return ModuleForms(TORCH, rows=True, reassigned=True)

    def assignment(self, writer: FunctionWriter, call: Step) -> ast.stmt:
        old, new = call.args
        return ast.Expr(fill("old.copy_(new.detach())", old=writer(old), new=writer(new)))

    def new_parameter(self, node: Node, scope: Scope | None) -> ast.expr:
        return fill("nn.Parameter(x)", x=self.initial(node, scope))

    def initial(self, node: Node, scope: Scope | None) -> ast.expr:
        v = node.parameter
        assert v is not None
        shape = self.shape(node, scope)
        size = shape if v.ndim else [ast.Tuple([])]
        dtype = None if v.dtype.name == "float32" else name(self.target.dtype(v.dtype))
        maker = (
            "zeros"
            if (v.ndim < 2 and "bias" in node.path[-1]) or v.dtype.kind not in "fcV"
            else "ones"
            if v.ndim < 2
            else "randn"
        )
        made: ast.expr = ast.Call(name(f"torch.{maker}"), size, [] if dtype is None else [ast.keyword("dtype", dtype)])
        return fill("0.02 * x", x=made) if maker == "randn" else made

    def listed(self, parts: list[ast.expr], node: Node) -> ast.expr:
        parameters = all(n.parameter is not None for n in node.children.values())
        return fill(f"nn.{'ParameterList' if parameters else 'ModuleList'}(x)", x=self.plain_list(parts))

    def declared(self, at: ast.expr, node: Node) -> list[str]:
        if node.parameter is not None and node.parameter in self.current.buffers:
            owner, key = at.value, node.path[-1]  # type: ignore[attr-defined]
            return [text(fill("x.register_buffer(k, v)", x=owner, k=literal(key), v=self.initial(node, None)))]
        return super().declared(at, node)

    def loading(self, trace: Trace) -> list[str]:
        if not trace.weights:
            return []
        model = self.functions[-1].name
        ties, instead, unused = self.names()
        if not (ties or instead or unused):
            load, save = ["    model.load_state_dict(load_file(path))"], ["    save_file(model.state_dict(), path)"]
        else:
            load, save = ["    weights = load_file(path)"], ["    weights = model.state_dict()"]
            load += [f"    weights[{new!r}] = weights.pop({old!r})" for old, new in instead.items()]
            save += [f"    del weights[{a!r}]" for a in ties]
            save += [f"    weights[{old!r}] = weights.pop({new!r})" for old, new in instead.items()]
            load += [f"    weights[{a!r}] = weights[{c!r}]" for a, c in ties.items()]
            if unused:
                load += ["    for name in UNUSED:", "        weights.pop(name, None)"]
            load += ["    model.load_state_dict(weights)"]
            save += ["    save_file(weights, path)"]
        parts = []
        if unused:
            names = ",\n    ".join(map(repr, unused))
            parts.append(f"# arrays of the checkpoint that the program does not use\nUNUSED = (\n    {names},\n)")
        mode = "" if trace.training else ".eval()"
        parts.append("\n".join([
            f"def load_weights(path: str) -> {model}:",
            '    """The model with the weights of a safetensors file with the names of the original."""',
            f"    model = {model}()",
            *load,
            f"    return model{mode}",
        ]))  # fmt: skip
        parts.append("\n".join([
            f"def save_weights(model: {model}, path: str) -> None:",
            '    """Write a file that the original loads."""',
            *save,
        ]))  # fmt: skip
        return parts
