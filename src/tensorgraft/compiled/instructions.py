"""Analysis of bytecode: whether a container is only written to, and which attributes are incremented (`self.calls +=
1`)."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Iterator

# Methods that change a container and tell nothing of it.
WRITES = frozenset({"append", "extend", "add"})
_COUNTING = ("+=", "-=")


@functools.lru_cache(maxsize=4096)
def _instructions(code: types.CodeType) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object, and those of the functions, classes and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


def _instructions_named(code: types.CodeType, *names: str) -> Iterator[dis.Instruction]:
    """Yield the instructions of code with these names, functions inside it included. Code in which none of them can
    occur is not disassembled, which takes most of the time of an analysis."""
    opcodes = {dis.opmap[name] for name in names}
    for nested in codes_of(code):
        if not opcodes.isdisjoint(nested.co_code[::2]):
            yield from (i for i in _instructions(nested) if i.opname in names)


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> frozenset[str]:
    """Return the global names, names of attributes and of modules that code mentions, functions inside it included;
    also as strings (`getattr(config, "scale")`)."""
    strings = (text for nested in codes_of(code) for text in nested.co_consts if isinstance(text, str))
    names = (name for nested in codes_of(code) for name in (*nested.co_names, *nested.co_freevars))
    return frozenset((*names, *filter(is_dotted_name, strings)))


def is_dotted_name(text: str) -> bool:
    """Return whether a text may be the name of an attribute or a module."""
    return text.replace(".", "_").isidentifier()


_ASKING = {"getattr", "hasattr", "vars", "__dict__"}


@functools.lru_cache(maxsize=4096)
def asked_attributes(code: types.CodeType) -> frozenset[str]:
    """Return the strings with which code, including nested functions, may read attributes that do not exist (`hasattr`,
    `getattr` with a default, `vars(cls).get`)."""
    asking = (nested for nested in codes_of(code) if not _ASKING.isdisjoint(nested.co_names))
    strings = (text for nested in asking for text in nested.co_consts if isinstance(text, str))
    return frozenset(text for text in strings if text.isidentifier())


@functools.lru_cache(maxsize=4096)
def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the global names, built-in ones among them, that code reads, functions inside it included."""
    return frozenset(i.argval for i in _instructions_named(code, "LOAD_GLOBAL", "LOAD_NAME"))


@functools.lru_cache(maxsize=4096)
def stored_attributes(code: types.CodeType) -> frozenset[str]:
    """Return the names of attributes that code sets, also as strings (`setattr`), functions inside it included."""
    names = {i.argval for i in _instructions_named(code, "STORE_ATTR")}
    setting = (one for one in codes_of(code) if "setattr" in one.co_names)
    return frozenset(names.union(text for one in setting for text in one.co_consts if isinstance(text, str)))


@functools.lru_cache(maxsize=4096)
def stored_names(code: types.CodeType) -> frozenset[str]:
    """Return the global names that code binds (`global n; n = ...`), functions inside it included."""
    return frozenset(i.argval for i in _instructions_named(code, "STORE_GLOBAL", "DELETE_GLOBAL"))


@functools.lru_cache(maxsize=4096)
def imported_modules(code: types.CodeType) -> frozenset[str]:
    """Return the names of the modules that code imports, functions inside it included."""
    return frozenset(i.argval for i in _instructions_named(code, "IMPORT_NAME"))


@functools.lru_cache(maxsize=4096)
def asked_modules(code: types.CodeType) -> frozenset[str]:
    """Return the strings with which code may ask `sys.modules` for modules, be they loaded or not."""
    asking = (one for one in codes_of(code) if "modules" in one.co_names)
    return frozenset(text for one in asking for text in one.co_consts if isinstance(text, str) and is_dotted_name(text))


@functools.lru_cache(maxsize=4096)
def asks_for_classes(code: types.CodeType) -> bool:
    """Return whether code asks objects for their classes, functions inside it included."""
    matches = next(_instructions_named(code, "MATCH_CLASS"), None)
    return matches is not None or not {"isinstance", "type", "issubclass"}.isdisjoint(global_names(code))


@functools.lru_cache(maxsize=4096)
def compares_identities(code: types.CodeType) -> bool:
    """Return whether code asks if two objects are the same one (`a is b`; not of constants, as in `a is None`),
    functions inside it included."""
    for nested in codes_of(code):
        instructions = _instructions(nested)
        if any(i.opname == "IS_OP" and instructions[k - 1].opname != "LOAD_CONST" for k, i in enumerate(instructions)):
            return True
    return "id" in global_names(code)


def uses_of(name: str, codes: Iterable[types.CodeType]) -> set[str]:
    """Return how code uses the container `name`, a variable or an attribute: "read"; "written" if it appends to it or
    assigns an entry; "counted" if it increments an entry."""
    return {use for code in codes for use in _uses_of(name, code)}


@functools.lru_cache(maxsize=8192)
def _uses_of(name: str, outer: types.CodeType) -> frozenset[str]:
    uses = set()
    for code in codes_of(outer):
        instructions = _instructions(code)
        for k, step in enumerate(instructions):
            if step.argval != name and not (isinstance(step.argval, tuple) and name in step.argval):
                continue
            if step.opname == "LOAD_CONST":
                uses.add("read")  # `getattr(self, "losses")`
            elif step.opname.startswith("LOAD_") and step.opname != "LOAD_CLOSURE":
                uses.add("read" if isinstance(step.argval, tuple) else _use(instructions[k + 1 : k + 14]))
            elif step.opname.startswith(("STORE_", "DELETE_")) and step.opname not in ("STORE_FAST", "STORE_NAME"):
                uses.add("read")  # the name is bound to something else, too
    return frozenset(uses)


def _use(following: list[dis.Instruction]) -> str:
    """Return how the following instructions use the value that the previous one has loaded."""
    following = [i for i in following if i.opname not in ("PUSH_NULL", "NOP", "EXTENDED_ARG")]
    names = [i.opname for i in following]
    if len(following) < 2:
        return "read"
    if names[0] in ("LOAD_METHOD", "LOAD_ATTR"):
        return "written" if following[0].argval in WRITES else "read"
    if not names[0].startswith("LOAD_"):
        return "read"
    if names[1] == "STORE_SUBSCR":
        return "written"
    counting = len(names) > 6 and names[1:3] == ["COPY", "COPY"] and names[3] in ("BINARY_SUBSCR", "BINARY_OP")
    if counting and following[5].argrepr in _COUNTING and "STORE_SUBSCR" in names[6:9]:
        return "counted"
    return "read"


def is_counted_up(code: types.CodeType, offset: int) -> bool:
    """Return whether the attribute that the instruction at `offset` loads is the target of `+=` or `-=`, and the value
    goes nowhere else."""
    instructions = _instructions(code)
    k = next((k for k, instruction in enumerate(instructions) if instruction.offset == offset), 0)
    if not k or instructions[k].opname != "LOAD_ATTR":
        return False
    before = instructions[k - 1]
    if before.opname != "COPY" or before.arg != 1:  # only an augmented assignment needs its object twice
        return False
    name = instructions[k].argval
    for j in range(k + 1, len(instructions)):
        if instructions[j].opname == "STORE_ATTR" and instructions[j].argval == name:
            return any(instruction.argrepr in _COUNTING for instruction in instructions[j - 3 : j])
    return False
