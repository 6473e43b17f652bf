"""What is covered, name by name: tables that the program itself has, with a field to search in."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Iterable

PAGE = "reference/coverage.md"


def page(held: Callable[[str], str] = str) -> str:
    """Operators of PyTorch, primitives of JAX, raw operations of TensorFlow: each with how it is computed, or why not.

    `held` takes the HTML of a table, and gives what is to stand in its place while Markdown is read.
    """
    parts = [
        "---\nsearch:\n  exclude: true\n---\n\n# Coverage, name by name\n\n"
        "Generated from the tables that programs run on. How well each is tested is in "
        "[conformance](../conformance.md); the functions of the Array API are in the "
        "[reference](array_api.md).\n"
    ]
    parts += [
        _section(
            "Operators of PyTorch",
            "`tg.torch.operators()`: every overload of ATen that the device computes.",
            _torch(),
            held,
        ),
        _section("Primitives of JAX", "What `tg.graft(function, onto=...)` takes.", _jax(), held),
        _section("Raw operations of TensorFlow", "What a `tf.function` may consist of.", _tensorflow(), held),
    ]
    return "\n\n".join(parts)


def _torch() -> list[tuple[str, str]]:
    import tensorgraft as tg

    return sorted(tg.torch.operators().items())


def _jax() -> list[tuple[str, str]]:
    from tensorgraft.frontends.jax import quantized_evaluation  # noqa: F401 - it imports the rules
    from tensorgraft.frontends.jax.rule import REASONS, RULES

    return sorted([(n, "rule") for n in RULES] + [(n, f"none: {why}") for n, why in REASONS.items() if n not in RULES])


def _tensorflow() -> list[tuple[str, str]]:
    import tensorflow as tf

    from tensorgraft.frontends.tensorflow import rules  # noqa: F401 - all of them
    from tensorgraft.frontends.tensorflow.missing_rules import reason_of
    from tensorgraft.frontends.tensorflow.rule import REASONS, RULES

    names = {n for n in dir(tf.raw_ops) if n[0].isupper()} | set(RULES)
    return sorted((n, "rule" if n in RULES else f"none: {REASONS.get(n) or reason_of(n)}") for n in names)


def _section(title: str, says: str, rows: list[tuple[str, str]], held: Callable[[str], str]) -> str:
    counts = Counter(how.split()[0].rstrip(":") for _, how in rows)
    counted = ", ".join(f"{how}: {n}" for how, n in counts.most_common())
    return f"## {title}\n\n{says} {len(rows)} names ({counted}).\n\n{held(_table(rows))}\n"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """As HTML at once: thousands of rows of Markdown take long."""
    body = "\n".join(f"<tr><td><code>{html.escape(a)}</code></td><td>{html.escape(b)}</td></tr>" for a, b in rows)
    label = "Search in this table"
    return f"""<div class="filtered">
<input type="search" placeholder="{label}" aria-label="{label}">
<div class="rows">
<table>
<thead><tr><th>name</th><th>how</th></tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
</div>"""
