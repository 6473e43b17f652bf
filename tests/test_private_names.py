"""The tables of private names say what the code uses, and what is missing turns off what needs it."""

import ast
import functools
import subprocess
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import jax
import pytest
from tests.versions import ran

import tensorgraft
from tensorgraft import private
from tensorgraft.private.feature import absent

ROOT = Path(tensorgraft.__file__).parent
FRAMEWORKS = {"torch", "jax", "jaxlib", "tensorflow", "numpy"}
NOT_PUBLIC = ("jax.interpreters.", "tensorflow.python.", "tensorflow.core.", "tensorflow.compiler.")
# what only finds, takes out or calls what has been named before
ENDS = (".get", ".add", ".append", ".default", ".default._op")
# of packages that are no frameworks, and of Python's own
ELSEWHERE = {
    "__GLOBAL_NAMESPACE": "optree",
    "_apply_int8_act_asym_per_token_quant_dequant": "torchao",
    "_choose_quant_func_and_quantize_tensor": "torchao",
    "_Unpickler": "pickle",
    "_exit": "os",
    "_getframe": "sys",
    "_tensorgraft_handle": "ours, on tensors of TensorFlow",
}


def is_private(name):
    own = any(part.startswith("_") and not part.endswith("__") for part in name.split("."))
    return own or f"{name}.".startswith(NOT_PUBLIC)


def dotted(node):
    """("torch", "_C", "_has_storage") of that expression; what it begins with is None where it is no name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else None, *reversed(parts))


@dataclass
class Read:
    """What a module of ours says."""

    named: set[str] = field(default_factory=set)  # private names of frameworks, imported or reached from modules
    attributes: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)  # what it defines


def read(text):
    out, known, chains, inner = Read(), {}, [], set()
    for node in ast.walk(ast.parse(text)):
        kind = type(node)
        if kind is ast.Attribute:
            out.attributes.add(node.attr)
            if type(node.ctx) is ast.Store and type(node.value) is ast.Name and node.value.id == "self":
                out.own.add(node.attr)
            inner.add(id(node.value))
            chains.append(node)
        elif kind is ast.Name:
            if type(node.ctx) is ast.Store:
                out.own.add(node.id)
        elif kind is ast.arg:
            out.own.add(node.arg)
        elif kind in (ast.FunctionDef, ast.ClassDef):
            out.own.add(node.name)
        elif kind is ast.Import:
            for alias in node.names:
                first = alias.name if alias.asname else alias.name.partition(".")[0]
                known[alias.asname or first] = first
                out.named.add(alias.name)
        elif kind is ast.ImportFrom and node.module and not node.level:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                out.named.add(f"{node.module}.{alias.name}")
    for node in chains:
        if id(node) not in inner and (parts := dotted(node))[0] in known:
            name = ".".join([known[parts[0]], *parts[1:]])
            for end in ENDS:
                name = name.removesuffix(end)
            out.named.add(name)
    out.named = {name for name in out.named if name.partition(".")[0] in FRAMEWORKS and is_private(name)}
    return out


@functools.cache
def modules():
    """Every module of ours, but scripts that run elsewhere and functions of which generated files have copies."""
    paths = sorted(path for path in ROOT.rglob("*.py") if path.parent.name not in ("runners", "helpers"))
    names = (".".join(["tensorgraft", *path.relative_to(ROOT).with_suffix("").parts]) for path in paths)
    return {n.removesuffix(".__init__"): read(p.read_text()) for n, p in zip(names, paths, strict=True)}


def test_every_private_name_stands_in_the_table_of_what_uses_it():
    unlisted = defaultdict(set)
    for module, said in modules().items():
        feature = private.of_module(module)
        listed = [row.lstrip("~") for row in feature[1].every_name()] if feature else []
        for name in said.named:
            if not any(row == name or row.startswith(f"{name}.") for row in listed):
                unlisted[feature[1].name if feature else module].add(name)
    assert not unlisted, f"add them to src/tensorgraft/private: {dict(unlisted)}"


def test_no_row_is_left_over():
    named, attributes = defaultdict(set), defaultdict(set)
    for module, said in modules().items():
        if feature := private.of_module(module):
            named[feature[1]] |= said.named
            attributes[feature[1]] |= said.attributes
    for feature in (feature for names in private.TABLES for feature in names.features):
        rows = feature.every_name()
        assert len(set(rows)) == len(rows), feature.name
        for row in rows:
            name = row.lstrip("~")
            used = any(u == name or name.startswith(f"{u}.") for u in named[feature])
            assert used or name.rpartition(".")[2] in attributes[feature], f"{feature.name}: nothing uses {row}"


def test_private_attributes_of_their_objects_are_listed():
    rows = [row for names in private.TABLES for feature in names.features for row in feature.every_name()]
    known = {*ELSEWHERE, *(part for row in rows for part in row.split("."))}.union(*(m.own for m in modules().values()))
    unlisted = defaultdict(set)
    for module, said in modules().items():
        for name in said.attributes - known:
            if name.startswith("_") and not name.endswith("__"):
                unlisted[name].add(module)
    assert not unlisted, f"add them to src/tensorgraft/private, with the class: {dict(unlisted)}"
    assert all(any(name in said.attributes for said in modules().values()) for name in ELSEWHERE)


def test_numpy_has_no_table():
    assert not [n for said in modules().values() for n in said.named if n.startswith("numpy.")]


def test_the_installed_pytorch_has_them():
    names = private.torch.NAMES
    rows = {row for feature in names.features for row in feature.every_name()}
    assert not [row for row in sorted(rows) if absent(row, importing=False)]


@pytest.mark.slow
@pytest.mark.parametrize("names", private.TABLES, ids=lambda names: names.package)
def test_the_installed_framework_has_those_of_modules_that_few_import(names):
    pytest.importorskip(names.package)
    rows = {row for feature in names.features for row in feature.every_name()}
    assert not [row for row in sorted(rows) if absent(row, importing=True)]


@pytest.mark.parametrize("names", private.TABLES, ids=lambda names: names.package)
def test_what_is_said_to_be_tested_has_run_without_a_failure(names):
    clean = [row["installed"] for row in ran.kept().values() if row.get("passed") and not row["failed"]]
    assert {*names.tested} <= {had.get(names.package, "").partition("+")[0] for had in clean}


def run(program):
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


WITHOUT = """
import os
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
{delete}
from tensorgraft.frontends.torch_entry import autoload
autoload()
"""


def test_pytorch_is_imported_without_a_name_that_its_device_needs():
    delete = "del torch._C._acc.DeviceGuard"
    out, err = run(WITHOUT.format(delete=delete) + "print(torch.ones(2) + 1, torch.accelerator.is_available())")
    assert out == "tensor([2., 2.]) False\n"
    assert err.count("torch._C._acc.DeviceGuard") == 1
    assert "PyTorch" in err and "tested: PyTorch" in err


EACH = """
import os, sys, torch, torch.distributed
from tensorgraft import private
from tensorgraft.frontends.torch_entry import autoload
for feature in private.torch.NAMES.features:
    for name in feature.every_name() if feature.name in ("import torch", "process groups") else ():
        *path, last = name.split(".")
        owner = torch
        for part in path[1:]:
            owner = getattr(owner, part)
        if os.fork():
            assert os.wait()[1] == 0, name
            continue
        delattr(owner, last)
        autoload()
        (torch.ones(2, requires_grad=True) * 2).sum().backward()
        print("without", name, file=sys.stderr, flush=True)
        os._exit(0)
