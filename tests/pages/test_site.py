"""The site is built, strictly, without running programs: navigation, links and anchors."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_build(tmp_path, monkeypatch):
    pytest.importorskip("material", reason="in the dependency group docs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("PAGES", "kept")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    build(config)
    assert (tmp_path / "reference" / "tg.html").exists()
    for page in tmp_path.rglob("*.html"):  # nothing is fetched from elsewhere
        text = page.read_text()
        fetched = re.findall(
            r'<(?:script|img|iframe)[^>]+src="([^"]+)"|<link[^>]+(?:stylesheet|icon)[^>]+href="([^"]+)"', text
        )
        assert not [url for pair in fetched for url in pair if url.startswith(("http", "//"))], page


def test_links():
    """Between the pages, as MkDocs checks them, in no time: a file that is not there, an anchor that no heading has."""
    docs = ROOT / "docs"
    missing = []
    for page in docs.rglob("*.md"):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            if re.match(r"\w+:", target):
                continue
            there = page if not path else (page.parent / path).resolve()
            if there.is_relative_to(docs / "reference"):
                continue
            if not there.exists() or (anchor and anchor not in _anchors(there.read_text())):
                missing.append(f"{page.name}: {target}")
    assert not missing, missing


def _anchors(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    own = re.findall(r"^#+ .*\{ #(\S+) \}", text, re.MULTILINE)
    slugs = [re.sub(r"[^\w\s-]", "", h).strip().lower() for h in re.findall(r"^#+ (.*)", text, re.MULTILINE)]
    return {*own, *(re.sub(r"[-\s]+", "-", s) for s in slugs)}
