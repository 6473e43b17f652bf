"""Arrays made in a frame and used outside of it without being its result: new statistics, entries of a cache."""

from __future__ import annotations

from collections.abc import Iterable

from tensorgraft.codegen.trace import Frame, SourceStep
from tensorgraft.hub.recorded.block import Var, variables


def note_left(root: Frame, used_later: Iterable[Var]) -> None:
    """Set `left` of each frame: its arrays that are used outside of it, as `used_later` are, and not its result."""
    frames_of: dict[Var, tuple[Frame, ...]] = {}
    left: dict[Frame, dict[Var, None]] = {}

    def use(v: Var, path: tuple[Frame, ...]) -> None:
        frames_made = frames_of.get(v, ())
        shared = 0
        while shared < min(len(frames_made), len(path)) and frames_made[shared] is path[shared]:
            shared += 1
        for frame in frames_made[shared:]:
            if all(v is not w for w in variables(frame.result)):
                left.setdefault(frame, {})[v] = None

    def walk(frame: Frame, path: tuple[Frame, ...]) -> None:
        for call in frame.calls:
            if isinstance(call, SourceStep):
                for v in variables([call.args, call.kwargs]):
                    use(v, path)
                for v in variables(call.results):
                    frames_of[v] = path
            else:
                for v in variables([value for _, value in call.arguments]):
                    use(v, path)
                walk(call, (*path, call))
        for v in variables(frame.result):
            use(v, path)

    walk(root, ())
    for v in used_later:
        use(v, ())
    for frame, arrays in left.items():
        frame.left = tuple(arrays)