"""


@pytest.mark.parametrize("filters", ["default", "error"])
def test_pytorch_is_imported_without_any_one_name_whatever_is_done_with_warnings(filters, monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    done = subprocess.run([sys.executable, "-W", filters, "-c", EACH], capture_output=True, text=True, check=False)
    rows = [f for f in private.torch.NAMES.features if f.name in ("import torch", "process groups")]
    for name in (name for feature in rows for name in feature.every_name()):
        assert f"lacks {name} (" in done.stderr and f"without {name}\n" in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


USES = """
x = torch.ones(2, device="graft:1") + 1
print(x.cpu())
import tensorgraft
try:
    {use}
except tensorgraft.MissingNameError as error:
    print("refused:", error)
"""
FEATURES = [
    ("tg.explain", "del torch._C._autograd._unsafe_set_version_counter", "tensorgraft.explain(lambda x: x, x)"),
    (
        "torch.distributed",
        "del torch.distributed.ProcessGroup._get_backend",
        "import tensorgraft.frontends.torch.device.groups",
    ),
    (
        "process groups",
        "del torch._C._distributed_c10d.Backend._set_sequence_number_for_group",
        "import tensorgraft.frontends.torch_entry.process_groups",
    ),
    ("tg.source", "del torch.nn.modules.conv._ConvNd", "pass"),
]


@pytest.mark.parametrize(
    ("feature", "delete", "use"),
    [pytest.param(*row, id=row[0], marks=[pytest.mark.slow] if k else []) for k, row in enumerate(FEATURES)],
)
def test_what_needs_a_missing_name_is_off_and_the_rest_works(feature, delete, use):
    out, err = run(WITHOUT.format(delete=delete) + USES.format(use=use))
    assert out.startswith("tensor([2., 2.])\n")
    name = delete.removeprefix("del ")
    assert err.count(name) <= 1, err
    if use != "pass":
        assert f"lacks {name}" in out and "refused: tensorgraft: " in out


REFERENCES = """
import jax._src.state.discharge
del jax._src.state.discharge.discharge_state
import numpy as np, jax, tensorgraft as tg

def written(x):
    ref = jax.new_ref(x)
    ref[0] = 2.0
    return ref[...]

print(tg.graft(lambda x: x * 2, onto="numpy")(np.ones(2, np.float32)))
try:
    tg.graft(written, onto="numpy")(np.ones(2, np.float32))
except tg.MissingNameError as error:
    print("refused:", error)
"""


def test_functions_of_jax_run_without_what_others_need():
    out, _ = run(REFERENCES)
    assert out.startswith("[2. 2.]\nrefused: ")
    assert f"JAX {jax.__version__} lacks jax._src.state.discharge.discharge_state" in out
    assert f'`pip install "jax=={private.jax.NAMES.tested[-1]}"`' in out


@pytest.mark.parametrize("names", private.TABLES, ids=lambda names: names.package)
def test_the_oldest_release_is_that_of_the_extra(names):
    (extra,) = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ][names.package]
    assert extra == f"{names.package}>={names.oldest}"


TOO_OLD = """
import numpy as np, jax, tensorgraft as tg
jax.__version__ = "0.8.2"
try:
    tg.graft(lambda x: x * 2, onto="numpy")(np.ones(2, np.float32))
except tg.MissingNameError as error:
    print("refused:", error)
"""


def test_a_release_that_is_too_old_is_refused_in_one_sentence():
    out, err = run(TOO_OLD)
    assert "off, since JAX 0.8.2 is older than 0.9." in out and '`pip install -U "jax>=0.9"`' in out
    assert err.count("0.8.2") == 1


def test_versions_are_compared_as_numbers():
    names = private.torch.NAMES
    assert [*map(names.is_too_old, ["2.9.1", "2.10.0a0+git", "2.10.0+cpu", "3.0", "?"])] == [True, *[False] * 4]
