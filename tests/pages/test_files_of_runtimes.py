"""The programs of docs/onnx.md and docs/export.md run, one after the other."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

DOCUMENTS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["onnx.md", "export.md"])
def test_programs_of_the_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    programs = re.findall(r"(?:```|<!-- )python\n(.*?)(?:```|-->)", (DOCUMENTS / page).read_text(), re.DOTALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for program in programs:
            exec(compile(program, page, "exec"), names)
    assert names["tg"]
