"""Simplification of a trace frame by frame: the steps of a frame stay in it."""

from __future__ import annotations

from collections import Counter

from tensorgraft.codegen.simplification import idioms, simplifying
from tensorgraft.codegen.simplification.rewriting import Rewritten, rewrite, tuple_of_arrays
from tensorgraft.codegen.trace import Call, Frame, SourceStep, SourceTrace, Var, inputs_of, outputs_of, steps, variables
from tensorgraft.hub.recorded.tracing import program_backend

# front ends translate steps to words; these rules remove artefacts of kernels
TABLES = (simplifying.RULES, idioms.SECOND_PASS, simplifying.LAST_PASS)


def simplify(trace: SourceTrace) -> None:
    """Rewrite the steps of each frame by the rules of `simplifying`."""
    _Simplifier(trace).run()


class _Simplifier:
    def __init__(self, trace: SourceTrace) -> None:
        self.trace = trace
        self.replaced = Rewritten()  # in all frames
        self.uses: Counter[Var] = Counter(variables([trace.result, trace.written]))
        for step in steps(trace.root):
            self.uses.update(variables([step.args, step.kwargs]))

    def run(self) -> None:
        trace = self.trace
        self.frame(trace.root)
        trace.result = self.replaced(trace.result)
        trace.written = self.replaced(trace.written)

    def frame(self, frame: Frame) -> None:
        """Simplify a frame after the frames inside, because it uses their results."""
        xp = program_backend()
        uses_inside = Counter[Var]()
        for step in steps(frame):
            uses_inside.update(variables([step.args, step.kwargs]))
        # results that are used outside, as an argument of the frame or otherwise
        outside = [v for s in steps(frame) for v in variables(s.results) if self.uses[v] > uses_inside[v]]
        opaque: dict[int, Frame] = {}
        calls: list[Call] = []
        for call in frame.calls:
            self.substitute(call)
            if isinstance(call, Frame):
                self.frame(call)
                stand_in = Call("frame", tuple(dict.fromkeys(inputs_of(call))), {}, tuple(_outputs_within(call)))
                opaque[id(stand_in)] = call
                calls.append(stand_in)
            else:
                calls.append(call)
        results = (tuple(outputs_of(frame)), tuple(outside))
        results = tuple(tuple_of_arrays(xp, self.replaced(t)) for t in results)
        for table in TABLES:
            calls, replaced = rewrite(xp, calls, results, table)
            self.replaced.instead.update(replaced.instead)
            results = tuple(tuple_of_arrays(xp, replaced(t)) for t in results)
        frame.calls = []
        for c in calls:
            inner = opaque.get(id(c))
            if inner is not None:
                self.substitute(inner)
                frame.calls.append(inner)
            elif isinstance(c, SourceStep):
                frame.calls.append(c)
            else:
                location = getattr(c, "place", "")
                frame.calls.append(SourceStep(c.method, c.args, c.kwargs, c.results, (), location))
        frame.result, frame.left = self.replaced(frame.result), self.replaced(frame.left)

    def substitute(self, call: SourceStep | Frame) -> None:
        if isinstance(call, Frame):
            call.arguments = [(n, self.replaced(t)) for n, t in call.arguments]
            for inner in call.calls:
                self.substitute(inner)
            call.result, call.left = self.replaced(call.result), self.replaced(call.left)
        else:
            call.args, call.kwargs = self.replaced(call.args), self.replaced(call.kwargs)


def _outputs_within(frame: Frame) -> list[Var]:
    return [v for step in steps(frame) for v in variables(step.results)]
