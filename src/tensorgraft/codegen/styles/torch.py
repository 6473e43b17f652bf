"""Classes of `nn.Module`."""

from __future__ import annotations

import ast

from tensorgraft.codegen.output.expressions import fill, literal, name, text
from tensorgraft.codegen.structure.functions import Invoke, SourceFunction
from tensorgraft.codegen.styles import Definition, Writer
from tensorgraft.codegen.styles.classes import Classes, Member, Scope, filled
from tensorgraft.codegen.styles.layers import TORCH
from tensorgraft.codegen.styles.modules import ModuleForms
from tensorgraft.codegen.styles.preparing import with_assignments, without_keys
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import SourceStep, SourceTrace


class TorchModules(Classes):
    missing = "nn.Identity()"
    indexed = True

    def __init__(self, target: Target, trace: SourceTrace, functions: list[SourceFunction]) -> None:
        super().__init__(target, trace, functions)
        self.imports = {
            "nn": "from torch import nn",
            "load_file": "from safetensors.torch import load_file, save_file",
            "save_file": "from safetensors.torch import load_file, save_file",
        }

    @classmethod
    def prepare(cls, trace: SourceTrace) -> None:
        without_keys(trace)
        with_assignments(trace)

    @classmethod
    def modules(cls) -> ModuleForms:
        return ModuleForms(TORCH, rows=True, reassigned=True, recurrent={"LSTM": "nn.LSTM", "GRU": "nn.GRU"})

    def assignment(self, writer: Writer, call: SourceStep) -> ast.stmt:
        old, new = call.args
        return ast.Expr(fill("old.copy_(new.detach())", old=writer(old), new=writer(new)))

    def new_parameter(self, node: Member, scope: Scope | None) -> ast.expr:
        return fill("nn.Parameter(x)", x=self.initial(node, scope))

    def initial(self, node: Member, scope: Scope | None) -> ast.expr:
        v = node.parameter
        assert v is not None
        shape = self.shape(node, scope)
        size: list[ast.expr] = shape if v.ndim else [ast.Tuple([])]
        dtype = None if v.dtype.name == "float32" else name(self.target.dtype(v.dtype))
        maker = {"normal": "randn"}.get(kind := self.initial_kind(node), kind)
        value: ast.expr = ast.Call(name(f"torch.{maker}"), size, [] if dtype is None else [ast.keyword("dtype", dtype)])
        return fill("0.02 * x", x=value) if maker == "randn" else value

    def base_of(self, d: Definition) -> str:
        return "nn.Sequential" if any(k.isdigit() for k in self.trees[self.current].children) else self.base

    def constructor(self, f: SourceFunction, d: Definition) -> list[str]:
        tree = self.trees[f]
        row = Member((), {k: n for k, n in tree.children.items() if k.isdigit()})
        if not row.children:
            return super().constructor(f, d)
        self.trees[f] = Member((), {k: n for k, n in tree.children.items() if not k.isdigit()})
        lines = super().constructor(f, d)[1:]
        self.trees[f] = tree
        super_call: ast.expr = ast.Call(name("super().__init__"), [self.element(n, None) for n in filled(row)], [])
        return [text(super_call), *lines]

    def definition(self, f: SourceFunction, d: Definition) -> str:
        class_text = super().definition(f, d)
        if not (f.is_module and _is_row(f)):
            return class_text
        return class_text[: class_text.index("    def forward(")].rstrip()  # nn.Sequential has its own

    def element(self, node: Member | None, scope: Scope | None) -> ast.expr:
        if node is not None and self.is_linear(node):
            out, width = self.shape(node.children["weight"], scope)
            bias = None if "bias" in node.children else ast.Constant(False)
            return fill("nn.Linear(n, m, bias=b)", n=width, m=out, b=bias)
        return super().element(node, scope)

    def later(self, at: ast.expr, node: Member) -> list[str]:
        return [] if self.is_linear(node) else super().later(at, node)

    def is_linear(self, node: Member) -> bool:
        """Return True for a layer that is not called, but whose parameters are used."""
        path = ".".join([*self.current.paths[0], *node.path])
        weight = node.children.get("weight")
        return (
            node.is_holder
            and self.trace.containers.get(path, "").endswith("Linear")
            and {"weight"} <= set(node.children) <= {"weight", "bias"}
            and weight is not None
            and weight.parameter is not None
            and weight.parameter.ndim == 2
            and not any(n.parameter in self.current.buffers for n in node.children.values())
        )

    def listed(self, parts: list[ast.expr], node: Member) -> ast.expr:
        parameters = all(n.parameter is not None for n in node.children.values())
        return fill(f"nn.{'ParameterList' if parameters else 'ModuleList'}(x)", x=self.plain_list(parts))

    def declared(self, at: ast.expr, node: Member) -> list[str]:
        if node.parameter is not None and node.parameter in self.current.buffers:
            owner, key = at.value, self.attribute(node.path[-1])  # type: ignore[attr-defined]
            return [text(fill("x.register_buffer(k, v)", x=owner, k=literal(key), v=self.initial(node, None)))]
        return super().declared(at, node)

    def parameter_name(self, path: str) -> str:
        """Return the name in a state_dict: keywords of Python and names that `nn.Module` has are no attributes."""
        return ".".join(part if part.isdigit() else self.attribute(part) for part in path.split("."))

    def loading(self, trace: SourceTrace) -> list[str]:
        if not trace.weights:
            return []
        model = self.functions[-1].name
        ties, renamed, unused = self.names()
        names_in_file = {path: self.parameter_name(path) for path in trace.weights if path not in (*renamed, *unused)}
        renamed |= {path: name for path, name in names_in_file.items() if name != path}
        if not (ties or renamed or unused):
            load, save = ["    model.load_state_dict(load_file(path))"], ["    save_file(model.state_dict(), path)"]
        else:
            load, save = ["    weights = load_file(path)"], ["    weights = model.state_dict()"]
            load += [f"    weights[{new!r}] = weights.pop({old!r})" for old, new in renamed.items()]
            save += [f"    del weights[{a!r}]" for a in ties]
            save += [f"    weights[{old!r}] = weights.pop({new!r})" for old, new in renamed.items()]
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


def _is_row(f: SourceFunction) -> bool:
    """Return True if modules are numbered 0, 1, ... and each takes the result of the one before."""
    x: object = f.arguments[0] if len(f.arguments) == 1 else None
    for call in f.calls:
        if not isinstance(call, Invoke) or not call.path or len(call.path) > 1 or not call.path[0].isdigit():
            return False
        if list(call.args) != [x] or len(call.results) != 1:
            return False
        x = call.results[0]
    return bool(f.calls) and f.results == [x]
