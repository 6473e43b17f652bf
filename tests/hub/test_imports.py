"""Who imports whom: layers, no cycles, and each front end and backend by itself. Imports inside functions count, and so
do names of modules in strings, by which `importlib` and `sys.modules` find them; those under `if TYPE_CHECKING` count
for cycles alone."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorgraft

ROOT = Path(tensorgraft.__file__).parent
FRAMEWORKS = {"jax", "torch", "tensorflow"}
UNDER_FRONT_ENDS = (
    "errors files warning_filters private importing interrupts hub strided_slice storage views dynamic_offset precision"
    " arrays compiled quantization"
)


def rooms(package: str, names: str, below: str) -> dict[str, str]:
    """Each room is built on those before it."""
    all_rooms = [f"{package}.{name}" for name in names.split()]
    return {room: " ".join([below, *all_rooms[:i]]) for i, room in enumerate(all_rooms)}


TORCH = rooms(
    "frontends.torch",
    "core dispatch sparse kernels quantized device compiled graph setup",
    f"{UNDER_FRONT_ENDS} frontends.torch_entry",
)
TORCH["frontends.torch.codegen"] = " ".join([UNDER_FRONT_ENDS, "frontends.torch_entry codegen", *TORCH])
ARRAYS = rooms("frontends.array_api", "core standard transforms", UNDER_FRONT_ENDS)
FRONT_ENDS = " ".join(
    [
        *TORCH,
        *ARRAYS,
        "array_api frontends.array_api.extensions frontends.jax frontends.jax.interop frontends.tensorflow",
        "frontends.onnx",
    ]
)
# A layer -> what it may import, besides itself; what is built on what, from below. "a()" is the package's own __init__,
# where that is above what is in the package.
LAYERS = {
    "errors": "",
    "files": "",
    "warning_filters": "",
    "private": "errors warning_filters",
    "importing": "",
    "interrupts": "",
    "hub": "errors files warning_filters importing interrupts",
    **dict.fromkeys(
        [f"backends.{n}" for n in ("jax", "numpy", "torch", "tensorflow")], "errors warning_filters importing hub"
    ),
    "backends()": "hub private",
    "strided_slice": "hub",
    "storage": "hub strided_slice",
    "views": "storage",
    "dynamic_offset": "hub strided_slice storage",
    "precision": "hub",
    "arrays": "hub",
    "compiled": "errors importing hub arrays",
    "quantization": "warning_filters hub storage views",
    "codegen": "errors files importing hub",
    "frontends()": "private",
    "frontends.torch_entry": "errors private warning_filters importing interrupts hub",
    **TORCH,
    "frontends.torch": " ".join(["importing frontends.torch_entry", *TORCH]),
    **ARRAYS,
    "array_api": " ".join([UNDER_FRONT_ENDS, *ARRAYS]),
    "frontends.array_api.codegen": " ".join([UNDER_FRONT_ENDS, "codegen", *ARRAYS]),
    "frontends.array_api.extensions": " ".join([UNDER_FRONT_ENDS, *ARRAYS, "array_api"]),
    "frontends.array_api": " ".join([*ARRAYS, "array_api", "frontends.array_api.extensions"]),
    "frontends.jax": f"{UNDER_FRONT_ENDS} codegen",
    "frontends.jax.interop": f"{UNDER_FRONT_ENDS} frontends.jax frontends.torch.core",
    **dict.fromkeys(["frontends.jax.among_tensors", "frontends.jax.among_keras"], "frontends.jax.interop"),
    "frontends.tensorflow": "errors interrupts hub precision compiled codegen",
    "frontends.onnx": "errors importing hub compiled codegen",
    "random": "frontends.array_api.extensions",
    "devices": "hub storage frontends.torch.core",
    "updates": f"hub arrays {FRONT_ENDS}",
    "quantization.api": f"{UNDER_FRONT_ENDS} {FRONT_ENDS}",
    "quantization.optimizer": "quantization.api",
    "quantization()": f"quantization quantization.api {FRONT_ENDS}",
    "transforms": f"{UNDER_FRONT_ENDS} codegen {FRONT_ENDS} frontends.array_api frontends.torch.codegen"
    " frontends.array_api.codegen",
    "porting": "errors files hub codegen transforms",
    "exporting": f"errors files importing hub arrays codegen {FRONT_ENDS} frontends.onnx transforms",
    "nn": f"{UNDER_FRONT_ENDS} {FRONT_ENDS} frontends.array_api random transforms",
    "operators": f"{UNDER_FRONT_ENDS} {FRONT_ENDS} frontends.array_api random transforms",
    "parallel": f"{UNDER_FRONT_ENDS} {FRONT_ENDS} devices",
    "()": " ".join(["errors hub precision quantization() random devices updates transforms porting exporting nn",
                    "operators parallel array_api backends() frontends.torch frontends.array_api.extensions"]),
    "cli": "errors files private importing hub porting exporting frontends.torch_entry frontends.torch.device"
    " frontends.torch frontends.tensorflow array_api transforms ()",
    # by name: PyTorch's import loads the front end, and the command in processes that `tensorgraft run` has started
    "frontends.torch_entry()": "errors warning_filters frontends.torch_entry frontends.torch cli",
    "__main__": "cli",
}  # fmt: skip
# Backends are entry points, those of this package as those of others: names in a table.
ENTRY_POINTS = {
    "hub.registry": "backends", "codegen.targets": "codegen.targets", "codegen.styles": "codegen.styles",
    "exporting.formats": "exporting.formats",
}  # fmt: skip


# What is built on the core and what nothing in it imports: other packages hand out its names, and no more.
OPTIONAL = [
    "parallel",
    "operators",
    "nn",
    "quantization.api",
    "quantization.calibration",
    "quantization.rounding",
    "quantization.input_ranges",
    "quantization.moments",
    "frontends.jax.quantized_models",
    "frontends.array_api.extensions.quantized_models",
    "frontends.array_api.extensions.quantized_training",
    "frontends.torch.quantized.models",
    "frontends.torch.quantized.training",
    "frontends.torch.quantized.smoothing",
    "frontends.torch.quantized.torchao",
    "frontends.torch.quantized.torchao_formats",
    "frontends.torch.quantized.torchao_inputs",
    "frontends.torch.quantized.adam8bit",
    "transforms.module",
    "transforms.filters",
    "transforms.wrapper",
    "transforms.filtered_jit",
    "transforms.filtered_vmap",
    "transforms.filtered_gradients",
    "transforms.filtered_checkpoint",
    "transforms.eval_shape",
    "transforms.serialisation",
    "transforms.updating",
]
NAMES_OF_OTHERS = {"", "transforms", "quantization", "quantization.optimizer"}


def below(name: str, package: str) -> bool:
    return not package or name == package or name.startswith(f"{package}.")


@functools.cache
def modules() -> dict[str, Path]:
    """By their names inside the package; "" is the package itself."""
    files = {file: file.relative_to(ROOT).with_suffix("").parts for file in ROOT.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): file for file, parts in files.items()}


def is_stub(module: str) -> bool:
    """A file of declarations for type checkers, which imports nothing that is run."""
    return bool(module) and (ROOT / module.replace(".", "/")).with_suffix(".pyi").exists()


def statements(tree: ast.AST, types: bool) -> Iterator[ast.AST]:
    """`types`: with what type checkers alone see."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        checked = not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        stack += node.orelse if checked else ast.iter_child_nodes(node)


