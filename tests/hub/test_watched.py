"""Conditions are skipped only while nothing that they read is modified, and are evaluated at each call where there is
no function that watches."""

import gc
import sys
import types
import weakref
from collections import OrderedDict

import pytest

from tensorgraft.hub import cpp, watched
from tensorgraft.hub.straight_line import MISSED, StraightLine, is_over

has_header = (3, 11) <= sys.version_info[:2] <= (3, 12) and watched.library.possible


@pytest.fixture(params=["watched", "evaluated"])
def library(request, monkeypatch):
    made = watched._Library()
    made._started = True
    if request.param == "evaluated":
        made.possible = False
    elif cpp.compiler() is None or not has_header:
        pytest.skip("no C++ compiler, or no header of this interpreter")
    else:
        made.load()
        assert made.watch is not None
    monkeypatch.setattr(watched, "library", made)
    return made


class Base:
    def run(self):
        return 0


class Kind(Base):
    pass


class OtherKind(Kind):
    pass


def variable():
    content = 0
    return (lambda: content).__closure__[0]


def default(x=0):
    return x


class Things:
    """Objects of every kind that conditions read."""

    def __init__(self):
        self.table, self.ordered, self.many = {"a": 0, "b": 1}, OrderedDict(), [{} for _ in range(20)]
        self.instance, self.cell, self.module = Kind(), variable(), types.ModuleType("things")
        self.instance.a, self.module.a = 0, 0
        self.function = types.FunctionType(default.__code__, {}, "f", (0,))
        self.kind = type("Local", (Kind,), {})

    def line(self, is_frequent=True):
        code = StraightLine()
        name = code.name
        code.require("x")
        code.require(f"{name(self.table)}['a'] is {name(self.table['a'])} and 'c' not in {name(self.table)}")
        code.require_objects(name(self.table.values()), [*self.table.values()])
        code.require(f"[*{name(self.table)}] == {name([*self.table])} and len({name(self.table)}) == 2")
        code.require_empty([self.ordered])
        code.require_empty(self.many)
        code.require(f"{name(vars(self.instance))}['a'] is {name(self.instance.a)}")
        code.require(f"type({name(self.instance)}) is {name(Kind)}")
        code.require(f"{name(self.cell)}.cell_contents is {name(self.cell.cell_contents)}")
        code.require(f"{name(self.function)}.__defaults__ is {name(self.function.__defaults__)}")
        code.require(f"{name(self.module)}.a is {name(self.module.a)}")
        code.require(f"{name(self.kind)}.run is {name(self.kind.run)} and 'run' not in {name(vars(self.kind))}")
        code.do("return x")
        return code.function("x", is_frequent)


