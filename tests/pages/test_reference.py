"""Every public name is in the reference, with what it says of itself."""

import re
import types

import pytest
from pages import reference

import tensorgraft as tg

SPACES = reference.NAMESPACES


@pytest.mark.parametrize("space", SPACES, ids=lambda s: s.shown)
def test_every_name(space):
    page = reference.page(space)
    module = reference._module(space)
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            assert f"`{space.shown}.{name}`" in page or f"`{name}`" in page
        elif not reference._internal(name, value):
            assert f"{{ #{reference.anchor(space, name)} " in page, name
    anchors = re.findall(r"\{ #(\S+)", page)
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#(\S+)\)", page)) <= set(anchors)


def test_every_namespace():
    """A module that is public by a name of `tg` has a page."""
    shown = {space.module for space in SPACES}
    modules = [getattr(tg, name) for name in tg.__all__ if isinstance(getattr(tg, name), types.ModuleType)]
    assert {m.__name__ for m in modules if hasattr(m, "__all__")} <= shown


def test_sections():
    page = reference.page(next(s for s in SPACES if s.shown == "tg"))
    jit = page[page.index("{ #tg.jit ") : page.index("{ #tg.jvp ")]
    assert "**Arguments**\n\n- `fn`: a function or a module" in jit
    assert "**Raises**\n\n- `TracedValueError`: from a call" in jit
    assert "```pycon\n>>> import tensorgraft as tg" in jit
    assert "guard_values: bool = False" in jit
    assert "{ #tg.quantize_ " in page  # public without being in `__all__`
    assert not re.search(r"0x[0-9a-f]{6}", page)
