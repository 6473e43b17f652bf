"""Programs are compared with CPU PyTorch, by whose table they are cast."""

from collections.abc import Iterator

import pytest
from tests.fuzz import run

import tensorgraft as tg


@pytest.fixture(autouse=True)
def the_reference_s_policy() -> Iterator[None]:
    with tg.autocast_policy(run.POLICY):
        yield
