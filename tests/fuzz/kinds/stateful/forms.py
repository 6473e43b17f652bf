"""Forms of statements: what of a thing of the world can be read, what a function may do to it, and what outside of it.

`{t}` is the thing, `{v}` the function's value, `{n}` a small number, `{s}` a seed, `{r}` an earlier result, `{w}` a leaf.
"""

from __future__ import annotations

MEAN = "{v}.detach().mean(0)"

# kind -> how one is made
MADE = {
    "number": ["{n}", "{n}.5", "True"],
    "tensor": ["X((3,), {s})"],
    "leaf": ["leaf((3,), {s})"],
    "list": ["[]", "[1.0, 2.0]", "[X((3,), {s})]", "[X((3,), {s}), 0.5]"],
    "dict": ['{"a": {n}.5}', '{"a": X((3,), {s})}', '{"a": {n}.5, "b": X((3,), {s})}'],
    "deque": ["deque([1.0], maxlen=3)", "deque([X((3,), {s})], maxlen=2)", "deque()"],
    "set": ["{1, 2}", "set()"],
    "box": ['Box(k={n}.5, t=X((3,), {s}), items=[1.0], d={"a": 0.5})', 'Box(k={n}, t=leaf((3,), {s}), items=[], d={"a": X((3,), {s})})'],
    "record": ["Record(X((3,), {s}), {n})", "Plain(X((3,), {s}), {n})", "types.SimpleNamespace(y=X((3,), {s}), n={n})", "Record({n}.5, [X((3,), {s})])", "Slots(X((3,), {s}), {n})"],
    "net": [f'net("{kind}", {{s}})' for kind in ("linear", "linear", "layers", "norm", "drop", "running", "running")],
    "array": ["np.ones(3, np.float32)"],
}  # fmt: skip

OPTIMIZERS = ["optim.SGD({p}, lr=0.1)", "optim.SGD({p}, lr=0.1, momentum=0.5)", "optim.Adam({p}, lr=0.1, eps=0.1)", "optim.AdamW({p}, lr=0.1, eps=0.1)", "optim.RMSprop({p}, lr=0.1, eps=0.1)"]  # fmt: skip

# kind -> what is read of it, as a number or a tensor of three
READ = {
    "number": ["{t}"],
    "tensor": ["{t}", "{t}", "{t}.sum()", "{t}.requires_grad * 1.0"],
    "leaf": ["{t}", "{t}", "{t}", "(0.5 if {t}.grad is None else {t}.grad)", "({t}.grad is None) * 1.0", "{t}.requires_grad * 1.0", "{t}.detach()", "{t}.data"],
    "list": ["len({t})", "sum({t})", "({t}[-1] if {t} else 0.5)", "sum(e * 0.5 for e in {t})", "(1.0 in {t} if all(isinstance(e, float) for e in {t}) else 2.0)", "(2.0 if {t} else 0.5)", "sum(i * e for i, e in enumerate({t}))", "sum({t}[1:])", "sum(map(torch.is_tensor, {t}))"],
    "dict": ["len({t})", 'X((3,), 1) if "c" in {t} else 0.5', '{t}["a"]', '{t}.get("c", 0.5)', "sum({t}.values())", '("c" in {t}) * 1.0', "sum(v for k, v in {t}.items() if k != 'a')", "sum(map(len, {t}))"],
    "deque": ["len({t})", "sum({t})", "({t}[0] if {t} else 0.5)"],
    "set": ["len({t})", "sum({t})", "(7 in {t}) * 1.0", "sum(e * 0.5 for e in {t})"],
    "box": ["{t}.k", "{t}.k", "{t}.t", "{t}.t", "{t}.n", "len({t}.items)", "sum({t}.items)", '{t}.d["a"]', '{t}.d.get("c", 0.5)', 'getattr({t}, "extra", 0.5)', 'hasattr({t}, "extra") * 1.0', "Box.n", "len(Box.shared)", "sum({t}.shared)", "len({t})"],
    "record": ["{t}.n if isinstance({t}.n, int) else sum({t}.n)", "{t}.y", "{t}.y"],
    "place": ["{t}.k", "{t}.k", "{t}.t", 'getattr({t}, "extra", 0.5)', "len({t}.log)", "sum({t}.log)", "{t}.count", "{t}.counted(0.5)"],
    "net": ["{t}.training * 1.0", 'getattr({t}, "scale", 0.5)', "sum(p.sum() for p in {t}.parameters())", "sum(p.requires_grad for p in {t}.parameters())", "sum((p.grad is None) for p in {t}.parameters())", "len({t}._forward_hooks)", "sum(b.float().sum() for b in {t}.buffers())", "sum(p.grad.sum() for p in {t}.parameters() if p.grad is not None)"],
    "optimizer": ['{t}.param_groups[0]["lr"]', "len({t}.param_groups)", "len({t}.state)"],
    "array": ["torch.from_numpy({t}.copy()).to(D)", "float({t}[0])", "torch.as_tensor({t}, device=D)"],
}  # fmt: skip

