"""Classes of Equinox, and of Flax (nnx)."""

from __future__ import annotations

import ast
from typing import Any

from tensorgraft.codegen.output.expressions import fill, name
from tensorgraft.codegen.structure.functions import SourceFunction
from tensorgraft.codegen.styles import Definition, Writer
from tensorgraft.codegen.styles.classes import Classes, Member, Scope
from tensorgraft.codegen.styles.modules import ModuleForms
from tensorgraft.codegen.styles.preparing import with_assignments
from tensorgraft.codegen.styles.stored import table_of_names
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import SourceStep, SourceTrace, Var


class _JaxClasses(Classes):
    method = "__call__"
    first_line = ""

    def array(self, node: Member, scope: Scope | None, key: ast.expr) -> ast.expr:
        v = node.parameter
        assert v is not None
        shape = self.shape(node, scope)
        kind = self.initial_kind(node)
        dtype = None if v.dtype.name == "float32" else name(self.target.dtype(v.dtype))
        size = shape[0] if len(shape) == 1 else ast.Tuple(shape)
        if kind == "normal":
            template = f"0.02 * jax.random.normal(key, size{', dtype' if dtype else ''})"
            return fill(template, key=key, size=ast.Tuple(shape), dtype=dtype)
        return fill(f"jnp.{kind}(size, dtype)" if dtype else f"jnp.{kind}(size)", size=size, dtype=dtype)


class Equinox(_JaxClasses):
    """`eqx.Module`s. Layers of the source are classes of the file: those of `eqx.nn` take no batches."""

    base = "eqx.Module"
    dictionaries = True

    def __init__(self, target: Target, trace: SourceTrace, functions: list[SourceFunction]) -> None:
        super().__init__(target, trace, functions)
        self.imports = {"eqx": "import equinox as eqx"}

    @classmethod
    def modules(cls) -> ModuleForms:
        return ModuleForms({}, ties=False)

    def parameter(self, writer: Writer, v: Var) -> ast.expr:
        at = super().parameter(writer, v)
        if v in writer.function.buffers and v.dtype.kind in "fcV":
            return fill("jax.lax.stop_gradient(x)", x=at)
        return at

    def stateful_result(self, trace: SourceTrace) -> Any:
        return trace.result, {p: trace.written.get(p, v) for p, v in trace.buffers.items()}

    def given(self, f: SourceFunction) -> list[ast.keyword]:
        return [ast.keyword("key", self.key)] if self.takes_key(f) else []

    def constructor_arguments(self, f: SourceFunction) -> list[str]:
        return ["*", "key: jax.Array"] if self.takes_key(f) else []

    def new_parameter(self, node: Member, scope: Scope | None) -> ast.expr:
        return self.array(node, scope, self.key)

    def constructor(self, f: SourceFunction, d: Definition) -> list[str]:
        draws = sum(map(self.draws, self.trees[f].children.values()))
        self.key = ast.Name("key") if draws == 1 else name("next(keys)")
        lines = super().constructor(f, d)
        return [f"keys = iter(jax.random.split(key, {draws}))", *lines] if draws > 1 else lines

    def ties(self) -> list[str]:
        return []

    def fields(self, f: SourceFunction) -> list[str]:
        lines = [f"    {k}: {'int' if isinstance(v, int) else type(v).__name__} = eqx.field(static=True)"
                 for k, v in f.config.items() if k in self.told[f]]  # fmt: skip
        for key, node in self.ordered(f, self.trees[f]):
            if node.invoke is not None:
                kind = node.invoke.function.name
            else:
                kind = "jax.Array" if node.parameter is not None else "list" if node.is_list else "dict"
            lines.append(f"    {self.attribute(key)}: {kind}")
        return lines

    def loading(self, trace: SourceTrace) -> list[str]:
        if not trace.weights:
            return []
        model = self.functions[-1]
        table, of, _ = table_of_names(self)
        constructor_args = "key=jax.random.key(0)" if self.takes_key(model) else ""
        return [
            *table,
            f'''
def named(model: {model.name}) -> tuple[dict, jax.tree_util.PyTreeDef]:
    """The arrays of a model by the names that they have in the original, and its structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(model)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    return {{{of("name")}: x for name, (_, x) in zip(names, leaves, strict=True)}}, structure
'''.strip(),
            f'''
def load_weights(path: str) -> {model.name}:
    """The model with the weights of a safetensors file with the names of the original."""
    weights = load_file(path)
    names, structure = named(eqx.filter_eval_shape(lambda: {model.name}({constructor_args})))
    return jax.tree_util.tree_unflatten(structure, [jnp.asarray(weights[name]) for name in names])
'''.strip(),
            f'''
def save_weights(model: {model.name}, path: str) -> None:
    """Write a file that the original loads."""
    save_file({{name: np.asarray(x) for name, x in named(model)[0].items()}}, path)
'''.strip(),
            *([f'''
def with_buffers(model: {model.name}, buffers: dict) -> {model.name}:
    """The model with the buffers that a call of it gave."""
    arrays, structure = named(model)
    return jax.tree_util.tree_unflatten(structure, [buffers.get(name, x) for name, x in arrays.items()])
'''.strip()] if trace.written else []),
        ]  # fmt: skip


