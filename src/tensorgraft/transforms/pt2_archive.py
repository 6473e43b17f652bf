"""Archives of `torch.export`, checked before PyTorch reads them.

PyTorch's reader looks up functions by their names in the file, evaluates expressions, imports modules that types of
trees name, unpickles, and loads compiled libraries. An archive is read here if it has none of these but operators,
arithmetic of sizes, containers of Python and tensors. The check reads by PyTorch's own reader of archives, so that both
read the same bytes.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from typing import Any

PLAIN = re.compile(r"[^'\"\\\x00-\x1f{}]*")  # what cannot end a text in generated code
OPERATOR = re.compile(
    r"torch\.ops\.(?!load_library|import_module)(?!__)\w+\.(?!__)(?!from_file|aoti_|inductor_|call_torchbind)\w+"
    r"(\.(?!__)\w+)?|torch\.(_?sym_\w+)|math\.\w+"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_|getitem)"
)
FUNCTIONS = {
    *["Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Max", "Min", "Abs", "Identity", "Piecewise"],
    *["FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv"],
    *["RoundToInt", "RoundDecimal", "ToFloat", "FloatTrueDiv", "IntTrueDiv", "TruncToInt", "TruncToFloat"],
    *["IsNonOverlappingAndDenseIndicator", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Equality", "Unequality", "LessThan"],
    *["GreaterThan", "StrictLessThan", "StrictGreaterThan", "And", "Or", "Not", "ExprCondPair", "true", "false"],
}  # of sympy, and PyTorch's own
ARITHMETIC = (
    *(ast.Expression, ast.Call, ast.Name, ast.Load, ast.keyword, ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd, ast.Compare, ast.Eq, ast.NotEq),
    *(ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.BoolOp, ast.And, ast.Or, ast.Not, ast.BitAnd, ast.BitOr, ast.Invert),
)
ASSUMPTIONS = {"positive", "nonnegative", "integer", "real", "precision"}
SYMBOL = re.compile(r"[A-Za-z_]{1,16}\d{0,6}|[-+\d.e]{1,40}")  # or a number
WORD = re.compile(r"[A-Za-z_]\w*")
LONGEST = 4096  # characters of an expression
DEEPEST = 64  # expressions and trees in each other
# texts that are variables and parameters of the code that PyTorch generates and executes, and tables by such names
VARIABLES = {"name", "as_name", "forward_arg_names", "user_input_name"}
TABLES = {f"{kind}_values" for kind in ("tensor", "sym_int", "sym_float", "sym_bool", "custom_obj")}
FREE = {"metadata", "as_string", "as_strings"}  # texts that PyTorch only keeps, or writes with quotes
TRUSTED = "Other objects are not loaded: if the file is trusted, graft the result of torch.export.load"
OBJECTS = ("custom_obj_", "opaque_obj_")


def load_program(path: str) -> Any:
    """Return the `ExportedProgram` in an archive. Raises ValueError if the archive is broken, or has more than
    operators and tensors."""
    import torch

    try:
        _check_archive(path)
        return torch.export.load(path)
    except Exception as error:  # of any kind, where the file is broken
        raise ValueError(f"{path} is not a file of torch.export: {_line(error)}") from error


def _line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0][:500]
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _check_archive(path: str) -> None:
    from torch.export.pt2_archive import PT2ArchiveReader

    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("it has two members of one name")
    if "version" in names:
        raise ValueError("it was written by PyTorch 2.7 or earlier: read it by torch.export.load, and save it again")
    reader = PT2ArchiveReader(path)
    records = reader.get_file_names()
    sizes = {name: reader.archive_file.get_record_size(name) for name in records}
    if sum(sizes.values()) > os.path.getsize(path):
        raise ValueError("its members are compressed, or larger than the file")
    if compiled := [name for name in records if name.startswith("data/aotinductor/")]:
        raise ValueError(f"it contains a compiled library ({compiled[0]}), which is not loaded")
    if "models/model.json" not in records:
        raise ValueError("it has no program (models/model.json)")
    for name in records:
        if name.startswith("models/"):
            _check_program(_json(reader, name))
        elif name.startswith(("data/weights/", "data/constants/")) and name.endswith(".json"):
            _check_payloads(_json(reader, name), name.rpartition("/")[0], reader, sizes)
        elif name.endswith(".pt"):
            _check_pickled(name, reader.read_bytes(name))


def _json(reader: Any, name: str) -> Any:
    try:
        return json.loads(reader.read_bytes(name))
    except RecursionError:
        raise ValueError(f"{name} has lists in lists, too many") from None


def _check_payloads(config: Any, folder: str, reader: Any, sizes: dict[str, int]) -> None:
    """Check the table of tensors of a program."""
    for name, row in config["config"].items():
        path = row["path_name"]
        if path.startswith(OBJECTS):
            raise ValueError(f"it has {name!r}, a pickled object. {TRUSTED}")
        record = f"{folder}/{path}"
        if row["use_pickle"]:
            _check_pickled(record, reader.read_bytes(record))
        elif not sizes[record] and 0 not in [n["as_int"] for n in row["tensor_meta"]["sizes"]]:
            raise ValueError(f"{record}, the data of {name!r}, is empty")


def _check_pickled(name: str, content: bytes) -> None:
    """Check that a pickle has nothing but tensors and containers, which are not larger than the bytes that are there.
    (PyTorch unpickles other objects, too.)"""
    import torch

    if not content:
        return
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
    if any(m.compress_type != zipfile.ZIP_STORED for m in members) or sum(m.file_size for m in members) > len(content):
        raise ValueError(f"the members of {name} are compressed, or larger than it")
    try:
        torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of any kind, where it is broken
        raise ValueError(f"{name} has more than tensors and containers. {TRUSTED}") from error


def _check_program(tree: Any) -> None:
    """Check the texts in a program: names, targets of calls, expressions, types of trees."""
    checks: dict[str, Callable[[str], None]] = {"target": _check_target, "as_operator": _check_target}
    checks |= {"expr_str": _check_expression, "guards_code": _refuse_code, "out_spec": _check_tree}
    checks |= {"in_spec": _check_arguments, **dict.fromkeys(VARIABLES, _check_variable)}
    stack = [("", tree)]
    while stack:
        key, value = stack.pop()
        if isinstance(value, dict):
            for name, inner in value.items():
                (_check_variable if key in TABLES else _check_plain)(name)
                if name not in FREE:
                    stack.append((name, inner))
        elif isinstance(value, list):
            stack += [(key, inner) for inner in value]
        elif isinstance(value, str):
            checks.get(key, _check_plain)(value)


def _check_plain(text: str) -> None:
    if not PLAIN.fullmatch(text):
        raise ValueError(f"the text {text[:60]!r} is no name")


def _check_variable(text: str) -> None:
    if text and not text.isidentifier():
        raise ValueError(f"the text {text[:60]!r} is no name of a variable")


def _refuse_code(text: str) -> None:
    raise ValueError(f"it has a guard, {text[:60]!r}, which PyTorch executes. {TRUSTED}")


def _check_target(text: str) -> None:
    if not OPERATOR.fullmatch(text) and WORD.sub("", text).strip("."):
        raise ValueError(f"{text[:60]!r} is no name of an operator")
    if not OPERATOR.fullmatch(text) and text.partition(".")[0] in ("torch", "math", "_operator"):
        raise ValueError(f"the program calls {text[:60]!r}, which is no operator")


def _check_expression(text: str) -> None:
    """Check that an expression is arithmetic of sizes, without powers that are larger than memory."""
    try:
        nodes = [*ast.walk(ast.parse(text[: LONGEST + 1], mode="eval"))] if len(text) <= LONGEST else []
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        nodes = []
    if not nodes or not all(map(_is_arithmetic, nodes)) or sum(_name_of(n) == "Pow" for n in nodes) > 4:
        raise ValueError(f"{text[:60]!r} is no expression of sizes")


def _name_of(node: ast.AST) -> str:
    """Return the name of the function that a node calls, or ""."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        if _name_of(node) == "Pow" and len(node.args) == 2:
            base, exponent = map(ast.unparse, node.args)
            return (
                "Symbol" in base and re.fullmatch(r"(Integer|Rational)\([-\d, ]{1,9}\)|-?\d{1,2}", exponent) is not None
            )
        return _name_of(node) in FUNCTIONS and {k.arg for k in node.keywords} <= ASSUMPTIONS
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return SYMBOL.fullmatch(node.value) is not None
    if isinstance(node, ast.Name):
        return node.id in FUNCTIONS or SYMBOL.fullmatch(node.id) is not None
    return isinstance(node, ARITHMETIC)


def _check_arguments(text: str) -> None:
    """Check the type of (arguments, keyword arguments), whose names are parameters of generated code."""
    _check_tree(text)
    children = json.loads(text)[1]["children_spec"] if text else []
    if len(children) == 2 and "dict" in str(children[1]["type"]):
        for name in json.loads(children[1]["context"] or "null") or []:
            _check_variable(name)


def _check_tree(text: str) -> None:
    """Check the type of a tree: containers, whose keys are names or numbers."""
    stack = [(json.loads(text), 0)] if text else []
    while stack:
        node, depth = stack.pop()
        if depth > DEEPEST:
            raise ValueError("trees are nested too deep")
        if isinstance(node, list):
            stack += [(x, depth + 1) for x in node]
        elif isinstance(node, dict):
            if "__enum__" in node or "defaultdict" in str(node.get("type")):
                raise ValueError(
                    "the type of its arguments or results has members or factories that are to be imported"
                )
            for name in node:
                _check_plain(name)
            stack += [(x, depth + 1) for name, x in node.items() if name != "context"]
            if isinstance(context := node.get("context"), str):
                stack.append((json.loads(context), depth + 1))
        elif isinstance(node, str):
            _check_plain(node)