SETTINGS_READ = ["torch.zeros(3, device=D)", "torch.full((3,), 1.5, device=D)", "torch.tensor([0.5, 1.5, 2.0], device=D)", "torch.arange(0, 1.5, 0.5, device=D)", "torch.linspace(0, 1, 3, device=D)", "torch.is_grad_enabled() * 1.0", "(torch.get_default_dtype() == torch.float64) * 1.0", "torch.are_deterministic_algorithms_enabled() * 1.0", "torch.is_inference_mode_enabled() * 1.0", "torch.is_autocast_enabled(D.type) * 1.0", "torch.ones(3, dtype=torch.int64, device=D) / 2", "torch.eye(3, device=D).sum()", "torch.get_num_threads() * 0.0"]  # fmt: skip
DRAWS = ["random.random()", "float(np.random.rand())", "random.choice([0.5, 1.0, 2.0])", "random.randint(1, 3)", "np.random.randint(1, 4)", "torch.from_numpy(np.random.rand(3).astype('float32')).to(D)", "random.gauss(0, 1)", "(2.0 if random.random() < 0.5 else 1.0)"]  # fmt: skip
ENVIRONMENT = ['float(os.environ.get("TG_FUZZ", "1"))', '("TG_FUZZ" in os.environ) * 1.0', 'float(os.getenv("TG_FUZZ", 2))']  # fmt: skip

# kind -> what a function does to it, and what is done outside as well
DONE = {
    "number": ["{t} = {t} + 1", "{t} = {t} * 0.5"],
    "tensor": ["{t}.add_({m})", "{t}.mul_(0.5)", "{t}[0] = {n}", "{t}.copy_({m})", "{t} = {t} * 0.5 + {m}", "{t}.data = {t}.data * 0.5", "{t}.zero_()", "{t} = {m}"],
    "leaf": ["with torch.no_grad(): {t}.mul_(0.5)", "{t}.grad = None", "{t}.grad = torch.ones_like({t})", "({t}.grad.zero_() if {t}.grad is not None else None)", "({t}.grad.mul_(0.5) if {t}.grad is not None else None)", "nn.utils.clip_grad_norm_([{t}], 1.0)", "nn.utils.clip_grad_value_([{t}], 0.5)", "{t}.data.mul_(0.5)", "{t}.grad = {m}"],
    "list": ["{t}.append({n}.0)", "{t}.append({m})", "{t}.append({m})", "({t}.pop() if {t} else None)", "{t}.clear()", "{t}.insert(0, {n}.0)", "{t}.extend([{n}.0, 2.0])", "{t}.reverse()", "{t}[:] = {t}[-2:]", "del {t}[:1]", "{t}[-1:] = [{m}]", "{t} += [{n}.0]", "{t} = [*{t}, {n}.0]"],
    "dict": ['{t}["c"] = {n}.0', '{t}["c"] = {m}', '{t}.pop("c", None)', '{t}["a"] = {t}["a"] * 0.5', "{t}.update(e={n}.0)", '{t}.setdefault("b", {n}.0)', '{t}["a"] = {m}', '{t} = {**{t}, "c": {n}.0}'],
    "deque": ["{t}.append({m})", "{t}.append({n}.0)", "({t}.popleft() if {t} else None)", "{t}.rotate(1)", "{t}.appendleft({m})"],
    "set": ["{t}.add(len({t}) + 5)", "{t}.discard(7)", "{t}.add(7)", "{t}.clear()", "{t}.update({3, 4})"],
    "box": ["{t}.k += 1", "{t}.k = {t}.k * 0.5", "{t}.t = {t}.t.detach() * 0.5 + {m}", "{t}.items.append({n}.0)", "{t}.items.append({m})", "{t}.extra = {n}.0", "{t}.extra = {m}", "Box.n += 1", '{t}.d["c"] = {m}', '{t}.d["a"] = {n}.5', "{t}.t.data.add_(1)", "vars({t}).pop('extra', None)", "{t}.items = [{n}.0]", "{t}.t = {m}", "setattr({t}, 'k', {n})", "Box.shared.append({n}.0)", "{t}.shared.clear()", "{t}.shared.append(len({t}.shared) + 0.5)"],
    "record": ["{t}.y = {m}", "{t}.n = {n}", "{t}.y = {t}.y * 0.5"],
    "place": ["{t}.k += 1", "{t}.t = {t}.t * 0.5", "{t}.t = {m}", "{t}.extra = {n}.0", "{t}.t.add_(1)", "{t}.log.append({n}.0)", "{t}.counted(1)", "{t}.count += 1"],
    "net": ["{t}.zero_grad()", "{t}.zero_grad(set_to_none=False)", "nn.utils.clip_grad_norm_({t}.parameters(), 1.0)", "{t}.scale = {n}.5", "[p.data.mul_(0.5) for p in {t}.parameters()] and None", "{t}.train({t}.training)"],
    "optimizer": ["{t}.zero_grad()", "{t}.zero_grad()", "{t}.zero_grad(set_to_none=False)", "{t}.step()", "{t}.step()", '{t}.param_groups[0]["lr"] *= 0.5'],
    "array": ["{t}[0] = {n}", "{t} *= 0.5"],
}  # fmt: skip

