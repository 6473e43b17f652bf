"""Which axes of a mesh of the processes groups are."""

import pytest

from tensorgraft.hub.collectives import World


def world(size: int, *groups: tuple[int, ...]) -> tuple[World, list[tuple[int, ...]]]:
    """(the world of process 0, of each group the sizes of the axes along which it lies)"""
    made = World(size, 0, lambda rank: 10 * rank)
    found = [made.group(ranks, 1.0) for ranks in groups]
    axes = made.axes()
    return made, [tuple(axes[name] for name in made.axes_of(group)) for group in found]


@pytest.mark.parametrize(
    ("size", "groups", "axes", "along"),
    [
        (4, [(0, 1, 2, 3)], [4], [(4,)]),
        (4, [(0, 1, 2, 3), (0, 1), (0, 2)], [2, 2], [(2, 2), (2,), (2,)]),
        (8, [(0, 1, 2, 3, 4, 5, 6, 7), (2, 3), (1, 5)], [2, 2, 2], [(2, 2, 2), (2,), (2,)]),
        (8, [(4, 5, 6, 7), (1, 3)], [2, 2, 2], [(2, 2), (2,)]),
        (4, [(0, 3)], [4], [()]),  # no axis: two processes that are three apart
        (4, [(1, 2)], [4], [()]),  # nor is one that begins in the middle
        (3, [(0, 1, 2), (0, 1)], [3], [(3,), ()]),  # or does not divide the others
        (12, [(0, 1, 2), (0, 1)], [4, 3], [(3,), ()]),  # two that do not go together: the first
    ],
)
def test_groups_are_axes(
    size: int, groups: list[tuple[int, ...]], axes: list[int], along: list[tuple[int, ...]]
) -> None:
    made, found = world(size, *groups)
    assert list(made.axes().values()) == axes and found == along


def test_a_group_is_one() -> None:
    made, _ = world(4, (1, 3))
    group = made.group((1, 3), 5.0)
    assert made.groups == [group] and group.devices == (10, 30) and group.size == 2
