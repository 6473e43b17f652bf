"""The reference: pages of Markdown out of the docstrings of what is public, as Python sees it.

Nothing is listed here but the namespaces: a name that enters the `__all__` of one of them is on its page.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import textwrap
import types
from dataclasses import dataclass
from typing import Any

MANY = 24  # methods of a class: more are a table
SECTIONS = re.compile(r"^(Arguments|Returns|Raises|Yields|Attributes|Examples?|Sources?|Shapes?):[ ]*$", re.MULTILINE)


@dataclass(frozen=True)
class Namespace:
    """A page of the reference."""

    module: str
    shown: str  # what a program calls it
    says: str

    @property
    def page(self) -> str:
        return f"reference/{self.shown.removeprefix('tg.').replace('.', '_')}.md"


NAMESPACES = [
    Namespace("tensorgraft", "tg", "`import tensorgraft as tg`. Frameworks are imported when they are first used."),
    Namespace("tensorgraft.frontends.torch", "tg.torch", "What a program can ask of the PyTorch device."),
    Namespace("tensorgraft.array_api", "tg.array_api", "`import tensorgraft.array_api as xp`: the standard."),
    Namespace("tensorgraft.array_api.linalg", "tg.array_api.linalg", "The standard's extension `linalg`."),
    Namespace("tensorgraft.array_api.fft", "tg.array_api.fft", "The standard's extension `fft`."),
    Namespace("tensorgraft.random", "tg.random", "Random numbers for arrays: `jax.random`'s, on every backend."),
    Namespace("tensorgraft.transforms", "tg.transforms", "Filtered transforms and pytrees."),
    Namespace("tensorgraft.nn", "tg.nn", "Layers of models that are pytrees."),
    Namespace("tensorgraft.operators", "tg.operators", "Linear operators, solvers, estimates of traces."),
    Namespace("tensorgraft.quantization", "tg.quantization", "Quantised tensors, models and optimizers."),
    Namespace("tensorgraft.precision", "tg.precision", "Mixed precision."),
    Namespace("tensorgraft.parallel", "tg.parallel", "Meshes, placements and plans."),
]


def names(space: Namespace) -> list[str]:
    module = _module(space)
    public = {*module.__all__, *getattr(module, "_HOMES", ())}
    return [n for n in sorted(public, key=lambda n: (n.lower(), n)) if not _internal(n, getattr(module, n))]


def anchor(space: Namespace, name: str) -> str:
    """Where a name stands on its page. (Underscores around it would be Markdown's.)"""
    return f"{space.shown}.{name.strip('_') if name.startswith('__') else name}"


def page(space: Namespace) -> str:
    """The whole page of a namespace, as Markdown."""
    module = _module(space)
    pages = {one.module: one for one in NAMESPACES}
    contents, entries = [], []
    for name in names(space):
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            there = pages.get(value.__name__)
            link = f"[`{space.shown}.{name}`]({there.page.removeprefix('reference/')})" if there else f"`{name}`"
            contents.append((link, _first_sentence(value)))
            continue
        where = anchor(space, name)
        contents.append((f"[`{name}`](#{where})", _first_sentence(value)))
        label = where.rpartition(".")[2]
        entries.append(f"## `{space.shown}.{name}` {{ #{where} data-toc-label='{label}' }}\n\n{_entry(name, value)}")
    table = "\n".join(f"| {link} | {says} |" for link, says in contents)
    return f"# {space.shown}\n\n{space.says}\n\n| | |\n| --- | --- |\n{table}\n\n" + "\n\n".join(entries) + "\n"


def _module(space: Namespace) -> types.ModuleType:
    try:
        return importlib.import_module(space.module)
    except ModuleNotFoundError:  # `linalg` is a namespace, and no file
        parent, _, name = space.module.rpartition(".")
        return getattr(importlib.import_module(parent), name)


def _internal(name: str, value: Any) -> bool:
    return name.startswith("__") and not callable(value)


def _entry(name: str, value: Any) -> str:
    if not callable(value) or (isinstance(value, type) and issubclass(value, enum.Enum)):
        return f"`{value!r}`, {_a(type(value).__name__)}." if not isinstance(value, type) else _text(value)
    parts = [_signature(name, value), _text(value)]
    if isinstance(value, type):
        methods = _methods(value)
        if len(methods) > MANY:
            rows = "\n".join(f"| `{n}` | {_first_sentence(m)} |" for n, m in methods)
            parts.append(f"| method | |\n| --- | --- |\n{rows}")
        else:
            parts += [f"**`{_call(n, m)}`**\n\n{_text(m)}" for n, m in methods]
    return "\n\n".join(part for part in parts if part)


def _a(noun: str) -> str:
    return f"an `{noun}`" if noun[0].lower() in "aeiou" else f"a `{noun}`"


def _signature(name: str, value: Any) -> str:
    if isinstance(value, type) and issubclass(value, Exception):
        bases = ", ".join(b.__name__ for b in value.__bases__)
        return f"```text\nclass {name}({bases})\n```"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return f"```text\n{name}(...)\n```"
    parameters = [
        p.replace(annotation=_plain(p.annotation))
        for p in signature.parameters.values()
        if p.name not in ("self", "cls")
    ]
    line = str(signature.replace(parameters=parameters, return_annotation=_plain(signature.return_annotation)))
    line = re.sub(r"<(function|class|object)[^>]*?([A-Za-z_]\w*)[^>]*>", r"\2", line)
    line = re.sub(r"<[^<>]*? object at 0x[0-9a-f]+>", "...", line)
    if len(name + line) > 90:
        line = _wrapped(line)
    return f"```python\n{'class ' if isinstance(value, type) else ''}{name}{line}\n```"


@dataclass(frozen=True)
class _Plain:
    """An annotation that prints as it was written."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _plain(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Plain(
        re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text).replace("typing.", "").replace("collections.abc.", "")
    )


def _wrapped(line: str) -> str:
    """`(a: int, b: int) -> c` with a line for each parameter."""
    depth, start, parts, end = 0, 1, [], len(line)
    for i, c in enumerate(line):
        depth += (c in "([{") - (c in ")]}")
        if (c == "," and depth == 1) or (c == ")" and depth == 0):
            parts.append(line[start:i].strip())
            start = i + 1
            if depth == 0:
                end = i
                break
    return "(\n" + "".join(f"    {part},\n" for part in parts if part) + line[end:]


def _methods(value: type) -> list[tuple[str, Any]]:
    """The public methods and properties that say what they do, of the class and of its bases in this package."""
    found: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith("tensorgraft"):
            found |= {n: m for n, m in vars(base).items() if not n.startswith("_")}
    return [(n, m) for n, m in sorted(found.items()) if _documented(m)]


def _documented(member: Any) -> bool:
    if not isinstance(member, property | classmethod | staticmethod | types.FunctionType):
        return False
    return bool(getattr(member, "__doc__", None))


def _call(name: str, member: Any) -> str:
    if isinstance(member, property):
        return name
    fn = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    parameters = [p for p in inspect.signature(fn).parameters.values() if p.name not in ("self", "cls")]
    return f"{name}({', '.join(str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters)})"


def _doc(value: Any) -> str:
    if isinstance(value, type):
        return inspect.cleandoc(vars(value).get("__doc__") or "")
    return inspect.getdoc(value) or ""


def _first_sentence(value: Any) -> str:
    if not callable(value) and not isinstance(value, types.ModuleType | property | classmethod):
        return f"`{value!r}`"
    first = " ".join(_doc(value).split("\n\n")[0].split())
    first = re.split(r"(?<=\.)\s+(?=[A-Z`])", first)[0]
    return first.replace("|", "\\|")


def _text(value: Any) -> str:
    """A docstring as Markdown: sections become lists, examples blocks of code."""
    text = _doc(value)
    pieces = SECTIONS.split(text)
    parts = [_examples(pieces[0])]
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        indented, rest = _indented(body)
        parts.append(f"**{title}**\n\n" + (_items(indented) if title != "Returns" else textwrap.dedent(indented)))
        parts.append(_examples(rest))
    return "\n\n".join(part.strip("\n") for part in parts if part.strip())


def _indented(body: str) -> tuple[str, str]:
    """What belongs to a section, and what comes after it."""
    lines = body.strip("\n").split("\n")
    end = next((i for i, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return "\n".join(lines[:end]), "\n".join(lines[end:])


def _items(body: str) -> str:
    """`name: what it is`, one a line, lines that go on indented."""
    items: list[list[str]] = []
    for line in textwrap.dedent(body).split("\n"):
        if line and not line.startswith(" "):
            items.append([line])
        elif items and line.strip():
            items[-1].append(line.strip())
    shown = []
    for item in items:
        head, colon, rest = " ".join(item).partition(":")
        shown.append(
            f"- `{head.strip('`')}`: {rest.strip()}" if colon and "`" not in head.strip("`") else f"- {' '.join(item)}"
        )
    return "\n".join(shown)


def _examples(text: str) -> str:
    """Lines of `>>>` and what follows them as blocks of code."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        dedented = textwrap.dedent(paragraph)
        if dedented.startswith(">>> "):
            parts.append(f"```pycon\n{dedented}\n```")
        elif "\n>>> " in dedented:
            before, example = dedented.split("\n>>> ", 1)
            parts += [before, f"```pycon\n>>> {example}\n```"]
        else:
            parts.append(paragraph)
    return "\n\n".join(parts)
