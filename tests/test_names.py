"""A class's name means one thing in the package."""

import ast
from collections import defaultdict
from pathlib import Path

import tensorgraft

ROOT = Path(tensorgraft.__file__).parent

# what may have one name in several places, and why
EXCEPTIONS = {
    "Module": "a model, in each framework: ours, `torch.nn.Module`'s and `tf.Module`'s, whose name is shown",
}


def classes():
    """{name: files}, of classes that are read outside of their file: others begin with an underscore."""
    found = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_one_meaning_per_name():
    several = {name: files for name, files in classes().items() if len(files) > 1 and name not in EXCEPTIONS}
    assert not several, several


def test_exceptions_are_needed():
    assert {name for name, files in classes().items() if len(files) > 1} >= EXCEPTIONS.keys()
