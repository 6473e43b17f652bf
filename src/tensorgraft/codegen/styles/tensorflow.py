"""Classes of `tf.Module`, and of Keras."""

from __future__ import annotations

import ast

from tensorgraft.codegen.output.expressions import fill, name
from tensorgraft.codegen.structure.functions import SourceFunction
from tensorgraft.codegen.styles import Definition, Writer
from tensorgraft.codegen.styles.classes import Classes, Member, Scope
from tensorgraft.codegen.styles.modules import ModuleForms
from tensorgraft.codegen.styles.preparing import with_assignments, without_keys
from tensorgraft.codegen.styles.stored import table_of_names
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import SourceStep, SourceTrace, variables


class TensorFlowModules(Classes):
    """`tf.Module`s whose variables have the names and layouts of the source."""

    base = "tf.Module"
    method = "__call__"
    holder = "tf.Module()"
    variable, module = "tf.Variable", "tf.Module"
    clashing = frozenset({"name", "variables", "trainable_variables", "submodules", "name_scope"})

    @classmethod
    def prepare(cls, trace: SourceTrace) -> None:
        without_keys(trace, only_method="dropout")
        with_assignments(trace)

    @classmethod
    def modules(cls) -> ModuleForms:
        return ModuleForms({})

    def assignment(self, writer: Writer, call: SourceStep) -> ast.stmt:
        old, new = call.args
        return ast.Expr(fill("old.assign(new)", old=writer(old), new=writer(new)))

    def new_parameter(self, node: Member, scope: Scope | None) -> ast.expr:
        v = node.parameter
        assert v is not None
        kind = self.initial_kind(node)
        shape: ast.expr = ast.Tuple(self.shape(node, scope))
        dtype = None if v.dtype.name == "float32" else name(self.target.dtype(v.dtype))
        template = "tf.random.normal(s, stddev=0.02, dtype=d)" if kind == "normal" else f"tf.{kind}(s, dtype=d)"
        trainable = ast.Constant(False) if v in self.current.buffers else None
        return fill("tf.Variable(x, trainable=t)", x=fill(template, s=shape, d=dtype), t=trainable)

    def loading(self, trace: SourceTrace) -> list[str]:
        if not trace.weights:
            return []
        model = self.functions[-1].name
        table, of, has_table = table_of_names(self)
        clean = "key.rstrip('_')" if self.clashes() else "key"
        skipped = " if not str(key).startswith('_')"
        walk = "variables" if has_table else "named"
        return [
            *table,
            f'''
def {walk}(part, prefix: str = "") -> dict:
    """The variables of a module, or of a list of them, by their places: "blocks.0.weight"."""
    if isinstance(part, {self.variable}):
        return {{prefix[:-1]: part}}
    if isinstance(part, list):
        items = enumerate(part)
    elif isinstance(part, {self.module}):
        items = ((key, x) for key, x in vars(part).items(){skipped})
    else:
        return {{}}
    return {{k: v for key, x in items for k, v in {walk}(x, f"{{prefix}}{{{clean}}}.").items()}}
'''.strip().replace("{key.rstrip", "{str(key).rstrip"),
            *(
                [
                    f'''
def named(model: {model}) -> dict:
    """The variables of a model by the names that they have in the original."""
    return {{{of("name")}: v for name, v in variables(model).items()}}
'''.strip()
                ]
                if has_table
                else []
            ),
            f'''
def load_weights(path: str) -> {model}:
    """The model with the weights of a safetensors file with the names of the original."""
    model = {model}()
    weights = load_file(path)
    for name, variable in named(model).items():
        variable.assign(weights[name])
    return model
'''.strip(),
            f'''
def save_weights(model: {model}, path: str) -> None:
    """Write a file that the original loads."""
    save_file({{name: v.numpy() for name, v in named(model).items()}}, path)
'''.strip(),
        ]


class Keras(TensorFlowModules):
    """`keras.layers.Layer`s; the program is a `keras.Model`."""

    base = "keras.layers.Layer"
    method = "call"
    holder = "keras.layers.Layer()"
    variable, module = "keras.Variable", "keras.layers.Layer"
    clashing = frozenset(
        [
            "input",
            "output",
            "losses",
            "metrics",
            "weights",
            "variables",
            "name",
            "dtype",
            "path",
            "build",
            "call",
            "trainable",
            "layers",
            "inputs",
            "outputs",
            "loss",
            "optimizer",
            "compute_dtype",
            "built",
            "quantize",
            "summary",
            "save",
            "fit",
            "predict",
            "evaluate",
            "compile",
        ]
    )

    def __init__(self, target: Target, trace: SourceTrace, functions: list[SourceFunction]) -> None:
        super().__init__(target, trace, functions)
        self.imports = {"keras": "import keras"}
        arrays = [*trace.parameters.values(), *trace.buffers.values(), *variables([t for _, t in trace.arguments])]
        if any(v.dtype.kind in "fcV" and v.dtype.name != "float32" for v in arrays):
            self.first_line = "super().__init__(autocast=False)"  # arguments keep their dtypes

    @classmethod
    def modules(cls) -> ModuleForms:
        return ModuleForms({}, ties=False)  # a layer keeps a weight that another one takes the place of

    def base_of(self, d: Definition) -> str:
        return "keras.Model" if d.is_root else self.base

    def new_parameter(self, node: Member, scope: Scope | None) -> ast.expr:
        v = node.parameter
        assert v is not None
        kind = {"normal": "keras.initializers.RandomNormal(stddev=0.02)", "zeros": '"zeros"', "ones": '"ones"'}
        return fill(
            "self.add_weight(shape=s, initializer=i, dtype=d, trainable=t)",
            s=ast.Tuple(self.shape(node, scope)), i=name(kind[self.initial_kind(node)]),
            d=None if v.dtype.name == "float32" else ast.Constant(v.dtype.name),
            t=ast.Constant(False) if v in self.current.buffers else None,
        )  # fmt: skip