CHANGES = {
    "an entry": (lambda t: t.table.update(a=7), lambda t: t.table.update(a=0)),
    "one more entry": (lambda t: t.table.update(c=2), lambda t: t.table.pop("c")),
    "the order": (lambda t: t.table.update(a=t.table.pop("a")), lambda t: t.table.update(b=t.table.pop("b"))),
    "an ordered dictionary": (lambda t: t.ordered.update(a=1), lambda t: t.ordered.clear()),
    "one of many": (lambda t: t.many[17].update(a=1), lambda t: t.many[17].popitem()),
    "an attribute": (lambda t: setattr(t.instance, "a", 1), lambda t: setattr(t.instance, "a", 0)),
    "a class": (
        lambda t: setattr(t.instance, "__class__", OtherKind),
        lambda t: setattr(t.instance, "__class__", Kind),
    ),
    "a variable": (lambda t: setattr(t.cell, "cell_contents", 1), lambda t: setattr(t.cell, "cell_contents", 0)),
    "an empty variable": (lambda t: delattr(t.cell, "cell_contents"), lambda t: setattr(t.cell, "cell_contents", 0)),
    "a module": (lambda t: setattr(t.module, "a", 1), lambda t: setattr(t.module, "a", 0)),
    "a method": (lambda t: setattr(t.kind, "run", lambda self: 1), lambda t: delattr(t.kind, "run")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_modifications_are_noticed(library, change):
    things = Things()
    line, (change, change_back) = things.line(), CHANGES[change]
    for _ in range(3):
        for _ in range(3):
            assert line(5) == 5 and line(0) is MISSED
        change(things)
        assert line(5) is MISSED and line(5) is MISSED
        change_back(things)


def test_a_method_of_a_base_and_defaults(library, monkeypatch):
    things = Things()
    line = things.line()
    assert line(5) == 5 and line(5) == 5
    with monkeypatch.context() as patch:
        patch.setattr(Base, "run", lambda self: 1)
        assert line(5) is MISSED and line(5) is MISSED
    assert line(5) == 5
    things.function.__defaults__ = (1,)
    assert line(5) is MISSED


def test_conditions_are_skipped(library):
    """Nothing but the words is looked at while nothing is modified."""
    things = Things()
    code = StraightLine()
    code.require(f"{code.name(things.table)}['a'] is {code.name(things.table['a'])}")
    code.do("return x")
    lines = code._watched_checks(library.watch) if library.watch else [line for c in code._checks for line in c.lines]
    assert len(lines) == (4 if library.watch else 1)


class Strange(dict):
    def __len__(self):
        return self.length


def test_what_is_never_skipped():
    """Values whose truth, order or equality changes without a word that says so."""
    strange, table, ordered = Strange(), {"a": []}, OrderedDict(a=1)
    space = {"strange": strange, "table": table, "ordered": ordered, "items": [1], "names": ["a"], "function": len}
    for expression in (
        "not strange",
        "not table['a']",
        "table['a'] == names",
        "[*ordered] == names",
        "[ordered]",
        "items[0] is function",
        "function(items) == 1",
        "unknown['a'] is function",
        "function.__name__ is names",
        "table['a'] is unknown",
    ):
        assert watched.objects_read(expression, space) is None, expression
    assert watched.objects_read("not table and 'b' not in ordered", space) == [table, ordered]


class Descriptor:
    def __get__(self, instance, owner):
        return object()


class Meta(type):
    pass


def test_attributes_of_classes_that_may_vary():
    kind, with_meta = type("Kind", (), {"varies": Descriptor(), "run": len}), Meta("WithMeta", (), {"run": len})
    space = {"kind": kind, "meta": with_meta, "x": len}
    for expression in ("kind.varies is x", "kind.__name__ is x", "kind.absent is x", "meta.run is x"):
        assert watched.objects_read(expression, space) is None, expression
    assert watched.objects_read("kind.run is x", space) == [kind]


def test_modified_between_the_conditions_and_their_confirmation(library):
    if library.watch is None:
        pytest.skip("nothing is watched")
    table = {"a": 0}
    changed, confirm = library.watch((table,))
    first = changed()
    table["a"] = 1
    second = changed()  # of another thread, say
    confirm(first)
    assert changed() is not None
    confirm(second)
    assert changed() is not None  # a later number
    confirm(changed())
    assert changed() is None


def test_lines_are_freed(library):
    class Local:
        pass

    things = Things()
    things.table["a"] = value = Local()
    things.table["b"] = line = things.line()  # a cycle
    assert line(5) is MISSED  # another object is there now
    alive = weakref.ref(value)
    del things, value, line
    gc.collect()
    assert alive() is None


def test_lines_are_counted_until_there_is_a_function(monkeypatch):
    made = watched._Library()
    started = []
    made.start = lambda: started.append(True)
    made.possible = True
    monkeypatch.setattr(watched, "library", made)
    monkeypatch.setattr(watched, "CALLS", 10)
    line = Things().line(is_frequent=False)
    for _ in range(9):
        assert line(5) == 5 and not is_over(line)
    assert line(5) == 5 and line(5) is MISSED and is_over(line) and started
    made.possible = False
    line = Things().line()
    assert all(line(5) == 5 for _ in range(100)) and not is_over(line)


def test_no_compiler(monkeypatch):
    def fail(*args):
        raise cpp.NoCompilerError

    monkeypatch.setattr(cpp, "library", fail)
    made = watched._Library()
    made.load()
    assert made.watch is None and not made.possible


def test_forked_while_the_function_is_compiled():
    made = watched._Library()
    made._started = made.possible = True
    made.after_fork()
    assert not made.possible