# kind -> what is done outside alone
CHANGED = {
    "number": ["{t} = {n}", "{t} = {n}.5", "{t} = X((3,), {s})", "{t} = False"],
    "tensor": ["{t} = X((3,), {s})", "{t}.data = X((3,), {s})", '{t} = X((3,), {s}, "float64")', "{t}.requires_grad_()", "{t} = X((2, 3), {s})", "{t}.set_(X((3,), {s}))", "{t} = X((3,), {s})[:]", "{t} = {t}.detach()", "{t} = {n}.5"],
    "leaf": ["{t} = leaf((3,), {s})", "{t}.data = X((3,), {s})", "{t}.grad = X((3,), {s})", "{t}.requires_grad_(False)", "{t}.requires_grad_(True)", "{h} = {t}.register_hook(lambda g: g * 2)", "{h} = {t}.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))", "{t} = nn.Parameter(X((3,), {s}))", "with torch.no_grad(): {t}.copy_(X((3,), {s}))", "{t} = X((3,), {s})"],
    "list": ["{t} = [X((3,), {s})]", "{t} = []"],
    "dict": ['{t} = {"a": X((3,), {s})}', '{t}["a"] = X((3,), {s})', '{t}["a"] = {n}'],
    "deque": ["{t} = deque([{n}.0])"],
    "set": ["{t} = {7}"],
    "box": ["Box.n = {n}", "Box.shared = [0.5]", "Box.__len__ = lambda self: {n}", "Box.scaled = lambda self, v: v * {n}", "{t}.scaled = lambda v: v * {n}", "{t}.t = X((3,), {s})", "{t}.k = X((3,), {s})", "{t}.extra = X((3,), {s})", "{t}.t.data = X((3,), {s})", "{t}.d = {'a': {n}.0}", "{t}.t = leaf((3,), {s})", "vars({t}).pop('scaled', None)"],
    "record": ["{t} = Record(X((3,), {s}), {n})", "{t}.y = X((3,), {s})", "{t}.y = {n}.5"],
    "place": ["{t}.k = {n}", "{t}.log[:] = [{n}.0]", "{t}.counted = lambda v: v * {n}", "{t}.t = X((3,), {s})", "{t}.scaled = lambda v: v * {n}", "vars({t}).pop('extra', None)"],
    "net": ["{t}.train()", "{t}.eval()", "{t}.eval()", "{t}[0] = nn.Identity()", "{t}.append(nn.Tanh())", "{t}.weight = nn.Parameter(X((3, 3), {s}))", "{t}.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in {t}.state_dict().items()})", "{t}.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in {t}.state_dict().items()}, assign=True)", "{t}.requires_grad_(False)", "{t}.requires_grad_(True)", "{h} = {t}.register_forward_hook(lambda m, a, o: o * 2)", "{h} = {t}.register_forward_pre_hook(lambda m, a: (a[0] + 1,))", "{h} = {t}.register_full_backward_hook(lambda m, i, o: (i[0] * 2 if i[0] is not None else None,))", "{h} = {t}.register_full_backward_pre_hook(lambda m, o: (o[0] * 2,))", "{t}.forward = lambda v: v * {n}", "vars({t}).pop('forward', None)", "{h} = hooks.register_module_forward_hook(lambda m, a, o: o * 2)", "{h} = hooks.register_module_forward_pre_hook(lambda m, a: (a[0] + 1,))", "{h} = hooks.register_module_full_backward_hook(lambda m, i, o: (i[0] * 2 if i[0] is not None else None,))", 'parametrize.register_parametrization({t}, "weight", Halved())', "{t}.bias = None", "{t}.weight.data = X((3, 3), {s})", "{t}.weight.grad = None", "{t}.double()", "{t}.float()", "{t}.weight.requires_grad_(False)", "{t}.last = X((3,), {s})", "{t}.mean.zero_()", "{t}[-1].momentum = None", "{t}[-1].p = 0.0", "{t}.linear = nn.Identity()", "{t} = copy.deepcopy({t})"],
    "optimizer": ['{t}.param_groups[0]["lr"] = 0.0{n}', '{t}.param_groups[0]["weight_decay"] = 0.{n}', '{t}.param_groups[0]["betas"] = (0.5, 0.{n})', '{t}.param_groups[0]["momentum"] = 0.{n}', "{t}.add_param_group({'params': [{w}]})", "saved{s} = copy.deepcopy({t}.state_dict())", "{t}.load_state_dict({saved})", "scheduler0 = optim.lr_scheduler.StepLR({t}, 1, 0.5)", "scheduler0.step()", "{t}.state.clear()", '{t}.param_groups[0]["lr"] = torch.tensor(0.0{n})', '{t}.param_groups[0]["maximize"] = True', "{h} = {t}.register_step_pre_hook(lambda o, a, k: o.zero_grad(set_to_none=False))", "{h} = {t}.register_step_post_hook(lambda o, a, k: o.zero_grad())"],
    "array": ["{t}[:] = {n}", "{t} = np.full(3, {n}, np.float32)"],
}  # fmt: skip
SETTINGS = ["torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)", "torch.use_deterministic_algorithms(True)", "torch.use_deterministic_algorithms(False)", "torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"]  # fmt: skip
SEEDS = ["random.seed({n})", "np.random.seed({n})", "random.random()"]
VARIABLES = ['os.environ["TG_FUZZ"] = "{n}"', 'os.environ.pop("TG_FUZZ", None)']

