"""The process of a page: `python -m pages.worker PAGE OUTPUTS`."""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import re
import subprocess
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

from pages.blocks import Block, blocks
from pages.running import Output

# A colour that nothing else has: in the page it is that of the text, on light and on dark ground.
_TEXT = "#010203"


def main(page: Path, results: Path) -> None:
    names: dict[str, Any] = {"__name__": "__page__"}
    outputs = []
    for block in blocks(page.read_text()):
        if block.file:
            Path(block.file).write_text(block.program)
        run = _command if block.language == "sh" else _run
        outputs.append(run(block, names, page) if block.runs else Output())
    results.write_text(json.dumps([vars(output) for output in outputs]))


def _run(block: Block, names: dict[str, Any], page: Path) -> Output:
    # Messages quote lines of the program: they are counted as if the page were one script.
    name, lines = f"{page.stem}.py", linecache.cache.get(f"{page.stem}.py", (0, None, [], ""))[2]
    program = "\n" * len(lines) + block.program
    linecache.cache[name] = (0, None, lines + block.program.splitlines(True), name)
    printed = io.StringIO()
    if "matplotlib" in block.program and "matplotlib" not in sys.modules:
        _style()
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _warn
            exec(compile(program, name, "exec", dont_inherit=True), names)
    except Exception as e:
        if "raises" not in block.options:
            sys.stderr.write(f"{page}:{block.line}\n{printed.getvalue()}")
            raise
        notes = "".join(f"\n{note}" for note in getattr(e, "__notes__", ()))
        printed.write(f"{type(e).__name__}: {e}{notes}\n")
    else:
        if "raises" in block.options:
            raise SystemExit(f"{page}:{block.line}: this block says that it raises, and it does not")
    return Output(printed.getvalue(), tuple(_figures()))


def _command(block: Block, names: dict[str, Any], page: Path) -> Output:
    """By the shell, in which `python` and `tensorgraft` are those of this process."""
    ours = f'python() {{ "{sys.executable}" "$@"; }}; tensorgraft() {{ python -m tensorgraft "$@"; }}\n'
    done = subprocess.run(["bash", "-euc", ours + block.program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{page}:{block.line}: {block.program}{done.stdout}{done.stderr}")
    return Output(done.stdout)


def _warn(message: Any, category: Any, *rest: Any) -> None:
    """A warning is a part of what a program shows if it is one of ours."""
    if category.__module__.startswith("tensorgraft"):
        print(f"{category.__name__}: {message}")


def _style() -> None:
    import matplotlib

    matplotlib.use("agg")
    colours = ["text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"]
    matplotlib.rcParams.update(
        dict.fromkeys(colours, _TEXT)
        | {"figure.figsize": (6.4, 3.2), "figure.facecolor": "none", "axes.facecolor": "none", "svg.fonttype": "none"}
        | {"savefig.facecolor": "none", "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False}
        | {"figure.constrained_layout.use": True, "font.family": "sans-serif", "svg.hashsalt": "tensorgraft"}
        | {"axes.prop_cycle": matplotlib.cycler(color=["#2f8f83", "#d9822b", "#7b6fd0", "#c2495c", "#6b8e23"])}
    )


def _figures() -> list[str]:
    if "matplotlib.pyplot" not in sys.modules:
        return []
    import matplotlib.pyplot as plt

    drawn = []
    for number in plt.get_fignums():
        file = io.StringIO()
        plt.figure(number).savefig(file, format="svg", metadata={"Date": None})
        text = file.getvalue()
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
        text = re.sub(r"\n\s*", "\n", text).replace(_TEXT, "currentColor")
        text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text))
        # two figures of a page may not share the names of their parts
        drawn.append(re.sub(r'(id="|url\(#|href="#)', rf"\g<1>f{zlib.crc32(text.encode()):x}-", text))
    plt.close("all")
    return drawn


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