class Flax(_JaxClasses):
    """`nnx.Module`s. Layers of the source are classes of the file, whose parameters have its names and layouts."""

    base = "nnx.Module"
    holder = "nnx.Module()"

    def __init__(self, target: Target, trace: SourceTrace, functions: list[SourceFunction]) -> None:
        super().__init__(target, trace, functions)
        self.imports = {"nnx": "from flax import nnx"}

    @classmethod
    def prepare(cls, trace: SourceTrace) -> None:
        with_assignments(trace)

    @classmethod
    def modules(cls) -> ModuleForms:
        return ModuleForms({})

    def parameter(self, writer: Writer, v: Var) -> ast.expr:
        return ast.Subscript(super().parameter(writer, v), ast.Constant(...))

    def assignment(self, writer: Writer, call: SourceStep) -> ast.stmt:
        old, new = call.args
        return ast.Assign([ast.Subscript(super().parameter(writer, old), ast.Constant(...))], writer(new))

    def listed(self, parts: list[ast.expr], node: Member) -> ast.expr:
        return fill("nnx.List(x)", x=self.plain_list(parts))

    def given(self, f: SourceFunction) -> list[ast.keyword]:
        return [ast.keyword("rngs", ast.Name("rngs"))] if self.takes_key(f) else []

    def constructor_arguments(self, f: SourceFunction) -> list[str]:
        return ["*", "rngs: nnx.Rngs"] if self.takes_key(f) else []

    def new_parameter(self, node: Member, scope: Scope | None) -> ast.expr:
        is_buffer = node.parameter in self.current.buffers
        return fill(f"nnx.{'Variable' if is_buffer else 'Param'}(x)", x=self.array(node, scope, name("rngs.params()")))

    def loading(self, trace: SourceTrace) -> list[str]:
        if not trace.weights:
            return []
        model = self.functions[-1]
        table, of, has_table = table_of_names(self)
        constructor_args = "rngs=nnx.Rngs(0)" if self.takes_key(model) else ""
        return [
            *table,
            f'''
def named(model: {model.name}) -> dict[str, nnx.Variable]:
    """The variables of a model by the names that they have in the original."""
    {"found =" if has_table else "return"} {{
        ".".join(map(str, path)): v for path, v in nnx.iter_graph(model) if isinstance(v, nnx.Variable)
    }}
    {f"return {{{of('name')}: v for name, v in found.items()}}" if has_table else ""}
'''.strip(),
            f'''
def load_weights(path: str) -> {model.name}:
    """The model with the weights of a safetensors file with the names of the original."""
    model = {model.name}({constructor_args})
    weights = load_file(path)
    for name, variable in named(model).items():
        variable[...] = jnp.asarray(weights[name])
    return model
'''.strip(),
            f'''
def save_weights(model: {model.name}, path: str) -> None:
    """Write a file that the original loads."""
    save_file({{name: np.asarray(v[...]) for name, v in named(model).items()}}, path)
'''.strip(),
        ]
