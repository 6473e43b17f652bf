"""The pages of the site: their programs run, and say what the page says that they do."""

import re
from pathlib import Path

import pytest
from pages import messages
from pages.blocks import EXPLANATIONS, blocks, front_matter, programs
from pages.running import PageError, run

DOCUMENTS = Path(__file__).parents[2] / "docs"
PAGES = [DOCUMENTS / one for one in ("index.md", "troubleshooting.md", *EXPLANATIONS)]
PAGES += [page for folder in ("tutorials", "how_to", "coming_from") for page in programs(DOCUMENTS / folder)]
# One whose process is quick; `make docs` runs them all.
QUICK = {"how_to/in_place.md"}


def name(page):
    return str(page.relative_to(DOCUMENTS))


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=name(p), marks=[] if name(p) in QUICK else pytest.mark.slow) for p in PAGES]
)
def test_programs(page):
    outputs = run(page)
    assert len(outputs) == len(blocks(page.read_text()))
    if page.name == "troubleshooting.md":
        assert len(messages.check(page.read_text(), outputs)) > 10


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_shown(page):
    """Each program is Python, and shows something or prepares what does."""
    text = page.read_text()
    for block in blocks(text):
        if block.language == "python":
            compile(block.program, name(page), "exec")
    if name(page) not in EXPLANATIONS:
        assert any(block.shows or "raises" in block.options for block in blocks(text)), page
    assert set(front_matter(text)) <= {"environment", "hide", "search"}


def test_every_program_runs_somewhere():
    """In the build, or in a test that names its page."""
    tests = "\n".join(p.read_text() for p in Path(__file__).parents[1].rglob("*.py") if p != Path(__file__))
    excerpts = DOCUMENTS / "source_gallery.md"  # of files that tests/codegen/test_gallery.py makes anew
    for page in DOCUMENTS.glob("*.md"):
        if page not in PAGES and page != excerpts and any(b.runs for b in blocks(page.read_text())):
            assert f'"{page.name}"' in tests, f"nothing runs the programs of docs/{page.name}"


def test_quoted_messages_are_in_the_source():
    """Quicker than to make them: the words of each heading, in code of the package or of PyTorch."""
    source = "\n".join(p.read_text() for p in (DOCUMENTS.parent / "src").rglob("*.py"))
    words = " ".join(re.findall(r"\w+", re.sub(r"\"\s*f?\"|\{[^{}]*\}", " ", source)))
    theirs = {"Expected all tensors to be on the same device"}
    for heading in messages.HEADING.finditer((DOCUMENTS / "troubleshooting.md").read_text()):
        for part in set(re.findall(r"`([^`]*)`", heading["quoted"])) - theirs:
            assert " ".join(re.findall(r"\w+", part)) in words, part


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```python raises\n1\n```\n", "says that it raises"),
        ("```python\nprint('', end='')\n```\n", "nothing came of it"),
        ("```sh run\nexit 3\n```\n", "exit 3"),
    ],
)
def test_a_program_that_fails_is_an_error(tmp_path, text, says):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(PageError, match=says):
        run(page)


def test_outputs(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "---\nenvironment:\n  WORD: here\n---\n"
        "```python\nimport os\nprint(os.environ['WORD'])\n```\n\n"
        "<!-- python\nx = 1\n-->\n\n"
        "```python raises\nraise ValueError(x)\n```\n\n"
        "```python file=a.py\nprint(2)\n```\n\n"
        "```sh run\npython a.py\n```\n\n"
        "```python\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n```\n"
    )
    kept = tmp_path / "kept"
    outputs = run(page, kept=kept)
    assert [o.text for o in outputs] == ["here\n", "", "ValueError: 1\n", "", "2\n", ""]
    (figure,) = outputs[-1].figures
    assert figure.startswith("<svg") and "currentColor" in figure
    assert run(page, kept=kept)[-1].text == "" and len(list(kept.iterdir())) == 1
    assert [b.hidden for b in blocks(page.read_text())] == [False, True, False, False, False, False]


def test_unknown_option():
    with pytest.raises(ValueError, match="no option 'runs'"):
        blocks("```python runs\n1\n```\n")
