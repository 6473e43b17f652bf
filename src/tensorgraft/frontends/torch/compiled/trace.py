"""The result of a trace by `tg.jit`: a compiled program, and how a call finds its inputs and uses its outputs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensorgraft.compiled.agreement import Record
from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.function import Report
from tensorgraft.compiled.objects import Template
from tensorgraft.compiled.outside_calls import OutsideCalls
from tensorgraft.compiled.program import ProgramInputs, Storages
from tensorgraft.compiled.straight_calls import StraightCall
from tensorgraft.compiled.tables import Find
from tensorgraft.frontends.torch.compiled.autograd.tape import Tape
from tensorgraft.frontends.torch.compiled.guards.assumptions import Getter, Guards
from tensorgraft.frontends.torch.compiled.host.call_tensors import HostWrite, calling
from tensorgraft.frontends.torch.compiled.sparse_tensors import SparseResult
from tensorgraft.frontends.torch.compiled.trace_contexts import Schedule
from tensorgraft.frontends.torch.core import codes, state
from tensorgraft.frontends.torch.core.metadata import Metadata
from tensorgraft.frontends.torch.core.modes import of_program
from tensorgraft.frontends.torch.core.trees import Structure, call_of, flatten, unflatten
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.straight_line import NotStraight
from tensorgraft.interrupts import all_or_none, held_back
from tensorgraft.storage import Placed, Storage, move_to_placement, put_as_it_is

Tensor = torch.Tensor


def _structure_of(tree: Any) -> Structure:
    return flatten(tree)[1]


def _write_tensor(code: StraightCall, make: Any, array: str) -> str:
    """Return the expression of the tensor that `make` makes from an array."""
    write = getattr(make, "write", None)
    expression: str = f"{code.name(make)}({array})" if write is None else write(code, array)
    return expression


_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


@dataclass
class Result:
    """One leaf of what the function returned: a new tensor, a view of an argument, or the object itself. Survivors are
    the storages that are new, and in use when the function ends; their arrays are outputs of the program."""

    value: Any = None
    survivor: int | None = None  # the number of the survivor that the tensor is on
    argument: int | None = None
    metadata: Metadata | None = None
    make: Callable[[Array], Tensor] | None = None  # makes the tensor of a survivor that only this result uses
    finder: Callable[[Sequence[Any]], Tensor] | None = None  # a tensor from outside, or a view of one, at a call
    same_as: int | None = None  # the same object as an earlier result
    host: Callable[[], Any] | None = None  # computes a tensor of the host
    toggled: bool = False  # made in inference mode if the call is not in that mode, and outside of it if the call is


@dataclass
class Gradient:
    """The gradient that a leaf has after a call."""

    leaf: Getter
    survivor: int | None
    metadata: Metadata | None
    replaces: bool = False  # it replaces the gradient from before
    make: Callable[[Array], Tensor] | None = None
    finder: Callable[[Sequence[Any]], Tensor] | None = None  # a tensor from outside
    toggled: bool = False  # as `Result.toggled`
    result: int | None = None  # the number of the result that is the same object


def _inference(toggled: bool) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which inference mode is switched if `toggled`."""
    return torch.inference_mode(not torch.is_inference_mode_enabled()) if toggled else _NOTHING


