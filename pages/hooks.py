"""What MkDocs calls while it builds: programs are run, the reference and the tables are written."""

from __future__ import annotations

import functools
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from pages import coverage, messages, reference
from pages.blocks import EXPLANATIONS, blocks
from pages.running import Output, PageError, is_kept, run

ROOT = Path(__file__).parents[1]
# Pages whose programs run in the build. Those of the others run in tests of their own (tests/pages/test_pages.py).
# PAGES=kept shows what was kept of earlier runs alone: to look at the layout, and in a test of links.
RUN = ("index.md", "tutorials/", "how_to/", "coming_from/", "troubleshooting.md", *EXPLANATIONS)
KEPT = ROOT / "out" / "pages"
ROOM = "Trusted"  # takes the pages that no other room names

_outputs: dict[str, Future[list[Output]]] = {}
_raw: list[str] = []  # HTML that Markdown need not read, which takes it long


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages that the navigation does not name go into a room of their own; those not there yet are left out."""
    root = Path(config.docs_dir)
    named = set(_pages(config.nav))
    found = {str(p.relative_to(root)) for p in root.rglob("*.md")}
    generated = {space.page for space in reference.NAMESPACES} | {coverage.PAGE}
    (room,) = (entry[ROOM] for entry in config.nav or [] if ROOM in entry)
    room += sorted(found - named)
    room[:] = [entry for entry in room if set(_pages([entry])) <= found | generated]
    return config


def _pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav or []) for page in _pages(entry)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    with ThreadPoolExecutor(2) as pool:  # they run while the reference is written
        for file in files.documentation_pages():
            if not (file.src_uri.startswith(RUN) and any(b.runs for b in blocks(file.content_string))):
                continue
            page = Path(file.abs_src_path or "")
            if os.environ.get("PAGES") != "kept" or is_kept(page, KEPT):
                _outputs[file.src_uri] = pool.submit(run, page, kept=KEPT)
        for space in reference.NAMESPACES:
            files.append(File.generated(config, space.page, content=reference.page(space)))
        files.append(File.generated(config, coverage.PAGE, content=coverage.page(_held)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    try:
        outputs = _outputs[uri].result() if uri in _outputs else None
        if uri == "troubleshooting.md" and outputs:
            messages.check(markdown, outputs)
    except PageError as e:
        raise PluginError(str(e)) from None
    return _without_links_outside(_shown(markdown, outputs), page)


def _shown(text: str, outputs: list[Output] | None) -> str:
    """The page with what its programs gave, without what is not for the reader."""
    found = blocks(text)
    for i in reversed(range(len(found))):
        block = found[i]
        title = f' title="{block.file}"' if block.file else ""
        shown = "" if block.hidden else f"```{block.language}{title}\n{block.program}```"
        if outputs and not block.hidden:
            shown += _output(outputs[i], ".said" if "raises" in block.options else "")
        text = text[: block.start] + shown + text[block.end :]
    return text


def _output(output: Output, kind: str) -> str:
    shown = ""
    if output.text.strip():
        shown += f"\n\n```{{.text .output {kind}}}\n{output.text.rstrip()}\n```"
    for figure in output.figures:
        shown += f'\n\n{_held(f"""<figure class="drawn">{figure.strip()}</figure>""")}'
    return shown


def _held(text: str) -> str:
    _raw.append(text)
    return f'<div data-raw="{len(_raw) - 1}"></div>'


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return re.sub(r'<div data-raw="(\d+)"></div>', lambda match: _raw[int(match[1])], html)


def _without_links_outside(text: str, page: Page) -> str:
    """A file of the repository that is not in the site is named, and has to exist."""

    def named(match: re.Match[str]) -> str:
        target = (Path(page.file.abs_src_path or "").parent / match[2].partition("#")[0]).resolve()
        if target.is_relative_to(_documents()):
            return match[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: there is no {match[2]}")
        return f"`{target.relative_to(ROOT)}`" if match[1].startswith("`") else match[1]

    return re.sub(r"\[([^\]\n]*)\]\(((?:\.\./)[^)\s]*)\)", named, text) if page.file.abs_src_path else text


@functools.cache
def _documents() -> Path:
    return ROOT / "docs"
