"""Names that are made when they are asked for, or by tables, are declared to type checkers. What these make of a user's
program (`user.py`) is seen by `make dist-check`."""

import ast
from pathlib import Path

import pytest

import tensorgraft
from tensorgraft import quantization
from tensorgraft.frontends.array_api.standard import elementwise

ROOT = Path(tensorgraft.__file__).parent


def declared(path):
    """The names that a module has for a type checker which it imports nowhere else."""
    blocks = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


@pytest.mark.parametrize("module", [tensorgraft, quantization], ids=lambda module: module.__name__)
def test_names_that_are_imported_when_they_are_asked_for(module):
    assert set(module.__all__) - {"__version__"} == declared(Path(module.__file__))


def test_every_name_that_has_a_home_is_listed():
    assert set(tensorgraft.__all__) - {"__version__"} == tensorgraft._HOMES.keys() | tensorgraft._MODULES.keys()


def test_functions_that_tables_make():
    stub = ast.parse((ROOT / "frontends" / "array_api" / "declared.pyi").read_text())
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert functions | {"clip", "where"} == set(elementwise.__all__)


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "py.typed").exists()


def test_one_version():
    root = Path(__file__).parents[2]
    assert f"\nversion: {tensorgraft.__version__}\n" in (root / "CITATION.cff").read_text()
