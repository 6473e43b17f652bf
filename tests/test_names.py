"""A class's name means one thing in the package."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import tensorgraft

ROOT = Path(tensorgraft.__file__).parent

# what may have one name in several places, and why
EXCEPTIONS = {
    "Array": "an array: of the array API front end, with its operators, and of any backend, for annotations",
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


def test_one_type_for_arrays():
    """`hub.array` has the types of arrays for annotations; no module makes one of its own that says nothing."""
    alias = re.compile(r"^\s*\w*(Array|Tensor)\w*(: \w+)? = (typing\.)?Any\b", re.MULTILINE)
    found = {str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py") if alias.search(p.read_text())}
    assert found == {"hub/array.py"}


_INFIX = {
    *("add", "subtract", "multiply", "divide", "pow", "negative", "matmul", "floor_divide", "remainder", "abs"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_xor", "logical_not"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_invert", "bitwise_left_shift", "bitwise_right_shift"),
}


def _is_infix(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _INFIX


def test_formulas_are_written_in_operators():
    """`xp.multiply(g, xp.subtract(1, xp.square(y)))` is `g * (1 - xp.square(y))` in a function `with_operators`
    (`hub/value.py`). What nests such calls runs at each eager step, or is a backend's own method: it does not grow.
    """
    nodes = (node for path in ROOT.rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    nested = sum(_is_infix(inner) for node in nodes if _is_infix(node) for inner in node.args)
    assert nested <= 164, f"{nested} calls of infix operations stand in one another: write formulas in operators"


def test_exceptions_are_needed():
    assert {name for name, files in classes().items() if len(files) > 1} >= EXCEPTIONS.keys()


def test_no_retired_name_is_left():
    """Modules that `docs/glossary.md` says have another name now."""
    glossary = (ROOT.parent.parent / "docs" / "glossary.md").read_text().partition("## Names that were retired")[2]
    names = re.findall(r"^\| `(\S+)` \| `(\S+)` \|$", glossary, re.MULTILINE)
    assert len(names) > 50
    for before, now in names:
        assert not (ROOT / before).exists() and not (ROOT / f"{before}.py").exists(), before
        assert (ROOT / now).exists() or (ROOT / f"{now}.py").exists(), now


_SUBORDINATE = (
    *("what", "of", "where", "whether", "as", "how", "if", "when", "why", "which", "who", "whose", "that"),
    *("because", "since", "while", "until", "unless", "though", "although"),
)


def test_docstrings_say_what_a_thing_is():
    """A docstring that begins with a subordinate word says something about the thing before it says what it is."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                words = (ast.get_docstring(node) or "").split()
                if words and words[0].strip("`,:;.").lower() in _SUBORDINATE:
                    found.append(f"{path.relative_to(ROOT)}: {' '.join(words[:8])}")
    assert not found, found


# words of a story, which say nothing of what a value is: `said` is a warning, a message or a list of calls
_STORY = {
    "ahead", "alone", "among", "anew", "anywhere", "apart", "asked", "behind", "born", "broken", "called", "done",
    "drawn", "earlier", "elsewhere", "entered", "everything", "everywhere", "goes", "got", "grown", "handed", "have",
    "here", "how", "inside", "judge", "judges", "looked", "looking", "lying", "made", "matters", "met", "mine",
    "needed", "never", "nobody", "nowhere", "odds", "often", "only", "otherwise", "pulled", "reaches", "said", "seen",
    "stay", "still", "tell", "together", "truth", "turned", "was", "way", "ways", "whose", "worst", "wrong",
}  # fmt: skip
# their text is that of generated programs
_GENERATED = ("codegen/words.py", "codegen/targets/helpers/", "codegen/verification/runners/")


def _bindings(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_names_say_what_a_value_is():
    """Functions, parameters and variables are called after what they are, not after what has happened to them."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(_GENERATED):
            story = {n for n in _bindings(ast.parse(path.read_text())) if n.strip("_") in _STORY}
            found += [f"{name}: {n}" for n in sorted(story)]
    assert not found, found
