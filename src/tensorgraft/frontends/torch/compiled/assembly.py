"""Assembly of what a trace by `tg.jit` has found into a program that later calls run."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.compiled.agreement import Check, Record
from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.instructions import compares_identities
from tensorgraft.compiled.lookups import Lookups
from tensorgraft.compiled.objects import Template
from tensorgraft.compiled.program import Feed, ProgramInputs, Source, Storages
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.compiled.values import is_plain
from tensorgraft.frontends.torch.compiled.guards.assumptions import Captured, Guards, Modules, SharedObjects, getter_of
from tensorgraft.frontends.torch.compiled.guards.values import ValueGuards
from tensorgraft.frontends.torch.compiled.host.call_tensors import HostSteps, calling, on_host
from tensorgraft.frontends.torch.compiled.trace import Gradient, Result, Trace
from tensorgraft.frontends.torch.compiled.tracing import Tracing
from tensorgraft.frontends.torch.core.attributes import Attributes
from tensorgraft.frontends.torch.core.codes import QuantizedPart, count, kind_of, split_quantized
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.metadata import Metadata
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.hub.array import Array
from tensorgraft.quantization import policy
from tensorgraft.storage import Storage

Tensor = torch.Tensor


def assemble(check: Check, held: list[Any], tracing: Tracing, program: Any) -> Trace:
    """Return what a traced run and its program become: where inputs are found, what becomes of outputs, guards.

    `held`: objects that keys know by identity; `check`: whether another trace is to be compared with it.
    """
    return _Assembly(tracing, program).trace(check, held)


class _Assembly:
    """A traced run and its program, by the identities of storages, arrays and tensors."""

    def __init__(self, tracing: Tracing, program: Any) -> None:
        capture = tracing.capture
        self.tracing, self.program, self.capture = tracing, program, capture
        self.place = {id(t): i for i, t in tracing.device_arguments}
        self.positions: dict[int, int] = {id(a): k for k, a in enumerate(program.captured)}
        self.donated = [self.positions[id(t.stand_in)] for t in tracing.written if id(t.stand_in) in self.positions]
        self.touched = {id(t.cell) for t in capture.touched}
        self.finders = self._gradients_before() | tracing.slots.finders
        self.sources: dict[int, Source] = {id(t.stand_in): self.source(t.cell) for t in capture.touched}
        self.fed: dict[int, Feed] = {id(f.stand_in): f for f in capture.feeds}
        self.number: dict[int, int] = {}  # of survivors: where the arrays of each begin
        outputs = 0
        for c in tracing.survivors:
            self.number[id(c)] = outputs
            outputs += count(kind_of(c))
        self.claimed: set[int] = set()  # numbers of survivors that results and gradients are on

    def trace(self, check: Check, held: list[Any]) -> Trace:
        tracing, capture, argument_index = self.tracing, self.capture, self.place
        results, gradients = self.results(), self.gradients()
        guards = self.guards()
        self.connect_tape()
        inputs, template = self.inputs(), tracing.template
        if capture.values is not None and capture.values.answers:
            guards = ValueGuards(guards, capture.values, self.program, inputs, capture.backend)  # type: ignore[assignment]
        finders = [] if template is None else [tracing.world.finders.get(id(x)) for x in template.old]
        return Trace(
            record=None if check == "never" else self.record(results, gradients),
            backend=capture.backend,
            run=policy.counting(self.program.compile(self.donated), tracing.notes),
            inputs=inputs,
            donated=self.donated,
            versions=self.versions(),
            written=Storages([self.source(t.cell) for t in tracing.written], _cell_of),
            unclaimed=self.unclaimed(),
            results=results,
            moved=tracing.moved,
            numbers=tracing.numbers,
            failures=[(error, words) for _, error, words in capture.failures or ()],
            required=tracing.required,
            structure=tracing.structure,
            gradients=gradients,
            draws=capture.advances(),
            schedule=tracing.schedule,
            guards=guards,
            key_objects=held,
            grad_mode=None if tracing.grad_mode is torch.is_grad_enabled() else tracing.grad_mode,
            template=template,
            finders=finders,
            changes=tracing.changes,
            host_writes=tracing.host.writes(),
            outside_calls=tracing.outside_calls,
            tape=tracing.tape,
            roots=tracing.roots,
            classes=tracing.classes,
            attributes=tracing.attributes,
            ends=[] if tracing.tape is None else [getter_of(t, argument_index) for t in tracing.tape.leaves],
        )

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def source(self, cell: Storage) -> Source:
        """Return the source from which a later call takes what this storage was at the traced one."""
        cells = self.tracing.cells
        if isinstance(cell, QuantizedPart):
            i = cells.get(id(cell.owner))
            return Source(cell) if i is None else Source(find=_part_of(i, cell))
        i, find = cells.get(id(cell)), self.finders.get(id(cell))
        if i is not None:
            return Source(argument=i)
        return Source(cell) if find is None else Source(find=find)

    def _gradients_before(self) -> dict[int, Callable[[Sequence[Any]], Storage]]:
        """Return functions that find the storages of gradients, which calls look for anew."""
        finders = {}
        for leaf in self.capture.leaves.values():
            if leaf.before is None or leaf.before.device.type != TYPE:
                continue
            cell = cell_of(leaf.before)
            if leaf.reset and id(cell) in self.touched:  # it was read before it was dropped
                leaf.reset = False
            if not leaf.reset:
                finders[id(cell)] = _gradient_of(getter_of(leaf.tensor, self.place))
        return finders

    def inputs(self) -> ProgramInputs:
        captured = [self.sources.get(id(a)) or self.fed.get(id(a), a) for a in self.program.captured]
        return ProgramInputs(captured, self.donated, self.capture.backend, _cell_of, calling)

    # ---- outputs ---------------------------------------------------------------------------------------------------

    def results(self) -> list[Result]:
        tracing = self.tracing
        results: list[Result] = []
        for o, identical, finder in itertools.zip_longest(tracing.flat, tracing.identical, tracing.result_finders):
            if identical is not None:
                results.append(Result(argument=identical))
            elif (first := tracing.same_as[len(results)]) != len(results):
                results.append(Result(same_as=first))
            elif finder is not None:
                results.append(Result(finder=finder))
            elif isinstance(o, Tensor) and o.device.type == TYPE:
                results.append(self._tensor(o))
            elif on_host(o):
                results.append(Result(host=tracing.host.result(o)))
            else:
                results.append(Result(value=o))
        return results

    def _tensor(self, t: Tensor) -> Result:
        key = id(cell_of(t))
        if key in self.number:
            self.claimed.add(self.number[key])
            return Result(survivor=self.number[key], metadata=Metadata.of_lazy(t), toggled=_toggled(t))
        if key in self.tracing.cells:
            return Result(argument=self.tracing.cells[key], metadata=Metadata.of_lazy(t))
        return Result(value=t)

    def gradients(self) -> list[Gradient]:
        gradients = []
        for leaf, gradient_after in self.tracing.slopes:
            get_leaf = getter_of(leaf.tensor, self.place)
            if gradient_after is None and (leaf.reset or leaf.before is not None):
                gradients.append(Gradient(get_leaf, None, None))
            elif gradient_after is not None and gradient_after is not leaf.before:
                k = self.number.get(id(cell_of(gradient_after)))
                if k is not None:
                    self.claimed.add(k)
                    result = self.tracing.returned.get(id(leaf.tensor))
                    metadata, toggled = Metadata.of_lazy(gradient_after), _toggled(gradient_after)
                    gradients.append(Gradient(get_leaf, k, metadata, leaf.reset, result=result, toggled=toggled))
                else:  # a tensor from outside
                    gradients.append(Gradient(get_leaf, None, None, finder=getter_of(gradient_after, self.place)))
        return gradients

    def unclaimed(self) -> list[tuple[int, Storage]]:
        """Return the survivors that something else than results and gradients holds on to."""
        unclaimed = [(k, c) for c in self.tracing.survivors if (k := self.number[id(c)]) not in self.claimed]
        return [(k + i, part) for k, c in unclaimed for i, part in enumerate(split_quantized([c]))]

    def versions(self) -> tuple[list[Tensor], list[int]]:
        """Return the tensors from outside whose versions a call counts up, and the arguments."""
        tracing, slots, index = self.tracing, self.tracing.slots, self.place
        # what operators write that autograd takes for a constant (running statistics) it does not count
        bumped = [t for t, before in tracing.versions if t._version != before and id(t) not in slots.tensors]
        written_cells, known = {id(t.cell) for t in tracing.written}, {id(t) for t, _ in tracing.versions}
        stepped_on = {id(p): p for s in tracing.stepped for group in s.optimizer.param_groups for p in group["params"]}
        bumped += [
            p
            for key, p in stepped_on.items()
            if key not in known and p.device.type == TYPE and id(cell_of(p)) in written_cells
        ]
        return [t for t in bumped if id(t) not in index], [index[id(t)] for t in bumped if id(t) in index]

    def connect_tape(self) -> None:
        """Tell the tape where a call finds what a backward pass outside begins with."""
        tracing, tape, argument_index = self.tracing, self.tracing.tape, self.place
        if tape is None:
            return
        outside = [t for t, _ in tracing.versions if id(t) not in tracing.slots.tensors]
        # an argument with a history is here without it, too: each call has another one
        outside_tensors = [t for t in outside if id(t) in argument_index or id(cell_of(t)) not in tracing.cells]
        once = [
            t if k == first else None for k, (t, first) in enumerate(zip(tracing.flat, tracing.same_as, strict=True))
        ]
        tape.watch([(t, getter_of(t, argument_index)) for t in outside_tensors], once)
        positions_of_usable = {a: k for a, k in self.positions.items() if a in tracing.usable}
        arrays = {a: _array_of(self.sources, self.fed, a) for a in tracing.usable}
        tape.locate(positions_of_usable, tracing.outputs, arrays)

    # ---- guards ----------------------------------------------------------------------------------------------------

    def guards(self) -> Guards:
        tracing, capture, slots = self.tracing, self.capture, self.tracing.slots
        reads, surroundings, world, changes = tracing.reads, tracing.surroundings, tracing.world, tracing.changes
        methods = reads.functions(capture.modules.values())
        schedulers = list(capture.schedulers_read.values())
        if tracing.schedule.before or tracing.schedule.after:
            if any(name == "param_groups" for _, name in capture.optimizers_read):
                raise RunsUncompiled("reads the hyper-parameters of an optimizer whose scheduler steps in it")
            if schedulers:
                raise RunsUncompiled(f"reads a {type(schedulers[0]).__name__}, and a scheduler steps in it")
        for (_, name), optimizer in capture.optimizers_read.items():
            surroundings.add(f"{type(optimizer).__name__}.{name}", getattr(optimizer, name))
        modules = Modules([*capture.modules.values(), *reads.modules()], slots.rebound, reads.used)
        for hook in modules.hooks:
            surroundings.add("a hook", hook)
        for cls in modules.classes:
            if isinstance(forward := getattr(cls, "forward", None), types.FunctionType):
                world.packages.see(forward.__code__, forward.__globals__)
            surroundings.look_up(cls.__name__, Lookups(attributes=[(cls, "forward"), (cls, "__call__")]))
        reads.look_up_absent()
        surroundings.ask(tracing.outside_calls.asked)
        world.stored = reads.stored()
        surroundings.settle(world, changes, slots.slot, methods, [*reads.dicts.values(), *schedulers])
        compares = any(compares_identities(fn.__code__) for fn in surroundings.functions())
        written_tables = {id(c.table.of) for c in changes if world.only_written(c)}
        before = [(getter_of(leaf.tensor, self.place), leaf.before) for leaf, _ in tracing.slopes if not leaf.reset]
        guards = Guards(
            modules,
            Attributes(reads, changes, written_tables, slots.slot),
            tracing.stepped,
            before,
            tracing.host.guards,
            surroundings,
            Captured(world, tracing.leaves, self.touched, slots, bool(tracing.written), modules.tensors),
            SharedObjects(world, tracing.leaves, compares) if changes or compares else None,
            [getter_of(t, self.place) for ref in capture.walked.values() if (t := ref()) is not None],
            tracing.leaves,
        )
        if tracing.tape is not None:
            tracing.tape.surroundings.hold = lambda: surroundings.hold() and guards.attributes.hold()
        return guards

    def record(self, results: Sequence[Result], gradients: Sequence[Gradient]) -> Record:
        """Return what another trace of the same call is compared with."""
        tracing, program = self.tracing, self.program
        constants = [a for a in program.captured if id(a) not in self.sources and id(a) not in self.fed]
        rest = _rest(results, gradients, tracing.changes, tracing.template)
        return Record(self.capture.backend, program, constants, rest, self._host_steps(results))

    def _host_steps(self, results: Sequence[Result]) -> list[str]:
        steps = HostSteps()
        for feed in self.capture.feeds:
            if feed.live is not None:
                steps.add("an input", feed.live)
        for k, result in enumerate(results):
            if result.host is not None:  # of a constant the method that copies it
                steps.add(f"result {k}", getattr(result.host, "__self__", result.host))
        for write in self.tracing.host.writes():
            steps.add("a write", [write.of, write.value])
        return steps.lines


def _cell_of(t: Tensor) -> Storage:
    """Return the storage of an argument whose key is made (a faster `cell_of`)."""
    return t.untyped_storage().cell  # type: ignore[attr-defined]


def _part_of(i: int, part: QuantizedPart) -> Callable[[Sequence[Any]], Storage]:
    """Return a function that finds this part of a quantised argument."""
    return lambda leaves: QuantizedPart(cell_of(leaves[i]), part.number, part.kind)


def _array_of(sources: dict[int, Source], feeds_of: dict[int, Feed], key: int) -> Callable[[Sequence[Any]], Array]:
    if key in feeds_of:
        return lambda leaves: feeds_of[key].take()
    storage = Storages([sources[key]], cell_of)
    return lambda leaves: storage(leaves)[0].array


def _rest(
    results: Sequence[Result], gradients: Sequence[Gradient], changes: Sequence[Change], template: Template | None
) -> list[str]:
    """Put into words what becomes of what a program gives."""
    lines = [
        f"result {k}: {x.survivor, x.argument, x.same_as, x.metadata, x.value if is_plain(x.value) else type(x.value)}"
        for k, x in enumerate(results)
    ]
    lines += [f"gradient {k}: {x.survivor, x.metadata}" for k, x in enumerate(gradients)]
    for change in changes:
        if change.counts is None:
            new = [v if is_plain(v) else type(v) for v in change.new]
            lines.append(f"{change.table.name}: {change.keys if change.order is None else change.order} {new}")
    return lines


def _gradient_of(get_leaf: Callable[[Sequence[Any]], Tensor]) -> Callable[[Sequence[Any]], Storage]:
    return lambda leaves: cell_of(get_leaf(leaves).grad)  # type: ignore[arg-type]


def _toggled(t: Tensor) -> bool:
    """Say whether a tensor was made in inference mode and the call is not, or the other way round."""
    return t.is_inference() is not torch.is_inference_mode_enabled()
