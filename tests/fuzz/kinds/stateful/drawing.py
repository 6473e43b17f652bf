"""What is drawn: a small world, a function that reads and changes it, calls, and changes in between."""

from __future__ import annotations

import random
import re

from tests.fuzz.kinds.stateful import forms

_OWN = (
    "number",
    "tensor",
    "matrix",
    "list",
    "dict",
    "tree",
    "tuple",
    "deque",
    "set",
    "array",
    "mode",
    "helper",
)  # whose name a function may give another object


# kind -> how often one is in the world
_CHOSEN = {"number": 2, "tensor": 3, "leaf": 4, "list": 3, "dict": 3, "deque": 1, "set": 1, "box": 4, "record": 2, "net": 5, "array": 0.3, "tree": 1, "tuple": 1, "mode": 0.7, "matrix": 1, "generator": 0.15, "helper": 1.5}  # fmt: skip


class Drawing:
    """The text of one program, from a generator."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.things: dict[str, str] = {"place": "place"}  # name -> kind
        self.calls, self.handles = 0, 0
        self.saved: dict[str, list[str]] = {}  # of a thing: its state at some time
        self.closed: list[str] = []  # variables of the closure
        self.second = ""  # what the second argument is
        self.topics = {topic for topic in ("settings", "draws", "environment", "place") if rng.random() < 0.12}

    def find(self, *kinds: str) -> str | None:
        names = [name for name, kind in self.things.items() if kind in kinds]
        return self.rng.choice(names) if names else None

    def filled(self, form: str, thing: str = "", value: str = "v") -> str:
        """Return a form with everything drawn that it leaves open."""
        rng = self.rng
        mean = f"{value}.detach().mean(0)" if value else f"X((3,), {rng.randrange(99)})"
        number, net = self.find("number"), self.find("net")
        other = rng.choice([*self.things, "x" if value else "None"])
        if "{h}" in form:
            self.handles += 1
        for key, text in {
            "{t}": thing,
            "{m}": mean,
            "{v}": value,
            "{w}": self.find("leaf") or "leaf((3,), 1)",
            "{n}": str(rng.randint(1, 4)),
            "{s}": str(rng.randrange(99)),
            "{k}": number or str(rng.randint(1, 3)),
            "{o}": other if self.things.get(other) not in ("place", "optimizer") else "1",
            "{h}": f"h{self.handles}",
            "{w2}": f"{net}.weight" if net and rng.random() < 0.5 else f"nn.Parameter(X((3, 3), {rng.randrange(99)}))",
            "{saved}": rng.choice(self.saved.get(thing, [f"copy.deepcopy({thing}.state_dict())"])),
        }.items():
            form = form.replace(key, text)
        return form

    # ---- the world ---------------------------------------------------------------------------------------------------

    def setup(self) -> list[str]:
        rng, lines = self.rng, []
        kinds = rng.choices([*_CHOSEN], [*_CHOSEN.values()], k=rng.choice([1, 2, 2, 3, 3, 4, 5]))
        for i, kind in enumerate(kinds):
            name = f"{kind}{i}"
            lines.append(f"{name} = {self.filled(rng.choice(forms.MADE[kind]))}")
            self.things[name] = kind
            if kind == "helper" and i and rng.random() < 0.5:  # a function that reads and changes what is there before
                del self.things[name]
                steps = [f"    {self.step()}" for _ in range(rng.randint(1, 2))]
                bound = [f"    global {n}" for n in self.things if _binds(n, steps)]
                lines[-1] = "\n".join([f"def {name}(v):", *bound, "    x = v", *steps, "    return v"])
                lines.append(f"{name} = {rng.choice(['jit({})', '{}']).format(name)}")
                self.things[name] = kind
        trained = self.find("leaf", "net")
        if trained and rng.random() < 0.5:
            given = f"[{trained}]" if self.things[trained] == "leaf" else f"{trained}.parameters()"
            lines.append("optimizer0 = " + rng.choice(forms.OPTIMIZERS).replace("{p}", given))
            self.things["optimizer0"] = "optimizer"
        lines.append(f"a0 = {rng.choice(['X', 'X', 'leaf'])}((2, 3), {rng.randrange(99)})")
        return lines

    # ---- the function ------------------------------------------------------------------------------------------------

    def function(self) -> list[str]:
        """Return the lines that define it and compile it."""
        rng = self.rng
        self.second = rng.choice(["", "", "", "", "tensor", "number", "record", "list", "dict"])
        body = [self.step() for _ in range(rng.randint(2, 6))]
        if rng.random() < 0.15 and (thing := self.find(*forms.CONDITIONS)):
            condition = forms.CONDITIONS[self.things[thing]].format(t=thing)
            body.insert(rng.randrange(len(body) + 1), rng.choice(forms.RAISING).replace("{c}", condition))
        if self.second:
            read = {"record": "y.y * y.n", "list": "sum(y)", "dict": "sum(y.values())"}.get(self.second, "y")
            body.insert(rng.randrange(len(body) + 1), f"v = v + (0.5 if y is None else {read})")
        body.append(self.filled(rng.choice(forms.RETURNS)))
        own = [n for n, kind in self.things.items() if kind in _OWN]
        rebound = [n for n in own if _binds(n, body)]
        form = rng.choices(["def", "closure", "method", "class", "module"], [5, 2, 1.5, 0.7, 1.5])[0]
        box = self.find("box")
        if form in ("method", "class") and box:
            body = [line.replace(f"{box}.", "self.") for line in body]
        options = rng.choice(forms.OPTIONS)
        compiled = f"jit({{}}{options})".format
        head = "def f(x, y=None):" if form in ("def", "closure") or not box else "def f(self, x, y=None):"
        lines = ["v = x * 1.0" if rng.random() < 0.7 else "v = x", *body]
        if form == "closure":
            self.closed = [n for n in own if rng.random() < 0.6]
            scope = [f"nonlocal {n}" if n in self.closed else f"global {n}" for n in rebound]
            binds = [f"    def bind_{n}(new): nonlocal {n}; {n} = new" for n in self.closed]
            made = ", ".join(["f", *(f"bind_{n}" for n in self.closed)])
            block = [f"def outer({', '.join(self.closed)}):", f"    {head}"]
            block += [f"        {line}" for line in [*scope, *lines]] + binds + [f"    return {made}"]
            return [*block, f"{made} = outer({', '.join(self.closed)})", f"f = {compiled('f')}"]
        scope = [f"global {n}" for n in rebound]
        block = [head, *(f"    {line}" for line in [*scope, *lines])]
        if form == "method" and box:
            return [*block, f"f = {compiled(f'types.MethodType(f, {box})')}"]
        if form == "class" and box:
            return [*block, f"Box.f = {compiled('f')}", f"f = {box}.f"]
        if form == "module" and box:
            attributes = 'k=1.5, t=X((3,), 4), items=[1.0], d={"a": 0.5}'
            block = [line.replace(f"{box}.", "self.") for line in block]
            self.things["drawn0"] = "box"
            return [*block, f"drawn0 = module(f, {attributes})", f"f = {compiled('drawn0')}"]
        if rng.random() < 0.12:
            return [*block, f"f = {rng.choice(forms.COMPILED).format(f='f', c=options)}"]
        return [*block, f"f = {compiled('f')}"]

    def read(self) -> str:
        rng = self.rng
        topics = [
            (forms.SETTINGS_READ, "settings"),
            (forms.DRAWS, "draws"),
            (forms.ENVIRONMENT, "environment"),
        ]
        for table, topic in topics:
            if topic in self.topics and rng.random() < 0.4:
                return rng.choice(table)
        names = [n for n in self.things if n != "place" or "place" in self.topics]
        if not names:
            return "0.5"
        thing = rng.choice(names)
        return self.filled(rng.choice(forms.READ[self.things[thing]]), thing)

    def step(self) -> str:
        rng = self.rng
        way = rng.random()
        nets = self.find("net")
        if nets and way < 0.2:
            return f"v = {nets}(v)"
        if way < 0.5:
            return f"v = v {rng.choice('+*+-')} ({self.read()})"
        if way < 0.6:
            text = rng.choice(forms.VALUE)
            return self.filled(text)
        if (optimizer := self.find("optimizer")) and way < 0.64:
            return self.filled(rng.choice(forms.TRAINING), optimizer)
        if self.find("leaf", "net") and way < 0.72:
            return self.filled(rng.choice(forms.BACKWARD if rng.random() < 0.85 else forms.HOOKS))
        if (box := self.find("box", "place")) and way < 0.76:
            return f"v = {box}.scaled(v)"
        if "draws" in self.topics and way < 0.78:
            return "place.u = torch.rand(3, device=D)"  # of which no values are compared
        thing = rng.choice([n for n in self.things if n != "place" or "place" in self.topics] or ["place"])
        return self.filled(rng.choice(forms.DONE[self.things[thing]]), thing)

    # ---- between calls -----------------------------------------------------------------------------------------------

    def change(self) -> str:
        rng = self.rng
        for table, topic in ((forms.SETTINGS, "settings"), (forms.SEEDS, "draws"), (forms.VARIABLES, "environment")):
            if topic in self.topics and rng.random() < 0.4:
                return self.filled(rng.choice(table), value="")
        if rng.random() < 0.03:
            return rng.choice(forms.SETTINGS)
        way = rng.random()
        if self.calls and way < 0.12:
            return f"total(r{rng.randrange(self.calls)}).backward()"
        if self.calls and way < 0.18:
            result = f"r{rng.randrange(self.calls)}"
            return self.filled(rng.choice(forms.RESULTS), value="").replace("{r}", result)
        if way > 0.995:
            return "f = jit(f)"
        if self.handles and way < 0.25:
            return f"h{rng.randint(1, self.handles)}.remove()"
        if way < 0.3:
            return self.filled(rng.choice(["a0.data = X((2, 3), {s})", "a0 = X((2, 3), {s})", "a0.grad = None", "a0.requires_grad_(False)", "a0 = leaf((2, 3), {s})"]), value="")  # fmt: skip
        thing = rng.choice([n for n in self.things if n != "place" or "place" in self.topics] or ["place"])
        kind = self.things[thing]
        outside = kind in forms.CHANGED and rng.random() < 0.65
        text = self.filled(rng.choice(forms.CHANGED[kind] if outside else forms.DONE[kind]), thing, "")
        if text.startswith("saved"):
            self.saved.setdefault(thing, []).append(text.split(" = ")[0])
        if thing in self.closed and (found := re.match(rf"{thing} (\W?)= ?(.*)", text)):
            return f"bind_{thing}({found[2]})" if not found[1] else f"{thing}.__class__"
        return text

    def call(self) -> str:
        rng = self.rng
        s, m = rng.randrange(99), rng.randint(1, 3)
        tensors = [n for n, kind in self.things.items() if kind in ("tensor", "leaf")]
        x = rng.choice(["a0"] * 5 + ["X((2, 3), {s})"] * 3 + ["a0[:1]", "X((3, 3), {s})", "X((3, 2), {s}).t()", 'X((2, 3), {s}, "float64")', "leaf((2, 3), {s})", "a0.detach()", "a0 * 2", "X((1, 3), {s}).expand(2, 3)", "first(r{r})", "first(r{r})[:1]", "a0.data", "nn.Parameter(X((2, 3), {s}))", "X((2, 6), {s})[:, ::2]", "X((4, 3), {s})[1:3]"] + [f"{n}[None]" for n in tensors])  # fmt: skip
        x = x.replace("{r}", str(rng.randrange(self.calls) if self.calls else 0))
        text = f"f({x.replace('{s}', str(s))})"
        if self.second and rng.random() < 0.8:
            y = {
                "tensor": ["X((3,), {s})", "a0", "a0[0]", *tensors],
                "number": ["2", "0.5", "True", "y=3"],
                "record": [f"{c}(X((3,), {{s}}), {m})" for c in ("Record", "Frozen", "Pair", "Plain", "Slots")]
                + [f"types.SimpleNamespace(y=X((3,), {{s}}), n={m})"],
                "list": ["[X((3,), {s}), 0.5]", "[a0[0]]", "[0.5, X((3,), {s})]", f"[{m}.0]"],
                "dict": ['{"a": X((3,), {s})}', f'{{"a": X((3,), {{s}}), "b": {m}.5}}', '{"b": a0, "a": a0}'],
            }[self.second]  # fmt: skip
            y += [n for n, kind in self.things.items() if kind == self.second]
            text = f"{text[:-1]}, {rng.choice(y).replace('{s}', str(s))})"
        text = f"r{self.calls} = {text}"
        self.calls += 1
        if rng.random() < 0.12:
            text = rng.choice(forms.REGIONS) + text
        return text


def _binds(name: str, body: list[str]) -> bool:
    return re.search(rf"^ *{name} (\W?|>>|<<)= ", "\n".join(body), re.M) is not None
