"""The page of what ran on an accelerator."""

from __future__ import annotations

import sys

import pytest
from tests.accelerators import __main__ as accelerators


@pytest.mark.parametrize("platform", accelerators.PAGES)
def test_a_machine_without_one_leaves_what_was_measured(platform, tmp_path, monkeypatch, capsys):
    path = tmp_path / "page.md"
    monkeypatch.setitem(accelerators.PAGES, platform, path)
    monkeypatch.setattr(accelerators, "device", lambda platform: None)
    monkeypatch.setattr(sys, "argv", ["tests.accelerators", "--platform", platform])
    assert accelerators.main() == 0 and "not run" in capsys.readouterr().out
    assert path.read_text().count("| not run |") == len(accelerators.STEPS)

    measured = accelerators.page(platform, "Some device", [accelerators.Result("demo", "done", 3.0)])
    path.write_text(measured)
    assert accelerators.main() == 0 and path.read_text() == measured