@functools.cache
def names(file: Path, types: bool = False) -> tuple[str, ...]:
    """What a file imports, as it says so."""
    return tuple(_names(file, types))


def _names(file: Path, types: bool) -> Iterator[str]:
    for node in statements(ast.parse(file.read_text()), types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]  # module:attribute
            known, inside = name.removeprefix("tensorgraft."), name.removeprefix("tensorgraft.").removesuffix(".")
            if name.startswith("tensorgraft.") and inside and inside in modules():
                yield from ([name] if known == inside else
                            [f"tensorgraft.{m}" for m in modules() if m.startswith(known)])  # fmt: skip


@functools.cache
def graph(types: bool = False) -> dict[str, set[str]]:
    """Module -> modules of ours that it imports. `types`: those for annotations, too."""
    found: dict[str, set[str]] = {}
    for module, file in modules().items():
        edges = found[module] = set()
        for name in names(file, types):
            package, _, inside = name.partition(".")
            while inside not in modules() and not is_stub(inside):
                inside = inside.rpartition(".")[0]
            is_entry_point = module in ENTRY_POINTS and below(inside, ENTRY_POINTS[module])
            if package == "tensorgraft" and inside != module and not is_entry_point and not is_stub(inside):
                edges.add(inside)
    return found


def layer(module: str) -> str:
    if f"{module}()" in LAYERS:
        return f"{module}()"
    return max((name for name in LAYERS if name != "()" and below(module, name)), key=len, default="none")


