"""Assembly of a `Trace`, which later calls run, from a traced run of a function and the resulting program.

While the function was traced, the array of each storage that it used was replaced by a stand-in: an input of the
program is recognised by the identity of its stand-in. Storages from outside that the function used are `touched`; those
that hold another array than their stand-in at the end are `written`. Survivors are new storages that something still
refers to when the function has ended: results, gradients, a cache. The outputs of the program are the arrays of the
written storages, those of the survivors, and what a backward pass needs besides (`Tape`).
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.compiled.agreement import Check, Record
from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.instructions import compares_identities, names_of
from tensorgraft.compiled.lookups import Lookups
from tensorgraft.compiled.program import Feed, ProgramInputs, Source, Storages
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.compiled.values import is_plain
from tensorgraft.frontends.torch.compiled.guards.assumptions import Captured, Getter, Guards, SharedObjects
from tensorgraft.frontends.torch.compiled.guards.modules import Modules
from tensorgraft.frontends.torch.compiled.guards.values import ValueGuards
from tensorgraft.frontends.torch.compiled.host.call_tensors import HostSteps, calling, on_host
from tensorgraft.frontends.torch.compiled.trace import Gradient, Result, Trace
from tensorgraft.frontends.torch.compiled.tracing import Tracing
from tensorgraft.frontends.torch.core.attributes import Attributes
from tensorgraft.frontends.torch.core.codes import QuantizedPart, count, kind_of, split_quantized
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.metadata import Metadata
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.sparse.parts import is_sparse, parts_of
from tensorgraft.hub.array import Array
from tensorgraft.quantization import policy
from tensorgraft.storage import Storage

Tensor = torch.Tensor


def assemble(check: Check, held: list[Any], tracing: Tracing, program: Any) -> Trace:
    """Return the trace: where a call finds the program's inputs, what it does with its outputs, and the guards.

    Arguments:
        check: unless "never", the trace gets a `Record`, with which another trace of the same call is compared.
        held: objects whose identities are in the key of the trace, which keeps them alive.
        tracing: the run, which is over.
        program: the `TracedProgram` of the run.
    """
    return _Assembly(tracing, program).trace(check, held)


class _Assembly:
    """A traced run and its program, with tables of their storages, arrays and tensors by identity (`id`)."""

    def __init__(self, tracing: Tracing, program: Any) -> None:
        capture = tracing.capture
        self.tracing, self.program, self.capture = tracing, program, capture
        self.argument_index = {id(t): i for i, t in tracing.device_arguments}
        # {id of an array: number of the program's input}
        self.positions: dict[int, int] = {id(a): k for k, a in enumerate(program.captured)}
        self.donated = [self.positions[id(t.stand_in)] for t in tracing.written if id(t.stand_in) in self.positions]
        self.touched = {id(t.cell) for t in capture.touched}
        # {id of a storage that differs from call to call: its finder}
        self.finders = self._gradient_finders() | tracing.slots.finders
        self.sources: dict[int, Source] = {id(t.stand_in): self.source(t.cell) for t in capture.touched}
        self.fed: dict[int, Feed] = {id(f.stand_in): f for f in capture.feeds}
        # survivor -> position of its first array among those of all survivors; a quantised storage has several
        self.first_output: dict[int, int] = {}
        outputs = 0
        for c in tracing.survivors:
            self.first_output[id(c)] = outputs
            outputs += count(kind_of(c))
        self.claimed: set[int] = set()  # these positions, of survivors that hold a result or a gradient

    def trace(self, check: Check, held: list[Any]) -> Trace:
        tracing, capture = self.tracing, self.capture
        results, gradients = self.results(), self.gradients()
        guards = self.guards()
        self.connect_tape()
        inputs, template = self.inputs(), tracing.template
        if capture.values is not None and capture.values.answers:  # Python has read values of tensors
            guards = ValueGuards(guards, capture.values, self.program, inputs, capture.backend)  # type: ignore[assignment]
        # objects from outside among the results: those that come with arguments are others at each call
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
            sparse=tracing.sparse,
            count=tracing.count,
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
            ends=[] if tracing.tape is None else [Getter(t, self.argument_index) for t in tracing.tape.leaves],
            once=self._changes_what_it_reads(),
        )

    def _changes_what_it_reads(self) -> bool:
        """Return whether the function changes entries that it has read, other than tensors that each call looks up."""
        tracing = self.tracing
        looked_up = {(id(table.of), key) for table, key, _ in tracing.slots.entries}
        return any(
            (id(change.table.of), key) not in looked_up
            for change in tracing.changes
            if not tracing.world.only_written(change)
            for key in (*change.keys, *change.dropped)
        )

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def source(self, cell: Storage) -> Source:
        """Return the source by which a later call finds the storage that takes the place of this one."""
        cells = self.tracing.cells
        if isinstance(cell, QuantizedPart):
            i = cells.get(id(cell.owner))
            return Source(cell) if i is None else Source(find=_part_finder(i, cell))
        i, find = cells.get(id(cell)), self.finders.get(id(cell))
        if i is not None:
            return Source(argument=i)
        return Source(cell) if find is None else Source(find=find)

    def _gradient_finders(self) -> dict[int, Callable[[Sequence[Any]], Storage]]:
        """Return, by the storages of the gradients that leaves had in the trace, functions that find those of a call.

        Gradients that the function drops unread (`leaf.reset`) are left out; `reset` is set to False here for those
        that it turns out to have used.
        """
        finders = {}
        for leaf in self.capture.leaves.values():
            if leaf.before is None or leaf.before.device.type != TYPE:
                continue
            if is_sparse(leaf.before):
                if not leaf.reset or any(id(cell_of(t)) in self.touched for t in parts_of(leaf.before)):
                    raise RunsUncompiled("reads a sparse gradient from before the call (set it to None first)")
                continue
            cell = cell_of(leaf.before)
            if leaf.reset and id(cell) in self.touched:
                leaf.reset = False
            if not leaf.reset:
                finders[id(cell)] = _gradient_finder(Getter(leaf.tensor, self.argument_index))
        return finders

    def inputs(self) -> ProgramInputs:
        captured = [self.sources.get(id(a)) or self.fed.get(id(a), a) for a in self.program.captured]
        return ProgramInputs(captured, self.donated, self.capture.backend, _cell_of, calling)

    # ---- outputs ---------------------------------------------------------------------------------------------------

    def results(self) -> list[Result]:
        """Return how a call gets each result: as an argument, the same object as an earlier result, a tensor from
        outside, an output of the program, a tensor that the host computes, or a constant."""
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
                results.append(self._device_result(o))
            elif on_host(o):
                results.append(Result(host=tracing.host.result(o)))
            else:
                results.append(Result(value=o))
        return results

    def _device_result(self, t: Tensor) -> Result:
        key = id(cell_of(t))
        if key in self.first_output:
            self.claimed.add(self.first_output[key])
            return Result(survivor=self.first_output[key], metadata=Metadata.of_lazy(t), toggled=_toggled(t))
        if key in self.tracing.cells:
            return Result(argument=self.tracing.cells[key], metadata=Metadata.of_lazy(t))
        return Result(value=t)

    def gradients(self) -> list[Gradient]:
        """Return how a call sets `.grad` of the leaves of which the function replaces or drops it. A gradient that is
        added to in place is among the written storages instead."""
        gradients = []
        for leaf, gradient_after in self.tracing.final_gradients:
            get_leaf = Getter(leaf.tensor, self.argument_index)
            if gradient_after is None and (leaf.reset or leaf.before is not None):
                gradients.append(Gradient(get_leaf, None, None))
            elif (result := self.tracing.sparse_gradients.get(id(leaf.tensor))) is not None:
                gradients.append(Gradient(get_leaf, None, None, leaf.reset, result=result))
            elif gradient_after is not None and gradient_after is not leaf.before:
                k = self.first_output.get(id(cell_of(gradient_after)))
                if k is not None:
                    self.claimed.add(k)
                    result = self.tracing.returned.get(id(leaf.tensor))
                    metadata, toggled = Metadata.of_lazy(gradient_after), _toggled(gradient_after)
                    gradients.append(Gradient(get_leaf, k, metadata, leaf.reset, result=result, toggled=toggled))
                else:  # a tensor from outside
                    find = Getter(gradient_after, self.argument_index)
                    gradients.append(Gradient(get_leaf, None, None, finder=find))
        return gradients

    def unclaimed(self) -> list[tuple[int, Storage]]:
        """Return the survivors that something else than results and gradients refers to, with their positions."""
        unclaimed = [(k, c) for c in self.tracing.survivors if (k := self.first_output[id(c)]) not in self.claimed]
        return [(k + i, part) for k, c in unclaimed for i, part in enumerate(split_quantized([c]))]

    def versions(self) -> tuple[list[Tensor], list[int]]:
        """Return (tensors from outside, positions of arguments) whose version counters a call increments: those whose
        counter has changed, and parameters that an optimizer has written.

        Running statistics are not among them: PyTorch does not increment their counters either.
        """
        tracing, slots, index = self.tracing, self.tracing.slots, self.argument_index
        # inference tensors, which `.data = ...` may have made of others, have no counter
        alive = [(t, before) for t, before in tracing.versions if not t.is_inference()]
        bumped = [t for t, before in alive if t._version != before and id(t) not in slots.tensors]
        written_cells, known = {id(t.cell) for t in tracing.written}, {id(t) for t, _ in tracing.versions}
        stepped_on = {id(p): p for s in tracing.stepped for group in s.optimizer.param_groups for p in group["params"]}
        bumped += [
            p
            for key, p in stepped_on.items()
            if key not in known and p.device.type == TYPE and id(cell_of(p)) in written_cells
        ]
        return [t for t in bumped if id(t) not in index], [index[id(t)] for t in bumped if id(t) in index]

    def connect_tape(self) -> None:
        """Tell the tape where each call finds the arrays that its backward pass needs, and which tensors from outside
        and results may share memory with them, so that a backward pass notices if these were written since."""
        tracing, tape, argument_index = self.tracing, self.tracing.tape, self.argument_index
        if tape is None:
            return
        outside = [t for t, _ in tracing.versions if id(t) not in tracing.slots.tensors]
        # an argument with a grad_fn is found by its detached stand-in: the tensor itself is of the traced call only
        outside_tensors = [t for t in outside if id(t) in argument_index or id(cell_of(t)) not in tracing.cells]
        results_once = [
            t if k == first else None for k, (t, first) in enumerate(zip(tracing.flat, tracing.same_as, strict=True))
        ]
        tape.watch([(t, Getter(t, argument_index)) for t in outside_tensors], results_once)
        positions_of_usable = {a: k for a, k in self.positions.items() if a in tracing.usable}
        finders = {a: _array_finder(self.sources, self.fed, a) for a in tracing.usable}
        tape.locate(positions_of_usable, tracing.outputs, finders)

    # ---- guards ----------------------------------------------------------------------------------------------------

    def guards(self) -> Guards:
        """Return the conditions under which a later call may use the trace. Raises RunsUncompiled if a scheduler steps
        in the function, and the function also reads the stepped value."""
        tracing, capture, slots = self.tracing, self.capture, self.tracing.slots
        reads, surroundings, world, changes = tracing.reads, tracing.surroundings, tracing.world, tracing.changes
        if tracing.schedule.before or tracing.schedule.after:
            if any(name == "param_groups" for _, name in capture.optimizers_read):
                raise RunsUncompiled("reads the hyper-parameters of an optimizer whose scheduler steps in it")
            if capture.schedulers_read:
                scheduler = next(iter(capture.schedulers_read.values()))
                raise RunsUncompiled(f"reads a {type(scheduler).__name__}, and a scheduler steps in it")
        for (_, name), optimizer in capture.optimizers_read.items():
            surroundings.add(f"{type(optimizer).__name__}.{name}", getattr(optimizer, name))
        modules = Modules([*capture.modules.values(), *reads.modules()], slots.rebound, reads.used)
        self._settle_surroundings(modules)
        compares = any(compares_identities(fn.__code__) for fn in surroundings.functions())
        written_tables = {id(c.table.of) for c in changes if world.only_written(c)}
        guards = Guards(
            modules=modules,
            attributes=Attributes(reads, changes, written_tables, slots.slot),
            optimizers=tracing.stepped,
            gradients=[
                (Getter(leaf.tensor, self.argument_index), leaf.before)
                for leaf, _ in tracing.final_gradients
                if not leaf.reset
            ],
            host=[
                *tracing.host.guards,
                *capture.sparse.guards(tracing.leaves),
                *capture.sparse.indices.guards(tracing.cells),
            ],
            surroundings=surroundings,
            captured=Captured(world, tracing.leaves, self.touched, slots, bool(tracing.written), modules.tensors),
            shared=SharedObjects(world, tracing.leaves, compares) if changes or compares else None,
            hooked=[Getter(t, self.argument_index) for ref in capture.walked.values() if (t := ref()) is not None],
            leaves=tracing.leaves,
        )
        if tracing.tape is not None:  # hooks and functions of the program run in backward passes, too
            tracing.tape.surroundings.hold = lambda: surroundings.hold() and guards.attributes.hold()
        return guards

    def _settle_surroundings(self, modules: Modules) -> None:
        """Make guards for the Python objects that the function has read: hooks, methods, attributes, containers, global
        variables and settings of the process. To be called once, after the function's changes were undone."""
        tracing, reads, surroundings = self.tracing, self.tracing.reads, self.tracing.surroundings
        for hook in modules.hooks:
            surroundings.add("a hook", hook)
        for cls in modules.classes:
            if isinstance(forward := getattr(cls, "forward", None), types.FunctionType):
                tracing.world.packages.see(forward.__code__, forward.__globals__)
                tracing.world.packages.meet_class(cls, names_of(forward.__code__))
            surroundings.look_up(cls.__name__, Lookups(attributes=[(cls, "forward"), (cls, "__call__")]))
        reads.look_up_absent()
        surroundings.ask(tracing.outside_calls.asked)
        methods = reads.functions(self.capture.modules.values())
        whole_objects = [*reads.dicts.values(), *self.capture.schedulers_read.values()]
        tracing.world.stored = reads.stored()
        surroundings.settle(tracing.world, tracing.changes, tracing.slots.slot, methods, whole_objects)

    def record(self, results: Sequence[Result], gradients: Sequence[Gradient]) -> Record:
        """Return a record for comparison with another trace of the same call."""
        tracing, program = self.tracing, self.program
        constants = [a for a in program.captured if id(a) not in self.sources and id(a) not in self.fed]
        effects = _describe_effects(results, gradients, tracing.changes)
        return Record(self.capture.backend, program, constants, effects, self._describe_host(results))

    def _describe_host(self, results: Sequence[Result]) -> list[str]:
        """Describe the host's computations in a call, in a line for each step."""
        steps = HostSteps()
        for feed in self.capture.feeds:
            if feed.live is not None:
                steps.add("an input", feed.live)
        for k, result in enumerate(results):
            if result.host is not None:  # a `LiveTensor`, or the method `clone` of a constant tensor
                steps.add(f"result {k}", getattr(result.host, "__self__", result.host))
        for write in self.tracing.host.writes():
            steps.add("a write", [write.of, write.value])
        return steps.lines


