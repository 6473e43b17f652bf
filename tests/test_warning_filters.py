"""Warnings that are kept from a program, and the program's own, which Python shows once."""

import re
import threading
import warnings

import pytest

from tensorgraft import warning_filters


def own():
    warnings.warn("the program's own", UserWarning, stacklevel=1)


@pytest.fixture
def shown(monkeypatch):
    """What is shown with Python's default filters."""
    texts = []
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("default")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *rest: texts.append(str(message)))
        yield texts


def test_what_was_shown_is_not_shown_again(shown):
    for _ in range(3):
        own()
        with warning_filters.ignored("not used"):
            warnings.warn("Not used: this", UserWarning, stacklevel=1)
            warnings.warn("used", UserWarning, stacklevel=1)
        with warning_filters.recorded_warnings() as texts:
            warnings.warn("heard", UserWarning, stacklevel=1)
        assert texts == ["heard"]
        with warning_filters.remembered():
            warnings.simplefilter("default", BytesWarning)  # as an import may
    assert shown == ["the program's own", "used"]


def test_filters_are_as_they_were(shown):
    before = list(warnings.filters)
    with warning_filters.ignored("x"), warning_filters.recorded_warnings():
        warnings.filterwarnings("ignore", message="new")
    assert list(warnings.filters) == [("ignore", re.compile("new", re.I), Warning, None, 0), *before]
    with pytest.raises(ValueError, match="inside"), warning_filters.recorded_warnings():
        raise ValueError("inside")
    own()
    assert shown == ["the program's own"]


def test_other_threads_are_not_heard(shown):
    with warning_filters.recorded_warnings() as texts:
        thread = threading.Thread(target=own)
        thread.start()
        thread.join()
    assert texts == [] and shown == ["the program's own"]


def test_a_warning_is_said_at_the_programs_line():
    with pytest.warns(UserWarning, match="here") as seen:
        warning_filters.warn("here")
    assert seen[0].filename == __file__