def test_layers_are_built_on_those_before_them() -> None:
    order = list(LAYERS)
    for i, (name, built_on) in enumerate(LAYERS.items()):
        assert set(built_on.split()) <= set(order[:i]), name


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_imports_what_it_is_built_on(name: str) -> None:
    allowed = {name, *LAYERS[name].split()}
    crossings = {
        f"{module} -> {other}"
        for module, others in graph().items()
        for other in others
        if layer(module) == name and layer(other) not in allowed
    }
    assert not crossings


def test_every_module_has_a_layer() -> None:
    assert not {m for m in modules() if layer(m) not in LAYERS}


@pytest.mark.parametrize("types", [False, True])
def test_no_cycle(types: bool) -> None:
    left = {module: set(others) for module, others in graph(types).items()}
    while ends := {module for module, others in left.items() if not others & left.keys()}:
        left = {module: others for module, others in left.items() if module not in ends}
    while starts := left.keys() - {other for others in left.values() for other in others}:
        left = {module: others for module, others in left.items() if module not in starts}
    assert not {module: sorted(others & left.keys()) for module, others in left.items()}


def test_what_is_optional_is_not_imported() -> None:
    def optional(module: str) -> bool:
        return any(below(module, name) for name in OPTIONAL)

    core = {module for module in modules() if not optional(module)} - NAMES_OF_OTHERS
    assert not {f"{m} -> {other}" for m in core for other in graph()[m] if optional(other)}
    assert all(name in modules() for name in OPTIONAL)


@pytest.mark.parametrize(("area", "others"), [
    ("hub", {*FRAMEWORKS, "scipy"}), ("precision", FRAMEWORKS), ("quantization", FRAMEWORKS), ("compiled", FRAMEWORKS),
    ("frontends.array_api", FRAMEWORKS),
    *((f"backends.{name}", FRAMEWORKS - {name}) for name in ("jax", "numpy", "torch", "tensorflow")),
])  # fmt: skip
def test_frameworks_that_are_not_imported(area: str, others: set[str]) -> None:
    wrong = {
        f"{module} -> {name}"
        for module, file in modules().items()
        for name in names(file)
        if below(module, area) and name.partition(".")[0] in others
    }
    assert not wrong


@pytest.mark.parametrize("module", ["tensorgraft", "tensorgraft.hub.abstract", "tensorgraft.backends.numpy"])
def test_import_is_light(module: str) -> None:
    heavy = [*sorted(FRAMEWORKS), "scipy"]
    program = f"import sys, {module}; sys.exit(' '.join(m for m in {heavy} if m in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT.parent)
    assert done.returncode == 0, f"import {module} imports {done.stderr}"


def test_front_ends_ask_what_a_backend_can_do() -> None:
    """Not its name: another backend is no reason to change a front end."""
    backends = {"jax", "numpy", "torch", "tensorflow"}
    wrong = {
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module, file in modules().items()
        if below(module, "frontends") or below(module, "array_api")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "name"
        if backends & {x.value for x in ast.walk(node) if isinstance(x, ast.Constant)}
    }
    assert not wrong