@dataclass
class Trace:
    """One traced and compiled run of the function."""

    backend: Backend
    run: Callable[..., tuple[Array, ...]]
    inputs: ProgramInputs
    donated: list[int]  # positions of inputs
    written: Storages
    versions: tuple[list[Tensor], list[int]]  # written tensors, and arguments, whose version counters a call increments
    unclaimed: list[tuple[int, Storage]]  # survivors that are referenced by something other than results and gradients
    results: list[Result]
    moved: list[int]  # arguments whose data become the last results after a call
    numbers: list[int]  # results that are numbers of Python
    sparse: list[SparseResult]  # results that are sparse tensors, whose parts are further results
    count: int  # of what the function has returned, among the results
    failures: list[tuple[type[Exception], str]]  # raised if the last results, a boolean for each, are true
    required: list[tuple[Callable[[Sequence[Any]], Tensor], bool]]  # tensors whose `requires_grad` a call sets
    structure: Structure | None  # None: a single result, in no container
    gradients: list[Gradient]
    draws: list[tuple[state.RandomState, int]]
    schedule: Schedule
    guards: Guards
    key_objects: list[Any]  # objects that keys know by identity
    template: Template | None  # makes (results, new entries of changes), if results are objects or something is changed
    finders: list[Find | None]  # for each old object of the template: finds it in the arguments, or None if it is fixed
    changes: list[Change]
    host_writes: list[HostWrite]
    outside_calls: OutsideCalls
    grad_mode: bool | None  # the gradient mode that the function leaves, if it changes it
    tape: Tape | None  # the history of results at which a backward pass after the call can start
    roots: list[int]  # the positions of these results
    # (position, class, requires gradients) of results that are leaves of autograd, or no plain tensors
    classes: list[tuple[int, type[Tensor], bool]]
    attributes: list[tuple[int, dict[str, Any]]]  # (position of a result, its attributes)
    ends: list[Callable[[Sequence[Any]], Tensor]]  # find the tape's leaves at a call
    once: bool  # a call changes what it has read, so that the next one is another kind of call
    record: Record | None = None  # with which another trace is compared
    close: Callable[[], None] = lambda: None  # releases what the trace refers to
    undo: Callable[[], None] | None = None  # reverts the effects of tracing, until the first call is over
    ran: bool = False  # storages have been written by a call

    def __post_init__(self) -> None:
        self.repeated = [(i, x.same_as) for i, x in enumerate(self.results) if x.same_as is not None]
        with_survivors: list[Result | Gradient] = [*self.results, *self.gradients]
        users = Counter(x.survivor for x in with_survivors)
        for x in with_survivors:
            m = x.metadata
            unshared = x.survivor is not None and users[x.survivor] == 1 and not x.toggled
            if unshared and m is not None and not m.offset and m.kind is None:
                x.make = m.maker(self.backend)
        makers = [(x.make, x.survivor) for x in self.results if x.make is not None and x.survivor is not None]
        has_more = (
            self.moved,
            self.numbers,
            self.sparse,
            self.failures,
            self.required,
            self.classes,
            self.attributes,
            self.written,
            self.unclaimed,
            self.gradients,
            self.host_writes,
            self.draws,
            self.schedule.before,
            self.schedule.after,
        )
        plain = len(makers) == len(self.results) and self.tape is None and not self.inputs.fed and not any(has_more)
        plain = plain and self.template is None and self.grad_mode is None and not self.outside_calls
        self.on_host = [(x, x.host) for x in self.results if x.host is not None]
        # something on the host reads the arguments of the call
        self.hosted = bool(self.inputs.fed or self.on_host or self.host_writes) or self.tape is not None
        self.replaced = [gradient for gradient in self.gradients if gradient.replaces]
        # how to make the results, if all are new tensors and the call has no other effects
        self.plain_makers = makers if plain else None

    def __call__(self, leaves: Sequence[Any], first: bool = False) -> Any:
        if self.plain_makers is not None:
            outputs = self.run(*self.inputs.arrays(leaves))
            if self.structure is None:
                make, k = self.plain_makers[0]
                return make(outputs[k])
            return unflatten(self.structure, [make(outputs[k]) for make, k in self.plain_makers])
        return self._run_with_effects(leaves, first)

    def write(self, code: StraightCall, report: Report) -> None:
        """Write the code of a call for which all guards hold."""
        count = f"{code.name(report)}.calls += 1"
        try:
            cells = [] if self.plain_makers is not None else self._written_plainly(code)
            arrays = self.inputs.write(code)
        except NotStraight:
            code.do(count)
            code.call_trace(self)
            return
        if self.plain_makers is not None:
            outputs = code.run(self.run, arrays)
            code.do(count)
            results = [_write_tensor(code, make, f"{outputs}[{k}]") for make, k in self.plain_makers]
        else:
            code.do(count)
            results = self._write_effects(code, arrays, cells)
        is_single = self.structure is None or self.template is not None
        structure = results[0] if is_single else code.structured(results, self.structure, _structure_of)
        code.do(f"return {structure}")

    def _written_plainly(self, code: StraightCall) -> list[str]:
        """Return the expressions of the storages in which a call puts new arrays. Raises NotStraight where it has other
        effects than that, new gradients and random numbers that are used up."""
        others = (
            self.moved,
            self.numbers,
            self.sparse,
            self.failures,
            self.required,
            self.classes,
            self.attributes,
            self.changes,
            self.host_writes,
            self.outside_calls,
            self.repeated,
            self.schedule.before,
            self.schedule.after,
            self.tape is not None,
            self.template is not None and len(self.template.arrays) != len(self.results),
            self.grad_mode is not None,
        )
        new_tensors: list[Result | Gradient] = [*self.results, *(g for g in self.gradients if g.survivor is not None)]
        has_others = any(x.make is None or x.survivor is None for x in new_tensors)
        if (
            any(others)
            or has_others
            or not self.ran
            or any(g.result is not None or g.finder is not None for g in self.gradients)
        ):
            raise NotStraight
        return self.written.write_written(code, range(len(self.written)))

    def _write_effects(self, code: StraightCall, arrays: str, cells: Sequence[str]) -> list[str]:
        """Write `_run_with_effects` for these storages (`_written_plainly`). Returns the expressions of the results."""
        n, taken = len(cells), {*self.inputs.write_taken(code)}
        leaves = [gradient.leaf.write(code) for gradient in self.gradients]
        fixed, of_arguments = code.name(self.versions[0]), [code.leaves[i] for i in self.versions[1]]
        versions = f"[*{fixed}, {', '.join(of_arguments)}]" if of_arguments else fixed
        increments = [f"{code.name(torch._C._increment_version)}({versions})"] if any(self.versions) else []
        given, outputs, starts = code.flattened(), code.variable(), [code.variable() for _ in self.draws]
        sources = [code.name(source) for source, _ in self.draws]
        for start, source in zip(starts, sources, strict=True):
            code.do(f"{start} = {source}.offset")
        for gradient, leaf in zip(self.gradients, leaves, strict=True):
            if gradient.replaces:
                code.do(f"{leaf}.grad = None")
        code.do(f"{outputs} = []")
        with code.block("try:"):
            code.run_into(cells, self.run, arrays, outputs)
            for line in increments:
                code.do(line)
            leaf_gradients = [
                "None" if g.survivor is None else _write_tensor(code, g.make, f"{outputs}[{n + g.survivor}]")
                for g in self.gradients
            ]
            results = [_write_tensor(code, x.make, f"{outputs}[{n + (x.survivor or 0)}]") for x in self.results]
            if self.template is not None:
                results = [self._write_object(code, self.template, results)]
            for start, source, (_, count) in zip(starts, sources, self.draws, strict=True):
                code.do(f"{source}.offset = {start} + {count}")
            for k, unclaimed in self.unclaimed:
                code.do(f"{code.name(unclaimed)}.array = {outputs}[{n + k}]")
            for cell in cells:
                if cell not in taken:  # of those the line has asked
                    code.do(f"{cell}.shared = False")
            for leaf, value in zip(leaves, leaf_gradients, strict=True):
                code.do(f"{leaf}.grad = {value}")
        with code.block("except BaseException:"):
            with code.block(f"if {outputs}:"), code.block(f"with {code.name(held_back)}():"):
                for start, source in zip(starts, sources, strict=True):
                    code.do(f"{source}.offset = {start}")
                for line in (*increments, f"{code.name(self._commit_what_can_be)}({given}, (), {outputs})"):
                    code.do(line)
            code.do("raise")
        return results

    def _write_object(self, code: StraightCall, template: Template, tensors: Sequence[str]) -> str:
        """Return the variable of the function's result, an object with these tensors in it."""
        olds = (
            code.name(x) if find is None else f"{code.name(find)}((args, kwargs))"
            for x, find in zip(template.old, self.finders, strict=True)
        )
        built = code.variable()
        code.do(f"{built} = {code.name(template.make)}([{', '.join(tensors)}], [{', '.join(olds)}])[0]")
        return built

    def _run_with_effects(self, leaves: Sequence[Any], first: bool) -> Any:
        """Run the program and apply its effects. Nothing is changed before the program has run. Afterwards all effects
        are applied even if an error is raised, because the program may have consumed the arrays of storages."""
        undo: list[Callable[[], None]] = []
        with held_back(), calling(leaves) if self.hosted else _NOTHING:
            try:
                if not first:
                    for call in self.schedule.before:
                        undo.append(self.schedule.undoing(call))
                        of_program(call)
                arrays = self.inputs(leaves)
                host = [(write.of(), write.value()) for write in self.host_writes]
                for gradient in self.replaced:  # so that the new one can use its memory
                    gradient.leaf(leaves).grad = None
                outputs = self.run(*arrays)
            except BaseException:
                for put_back in reversed(undo):
                    put_back()
                raise
            if not first and (self.versions[0] or self.versions[1]):
                torch.autograd.graph.increment_version([*self.versions[0], *(leaves[i] for i in self.versions[1])])
            for i in self.moved:  # before results are views of it: a later write would end their history
                torch.autograd.graph.increment_version(leaves[i])
            for find, required in self.required:
                if required:  # results have this tensor in their history
                    find(leaves).requires_grad_()
            try:
                leaf_gradients, flat, built = self._built(leaves, arrays, outputs)
            except BaseException:
                self._commit_what_can_be(leaves, arrays, outputs, host, first)
                raise
            self._commit(leaves, outputs, leaf_gradients, flat, built, host, first)
        flags = [flat.pop() for _ in self.failures]
        for flag, (error, words) in zip(reversed(flags), self.failures, strict=True):
            if flag.item():
                raise error(words)
        if built is not None:
            return built[0]
        return flat[0] if self.structure is None else unflatten(self.structure, flat[: self.count])

    def _commit_what_can_be(
        self,
        leaves: Sequence[Any],
        arrays: Sequence[Array],
        outputs: Sequence[Array],
        host: Sequence[tuple[Tensor, Tensor]] = (),
        first: bool = False,
    ) -> None:
        """Apply the effects of a call whose results could not be made."""
        leaf_gradients: list[tuple[Tensor, Tensor | None]] = []
        flat: list[Any] = []
        built = None
        with contextlib.suppress(Exception):
            leaf_gradients, flat, built = self._built(leaves, arrays, outputs)
        self._commit(leaves, outputs, leaf_gradients, flat, built, host, first)

    def _commit(
        self,
        leaves: Sequence[Any],
        outputs: Sequence[Array],
        leaf_gradients: Sequence[tuple[Tensor, Any]],
        flat: list[Any],
        built: Any,
        host: Sequence[tuple[Tensor, Tensor]],
        first: bool,
    ) -> None:
        """Apply the effects of a call. `flat`: the results, followed by new data of arguments (`moved`). `built`: the
        objects made from the template. `host`: (tensor of the host that is written, its new value)."""
        self.ran = True
        for source, n in self.draws:
            source.offset += n
        written_cells = self.written(leaves)
        for cell, array in zip(written_cells, outputs, strict=False):
            put_as_it_is(cell, array)
            cell.shared = False
        for k, cell in self.unclaimed:
            cell.array = outputs[len(written_cells) + k]
        if flat:
            for i in reversed(self.moved):  # a gradient is as large as its leaf
                leaves[i].data = flat.pop()
        for t, new in host:
            t.untyped_storage().copy_(new.untyped_storage())
            if not first:
                torch.autograd.graph.increment_version(t)
        for leaf, gradient in leaf_gradients:
            leaf.grad = gradient
        for find, required in self.required:
            find(leaves).requires_grad_(required)
        if self.grad_mode is not None:
            torch.set_grad_enabled(self.grad_mode)
        if built is not None:
            arguments = call_of(leaves)
            located = [change.table.located(arguments) for change in self.changes]
            for change, of, new in zip(self.changes, located, built[1], strict=True):
                change.apply(of, new)
        if not first:
            for call in self.schedule.after:
                of_program(call)
        if self.outside_calls:
            of_program(self.outside_calls.repeat, first)
        placed = [cell for cell in written_cells if cell.__class__ is Placed]
        if placed:  # last, as a move may fail for lack of memory
            all_or_none(move_to_placement, placed)

    def _built(
        self, leaves: Sequence[Any], arrays: Sequence[Array], outputs: Sequence[Array]
    ) -> tuple[list[tuple[Tensor, Tensor | None]], list[Any], Any]:
        """Return (leaves with their new gradients, the results, the objects made from the template), made from the
        outputs of the program."""
        new = outputs[len(self.written) :]
        tensors: dict[int, Tensor] = {}  # {survivor: the first tensor on it}

        def tensor(k: int, metadata: Metadata) -> Tensor:
            if k in tensors:
                return metadata.beside(tensors[k])
            tensors[k] = metadata.on(codes.storage(new[k:], metadata.kind, self.backend))
            return tensors[k]

        leaf_gradients: list[tuple[Tensor, Tensor | None]] = []
        same: list[tuple[Tensor, int]] = []
        for gradient in self.gradients:
            leaf = gradient.leaf(leaves)
            if gradient.result is not None:
                same.append((leaf, gradient.result))
            elif gradient.make is not None and gradient.survivor is not None:
                leaf_gradients.append((leaf, gradient.make(new[gradient.survivor])))
            elif gradient.survivor is None or gradient.metadata is None:
                leaf_gradients.append((leaf, None if gradient.finder is None else gradient.finder(leaves)))
            else:
                with _inference(gradient.toggled):
                    leaf_gradients.append((leaf, tensor(gradient.survivor, gradient.metadata)))
        flat: list[Any] = []
        for result in self.results:
            if result.make is not None and result.survivor is not None:
                flat.append(result.make(new[result.survivor]))
            elif result.survivor is not None:
                assert result.metadata is not None
                with _inference(result.toggled):
                    flat.append(tensor(result.survivor, result.metadata))
            elif result.argument is not None:
                argument = leaves[result.argument]
                m = result.metadata
                flat.append(argument if m is None else m.view(argument.detach()))
            elif result.finder is not None:
                flat.append(result.finder(leaves))
            elif result.host is not None:
                flat.append(result.host())
            else:
                flat.append(result.value)
        if self.tape is not None:
            with _inference(torch.is_inference_mode_enabled()):  # inference tensors have no histories
                self._attach(self.tape, leaves, arrays, outputs, flat)
        self._convert(flat)
        leaf_gradients += [(leaf, flat[i]) for leaf, i in same]
        if self.template is None:
            return leaf_gradients, flat, None
        call, old = call_of(leaves), self.template.old
        olds = [x if find is None else find(call) for x, find in zip(old, self.finders, strict=True)]
        return leaf_gradients, flat, self.template.make(flat[: len(self.template.arrays)], olds)

    def _convert(self, flat: list[Any]) -> None:
        """Give results their classes and attributes, and replace those that are Python numbers by their values."""
        for sparse in self.sparse:
            sparse.build(flat)
        for i, kind, required in self.classes:
            if (t := flat[i]).__class__ is not kind:
                flat[i] = kind(t, required) if kind is torch.nn.Parameter else t.as_subclass(kind)
            if required:
                flat[i].requires_grad_()
        for i, j in self.repeated:
            flat[i] = flat[j]
        for i in self.numbers:
            flat[i] = flat[i].item()
        for i, attributes in self.attributes:
            flat[i].__dict__.update(attributes)

    def _attach(
        self, tape: Tape, leaves: Sequence[Any], arrays: Sequence[Array], outputs: Sequence[Array], flat: list[Any]
    ) -> None:
        """Attach the tape to the results at which a backward pass after the call can start."""
        residuals = tape.residuals(arrays, outputs, leaves)
        ends = [get(leaves) for get in self.ends]
        saved = tape.saved_of(leaves, flat)
        attached = tape.attach(self.backend, residuals, [flat[i] for i in self.roots], ends, saved)
        for i, tensor_with_history in zip(self.roots, attached, strict=True):
            flat[i] = tensor_with_history