def _cell_of(t: Tensor) -> Storage:
    """Return the storage of an argument, for which the call's key has already called the slower `cell_of`."""
    return t.untyped_storage().cell  # type: ignore[attr-defined]


def _part_finder(i: int, part: QuantizedPart) -> Callable[[Sequence[Any]], Storage]:
    """Return a function that finds this part (codes, scales or zero points) of argument `i`, a quantised tensor."""
    return lambda leaves: QuantizedPart(cell_of(leaves[i]), part.number, part.kind)


def _array_finder(sources: dict[int, Source], feeds_of: dict[int, Feed], key: int) -> Callable[[Sequence[Any]], Array]:
    """Return a function that finds the array of a call for which a stand-in, of the identity `key`, was traced."""
    if key in feeds_of:
        return lambda leaves: feeds_of[key].take()
    storage = Storages([sources[key]], cell_of)
    return lambda leaves: storage(leaves)[0].array


def _describe_effects(results: Sequence[Result], gradients: Sequence[Gradient], changes: Sequence[Change]) -> list[str]:
    """Describe the results, the new gradients and the changes of Python's objects in a call, a line for each."""
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


def _gradient_finder(get_leaf: Callable[[Sequence[Any]], Tensor]) -> Callable[[Sequence[Any]], Storage]:
    return lambda leaves: cell_of(get_leaf(leaves).grad)  # type: ignore[arg-type]


def _toggled(t: Tensor) -> bool:
    """Return True if exactly one of the tensor and the call is in inference mode."""
    return t.is_inference() is not torch.is_inference_mode_enabled()