BACKWARD = [
    "({v}.sum().backward() if {v}.requires_grad else None)",
    "({v}.sum().backward(retain_graph=True) if {v}.requires_grad else None)",
    "{v} = {v} + (torch.autograd.grad({v}.sum(), {w}, retain_graph=True, allow_unused=True)[0] if {v}.requires_grad and {w}.requires_grad else 1.0)",
    "({v}.sum().backward() if {v}.requires_grad and {n} > 1 else None)",
]  # fmt: skip
HOOKS = [
    "({v}.register_hook(lambda g: g * 2) if {v}.requires_grad else None)",
    "h = {w}.register_hook(lambda g: g * 2) if {w}.requires_grad else None",
    "({v}.retain_grad() if {v}.requires_grad else None)",
]
RAISING = [
    'if {c} > 3: raise ValueError("much")',
    'if {c} == 2: raise KeyError("two")',
    'assert {c} < 4, "much"',
]
CONDITIONS = {"number": "{t}", "list": "len({t})", "dict": "len({t}) + 1", "set": "len({t})", "deque": "len({t})", "box": "{t}.n"}  # fmt: skip
VALUE = ["{v} = torch.tanh({v})", "{v} = {v} * 0.5", "{v}.add_(1)", "{v} = {v}.clone()", "{v} = {v}[:1] + {v}", "{v} = {v}.view(-1, 3)", "{v} = {v}.detach()", "with torch.no_grad(): {v} = {v} * 2", "x.add_(1)", "x.mul_(0.5)", "{v} = {v}.float()", "{v} = {v} @ {v}.t() @ {v}", "with torch.enable_grad(): {v} = {v} * 2", "torch.add({v}, 1, out={v}) if not {v}.requires_grad else None"]  # fmt: skip
RETURNS = ["return {v}", "return {v}", "return {v}", "return {v}", "return {v}, x", "return {'a': {v}, 'b': {o}}", "return Record({v}, {k})", "return Frozen({v}, {k})", "return Pair({v}, {k})", "return Bag(a={v}, b={k})", "return Row([{v}, {k}])", "return Plain({v}, {o})", "return Slots({v}, {k})", "return types.SimpleNamespace(y={v}, n={k})", "return torch.distributions.Normal({v}.float(), {v}.detach().float().abs() + 1)", "return [Record({v}, {v}), x]", "return Plain(Record({v}, [{v}]), {o})", "return x", "return {o}", "return {v}[0], x[0]", "return {v}, {v}", "return {v}.detach()", "return None", "return {v}, {k}", "return Record({v}, Plain(x, {o}))", "return {v}.sum()", "return deque([{v}, {k}])", "return {v}.shape, {v}.dtype, {v}", "return {v}, torch.distributions.Categorical(logits={v}.float())"]  # fmt: skip
REGIONS = ["with torch.no_grad(): ", "with torch.inference_mode(): ", "with torch.autocast(D.type, dtype=torch.bfloat16): ", "with torch.enable_grad(): ", "with torch.autocast(D.type, enabled=False): "]  # fmt: skip
OPTIONS = [
    "",
    "",
    ', compile="first"',
    ', check="never"',
    ', compile="first", check="never"',
    ', compile="first", check="always"',
]
