"""Assembly of what a trace by `tg.jit` has found into a program that later calls run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.compiled.agreement import Check, Record
from tensorgraft.compiled.lookups import Lookups
from tensorgraft.compiled.objects import Template
from tensorgraft.compiled.program import Feed, ProgramInputs, Source, Storages
from tensorgraft.compiled.side_effects import Change
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.compiled.values import is_plain
from tensorgraft.frontends.torch.compiled.guards import Captured, Guards, Modules, getter_of
from tensorgraft.frontends.torch.compiled.host import calling, on_host
from tensorgraft.frontends.torch.compiled.trace import Gradient, Result, Trace
from tensorgraft.frontends.torch.compiled.tracing import Tracing
from tensorgraft.frontends.torch.core.attributes import Attributes
from tensorgraft.frontends.torch.core.codes import QuantizedPart, apart, count, kind_of
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.metadata import Metadata
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.core.values import ValueGuards
from tensorgraft.hub.array import Array
from tensorgraft.quantization import policy
from tensorgraft.storage import Storage

Tensor = torch.Tensor


def assemble(
    check: Check,
    held: list[Any],
    tracing: Tracing,
    program: Any,
) -> Trace:
    """Return what a traced run and its program become: where inputs are found, what becomes of outputs, guards.

    `held`: objects that keys know by identity; `check`: whether another trace is to be compared with it.
    """
    capture, world, changes, schedule = tracing.capture, tracing.world, tracing.changes, tracing.schedule
    place = {id(t): i for i, t in tracing.ours}

    touched = {id(t.cell) for t in capture.touched}
    find_of: dict[int, Callable[[Sequence[Any]], Storage]] = {}  # storages in places that calls look into anew
    for leaf in capture.leaves.values():
        if leaf.before is None or leaf.before.device.type != TYPE:
            continue
        if leaf.reset and id(cell_of(leaf.before)) in touched:  # it was read before it was dropped
            leaf.reset = False
        if not leaf.reset:
            find_of[id(cell_of(leaf.before))] = _gradient_of(getter_of(leaf.tensor, place))
    slots = tracing.slots
    find_of |= slots.finds

    def source(cell: Storage) -> Source:
        """Return the source from which a later call takes what this storage was at the traced one."""
        if isinstance(cell, QuantizedPart):
            i = tracing.cells.get(id(cell.owner))
            return Source(cell) if i is None else Source(find=_part_of(i, cell))
        i, find = tracing.cells.get(id(cell)), find_of.get(id(cell))
        if i is not None:
            return Source(argument=i)
        return Source(cell) if find is None else Source(find=find)

    sources: dict[int, Source] = {id(t.stand_in): source(t.cell) for t in capture.touched}
    positions: dict[int, int] = {id(a): k for k, a in enumerate(program.captured)}
    fed: dict[int, Feed] = {id(f.stand_in): f for f in capture.feeds}
    donated = [positions[id(t.stand_in)] for t in tracing.written if id(t.stand_in) in positions]

    survivors = tracing.survivors
    number: dict[int, int] = {}  # where the arrays of each begin
    outputs = 0
    for c in survivors:
        number[id(c)] = outputs
        outputs += count(kind_of(c))
    claimed: set[int] = set()
    results = []
    for o, identical, look in itertools.zip_longest(tracing.flat, tracing.identical, tracing.looks):
        if identical is not None:
            results.append(Result(argument=identical))
        elif (first := tracing.again[len(results)]) != len(results):
            results.append(Result(again=first))
        elif look is not None:
            results.append(Result(look=look))
        elif isinstance(o, Tensor) and o.device.type == TYPE:
            cell = cell_of(o)
            if id(cell) in number:
                claimed.add(number[id(cell)])
                results.append(Result(survivor=number[id(cell)], metadata=Metadata.whole(o)))
            elif id(cell) in tracing.cells:
                results.append(Result(argument=tracing.cells[id(cell)], metadata=Metadata.whole(o)))
            else:
                results.append(Result(value=o))
        elif on_host(o):
            results.append(Result(host=tracing.host.result(o)))
        else:
            results.append(Result(value=o))

    before: list[tuple[Callable[[Sequence[Any]], Tensor], Tensor | None]] = []
    gradients = []
    for leaf, after in tracing.slopes:
        get_leaf = getter_of(leaf.tensor, place)
        if not leaf.reset:
            before.append((get_leaf, leaf.before))
        if after is None and (leaf.reset or leaf.before is not None):
            gradients.append(Gradient(get_leaf, None, None))
        elif after is not None and after is not leaf.before:
            k = number.get(id(cell_of(after)))
            if k is not None:
                claimed.add(k)
                gradients.append(Gradient(get_leaf, k, Metadata.whole(after), anew=leaf.reset))
            else:  # a tensor from outside
                gradients.append(Gradient(get_leaf, None, None, find=getter_of(after, place)))
    reads, surroundings = tracing.reads, tracing.surroundings
    methods = reads.functions(capture.modules.values())
    for optimizer in capture.groups_read.values():
        if schedule.before or schedule.after:
            raise RunsUncompiled("reads the hyper-parameters of an optimizer whose scheduler steps in it")
        surroundings.add(f"{type(optimizer).__name__}.param_groups", optimizer.param_groups)
    modules = Modules([*capture.modules.values(), *reads.modules()], slots.rebound)
    for cls in modules.classes:
        surroundings.look_up(cls.__name__, Lookups(attributes=[(cls, "forward")]))
    reads.look_up_absent()
    surroundings.settle(world, changes, slots.slot, methods, reads.whole.values())
    written = {id(c.table.of) for c in changes if world.only_written(c)}
    guards = Guards(
        modules,
        Attributes(reads, changes, written, slots.slot),
        tracing.stepped,
        before,
        tracing.host.guards,
        surroundings,
        Captured(world, tracing.leaves, touched, slots, bool(tracing.written), modules.tensors),
    )

    tape = tracing.tape
    outside = [t for t, _ in tracing.versions if id(t) not in slots.tensors]
    # what operators write that autograd takes for a constant (running statistics) it does not count
    bumped = [t for t, before in tracing.versions if t._version != before and id(t) not in slots.tensors]
    written_cells, known = {id(t.cell) for t in tracing.written}, {id(t) for t, _ in tracing.versions}
    stepped_on = {id(p): p for s in tracing.stepped for group in s.optimizer.param_groups for p in group["params"]}
    bumped += [
        p
        for key, p in stepped_on.items()
        if key not in known and p.device.type == TYPE and id(cell_of(p)) in written_cells
    ]
    if tape is not None:
        # an argument with a history is here without it, too: each call has another one
        given = [t for t in outside if id(t) in place or id(cell_of(t)) not in tracing.cells]
        tape.watch([(t, getter_of(t, place)) for t in given], tracing.flat)
        inside = {a: k for a, k in positions.items() if a in tracing.usable}
        tape.locate(inside, tracing.outputs, {a: _array_of(sources, fed, a) for a in tracing.usable})
    # drop this frame's hold on what only results and gradients refer to
    kept = [
        (k + i, part) for c in survivors if (k := number[id(c)]) not in claimed for i, part in enumerate(apart([c]))
    ]
    inputs = ProgramInputs(
        [sources.get(id(a)) or fed.get(id(a), a) for a in program.captured],
        donated,
        capture.backend,
        _cell_of,
        calling,
    )
    if capture.values is not None and capture.values.answers:
        guards = ValueGuards(guards, capture.values, program, inputs, capture.backend)  # type: ignore[assignment]
    record = None
    if check != "never":
        constants = [a for a in program.captured if id(a) not in sources and id(a) not in fed]
        record = Record(capture.backend, program, constants, _rest(results, gradients, changes, tracing.template))
    return Trace(
        record=record,
        backend=capture.backend,
        run=policy.counting(program.compile(donated), tracing.notes),
        inputs=inputs,
        donated=donated,
        versions=([t for t in bumped if id(t) not in place], [place[id(t)] for t in bumped if id(t) in place]),
        written=Storages([source(t.cell) for t in tracing.written], _cell_of),
        kept=kept,
        results=results,
        moved=tracing.moved,
        required=tracing.required,
        structure=tracing.structure,
        gradients=gradients,
        draws=capture.advances(),
        schedule=schedule,
        guards=guards,
        held=held,
        grad_mode=None if tracing.grad_mode is torch.is_grad_enabled() else tracing.grad_mode,
        template=tracing.template,
        finds=[] if tracing.template is None else [world.finds.get(id(x)) for x in tracing.template.old],
        changes=changes,
        said=tracing.said,
        tape=tape,
        roots=tracing.roots,
        classes=tracing.classes,
        attributes=tracing.attributes,
        ends=[] if tape is None else [getter_of(t, place) for t in tape.leaves],
    )


def _cell_of(t: Tensor) -> Storage:
    """`cell_of` an argument whose key is made."""
    return t.untyped_storage().cell  # type: ignore[attr-defined]


def _part_of(i: int, part: QuantizedPart) -> Callable[[Sequence[Any]], Storage]:
    """Return a function that finds this part of a quantised argument."""
    return lambda leaves: QuantizedPart(cell_of(leaves[i]), part.number, part.kind)


def _array_of(sources: dict[int, Source], fed: dict[int, Feed], key: int) -> Callable[[Sequence[Any]], Array]:
    if key in fed:
        return lambda leaves: fed[key].take()
    storage = Storages([sources[key]], cell_of)
    return lambda leaves: storage(leaves)[0].array


def _rest(
    results: Sequence[Result], gradients: Sequence[Gradient], changes: Sequence[Change], template: Template | None
) -> list[str]:
    """Put into words what becomes of what a program gives."""
    lines = [
        f"result {k}: {x.survivor, x.argument, x.again, x.metadata, x.value if is_plain(x.value) else type(x.value)}"
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
