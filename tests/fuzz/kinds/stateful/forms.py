"""Forms of statements: what of a thing of the world can be read, what a function may do to it, and what outside of it.

`{t}` is the thing, `{v}` the function's value, `{n}` a small number, `{s}` a seed, `{r}` an earlier result, `{w}` a leaf.
"""

from __future__ import annotations

MEAN = "{v}.detach().mean(0)"

# kind -> how one is made
MADE = {
    "number": ["{n}", "{n}.5", "True"],
    "tensor": ["X((3,), {s})", "X((3, 3), {s})[1]", "X((6,), {s})[::2]"],
    "leaf": ["leaf((3,), {s})"],
    "list": ["[]", "[1.0, 2.0]", "[X((3,), {s})]", "[X((3,), {s}), 0.5]"],
    "dict": ['{"a": {n}.5}', '{"a": X((3,), {s})}', '{"a": {n}.5, "b": X((3,), {s})}', "collections.defaultdict(float, a={n}.5)", "collections.OrderedDict(a={n}.5, b=X((3,), {s}))", "collections.Counter(a={n})"],
    "deque": ["deque([1.0], maxlen=3)", "deque([X((3,), {s})], maxlen=2)", "deque()"],
    "set": ["{1, 2}", "set()"],
    "box": ['Box(k={n}.5, t=X((3,), {s}), items=[1.0], d={"a": 0.5})', 'Box(k={n}, t=leaf((3,), {s}), items=[], d={"a": X((3,), {s})})'],
    "record": ["Record(X((3,), {s}), {n})", "Plain(X((3,), {s}), {n})", "types.SimpleNamespace(y=X((3,), {s}), n={n})", "Record({n}.5, [X((3,), {s})])", "Slots(X((3,), {s}), {n})"],
    "net": [f'net("{kind}", {{s}})' for kind in ("linear", "linear", "layers", "norm", "drop", "running", "running", "tied", "scaled", "normed")],
    "array": ["np.ones(3, np.float32)"],
    "tree": ['{"a": [X((3,), {s})], "b": {"c": {n}.5}}', '{"a": [1.0], "b": {"c": X((3,), {s})}}', '{"a": [], "b": collections.OrderedDict(c={n})}'],
    "tuple": ["(X((3,), {s}), {n})", "Pair(X((3,), {s}), {n})", "(leaf((3,), {s}), {n}.5)"],
    "mode": ['fast', "None"],
    "matrix": ["X((3, 3), {s})", "leaf((3, 3), {s})"],
    "generator": ["random.Random({n})", "np.random.default_rng({n})", "itertools.count({n})", "iter([0.5, 1.5, 2.5, 3.5, 0.5, 1.5])"],
    "helper": ["lambda v: v * {n}.5", "functools.partial(torch.mul, other={n}.5)", "jit(lambda v: v * {n}.5)", "jit(lambda v: v + {k})", "torch.no_grad()(lambda v: v * 2.0)", "functools.lru_cache(lambda v: v * 1.5)"],
}  # fmt: skip

OPTIMIZERS = ["optim.SGD({p}, lr=0.1)", "optim.SGD({p}, lr=0.1, momentum=0.5)", "optim.Adam({p}, lr=0.1, eps=0.1)", "optim.AdamW({p}, lr=0.1, eps=0.1)", "optim.RMSprop({p}, lr=0.1, eps=0.1)"]  # fmt: skip

# kind -> what is read of it, as a number or a tensor of three
READ = {
    "number": ["{t}"],
    "tensor": ["{t}", "{t}", "{t}.sum()", "{t}.requires_grad * 1.0"],
    "leaf": ["{t}", "{t}", "{t}", "(0.5 if {t}.grad is None else {t}.grad)", "({t}.grad is None) * 1.0", "{t}.requires_grad * 1.0", "{t}.detach()", "{t}.data", "{t}.is_leaf * 1.0", "{t}.retains_grad * 1.0", "len({t}._backward_hooks or ())", "{t}.grad_fn is None and 0.5 or 1.5"],
    "list": ["len({t})", "sum({t})", "({t}[-1] if {t} else 0.5)", "sum(e * 0.5 for e in {t})", "(1.0 in {t} if all(isinstance(e, float) for e in {t}) else 2.0)", "(2.0 if {t} else 0.5)", "sum(i * e for i, e in enumerate({t}))", "sum({t}[1:])", "sum(map(torch.is_tensor, {t}))"],
    "dict": ["len({t})", 'X((3,), 1) if "c" in {t} else 0.5', '{t}["a"]', '{t}.get("c", 0.5)', "sum({t}.values())", '("c" in {t}) * 1.0', "sum(v for k, v in {t}.items() if k != 'a')", "sum(map(len, {t}))"],
    "deque": ["len({t})", "sum({t})", "({t}[0] if {t} else 0.5)"],
    "set": ["len({t})", "sum({t})", "(7 in {t}) * 1.0", "sum(e * 0.5 for e in {t})"],
    "box": ["{t}.k", "{t}.k", "{t}.t", "{t}.t", "{t}.n", "len({t}.items)", "sum({t}.items)", '{t}.d["a"]', '{t}.d.get("c", 0.5)', 'getattr({t}, "extra", 0.5)', 'hasattr({t}, "extra") * 1.0', "Box.n", "len(Box.shared)", "sum({t}.shared)", "len({t})", "{t}.twice", "{t}.twice", "(vars({t}).get('k', 0.5))", "len(vars({t}))", "getattr({t}, 'scaled')(0.5)", "(Box.shared[-1] if Box.shared else 0.5)"],
    "record": ["{t}.n if isinstance({t}.n, int) else sum({t}.n)", "{t}.y", "{t}.y"],
    "place": ["{t}.k", "{t}.k", "{t}.t", 'getattr({t}, "extra", 0.5)', "len({t}.log)", "sum({t}.log)", "{t}.count", "{t}.counted(0.5)"],
    "net": ["{t}.training * 1.0", 'getattr({t}, "scale", 0.5)', "sum(p.sum() for p in {t}.parameters())", "sum(p.requires_grad for p in {t}.parameters())", "sum((p.grad is None) for p in {t}.parameters())", "len({t}._forward_hooks)", "sum(b.float().sum() for b in {t}.buffers())", "sum(p.grad.sum() for p in {t}.parameters() if p.grad is not None)", "isinstance({t}, nn.Sequential) * 1.0", "len(list({t}.parameters()))", "len({t}.state_dict())", "{t}.state_dict()[next(iter({t}.state_dict()))].float().mean()", "next({t}.parameters()).detach().mean()", "(next({t}.parameters()).grad is None) * 1.0", "sum(m.training for m in {t}.modules())"],
    "optimizer": ['{t}.param_groups[0]["lr"]', "len({t}.param_groups)", "len({t}.state)", '{t}.param_groups[-1]["params"][0].detach().sum()', 'sum(len(g["params"]) for g in {t}.param_groups)', '{t}.param_groups[0].get("momentum", 0.5)', '{t}.defaults["lr"]'],
    "array": ["torch.from_numpy({t}.copy()).to(D)", "float({t}[0])", "torch.as_tensor({t}, device=D)"],
    "tree": ['sum({t}["a"])', '{t}["b"]["c"]', 'len({t}["a"])', '({t}["a"][-1] if {t}["a"] else 0.5)', '("d" in {t}["b"]) * 1.0', "sum(len(e) for e in {t}.values())"],
    "tuple": ["{t}[0]", "{t}[1]", "{t}[0] * {t}[1]", "sum(e * 0.5 for e in {t})"],
    "mode": ['(2.0 if {t} == "fast" else 0.5)', "({t} is None) * 1.0", '{"fast": 2.0, "slow": 0.5}.get({t}, 1.0)'],
    "matrix": ["{t}[1]", "{t}.sum(0)", "{t}.t()[0]", "{t}.diagonal()", "{t}[:, 1]"],
    "generator": ["({t}.random() if hasattr({t}, 'random') else next({t}, 0.5))"],
    "helper": ["callable({t}) * 1.0", "getattr({t}, 'k', 0.5)", "{t}(torch.full((3,), 0.5, device=D))"],
}  # fmt: skip

SETTINGS_READ = ["torch.zeros(3, device=D)", "torch.full((3,), 1.5, device=D)", "torch.tensor([0.5, 1.5, 2.0], device=D)", "torch.arange(0, 1.5, 0.5, device=D)", "torch.linspace(0, 1, 3, device=D)", "torch.is_grad_enabled() * 1.0", "(torch.get_default_dtype() == torch.float64) * 1.0", "torch.are_deterministic_algorithms_enabled() * 1.0", "torch.is_inference_mode_enabled() * 1.0", "torch.is_autocast_enabled(D.type) * 1.0", "torch.ones(3, dtype=torch.int64, device=D) / 2", "torch.eye(3, device=D).sum()", "torch.get_num_threads() * 0.0", "(torch.get_float32_matmul_precision() == 'high') * 1.0", "(torch.get_autocast_dtype(D.type) == torch.float16) * 1.0", "torch.ones(3, device=D).dtype.itemsize", "torch.rand(3, device=D) * 0.0", "torch.is_anomaly_enabled() * 1.0", "torch.backends.cudnn.benchmark * 1.0"]  # fmt: skip
DRAWS = ["random.random()", "float(np.random.rand())", "random.choice([0.5, 1.0, 2.0])", "random.randint(1, 3)", "np.random.randint(1, 4)", "torch.from_numpy(np.random.rand(3).astype('float32')).to(D)", "random.gauss(0, 1)", "(2.0 if random.random() < 0.5 else 1.0)", "random.sample([0.5, 1.5], 1)[0]", "float(np.random.default_rng({n}).random())", "random.Random({n}).random()"]  # fmt: skip
ENVIRONMENT = ['float(os.environ.get("TG_FUZZ", "1"))', '("TG_FUZZ" in os.environ) * 1.0', 'float(os.getenv("TG_FUZZ", 2))']  # fmt: skip

# kind -> what a function does to it, and what is done outside as well
DONE = {
    "number": ["{t} = {t} + 1", "{t} = {t} * 0.5"],
    "tensor": ["{t}.add_({m})", "{t}.mul_(0.5)", "{t}[0] = {n}", "{t}.copy_({m})", "{t} = {t} * 0.5 + {m}", "{t}.data = {t}.data * 0.5", "{t}.zero_()", "{t} = {m}", "{t}.detach()[:1].add_(1)", "{t}.view(-1)[-1:].zero_()", "{t}.requires_grad_()", "{t}.k = {n}.5", "{t}.clamp_(-1, 1)", "{t}.fill_({n}.5)"],
    "leaf": ["with torch.no_grad(): {t}.mul_(0.5)", "{t}.grad = None", "{t}.grad = torch.ones_like({t})", "({t}.grad.zero_() if {t}.grad is not None else None)", "({t}.grad.mul_(0.5) if {t}.grad is not None else None)", "nn.utils.clip_grad_norm_([{t}], 1.0)", "nn.utils.clip_grad_value_([{t}], 0.5)", "{t}.data.mul_(0.5)", "{t}.grad = {m}", "{t}.requires_grad_(False)", "{t}.requires_grad_()", "{t}.detach().mul_(0.5)", "{t}.grad = {t}.detach() * 2.0", "{t}.k = {n}.5", "({t}.grad.add_({m}) if {t}.grad is not None else None)", "{t}.grad = ({t}.grad.clone() if {t}.grad is not None else None)"],
    "list": ["{t}.append({n}.0)", "{t}.append({m})", "{t}.append({m})", "({t}.pop() if {t} else None)", "{t}.clear()", "{t}.insert(0, {n}.0)", "{t}.extend([{n}.0, 2.0])", "{t}.reverse()", "{t}[:] = {t}[-2:]", "del {t}[:1]", "{t}[-1:] = [{m}]", "{t} += [{n}.0]", "{t} = [*{t}, {n}.0]", "{t}.sort(key=lambda e: 0.0)", "{t}.append(len({t}) * 0.5)", "{t} *= 2", "{t}.insert(0, {m})"],
    "dict": ['{t}["c"] = {n}.0', '{t}["c"] = {m}', '{t}.pop("c", None)', '{t}["a"] = {t}["a"] * 0.5', "{t}.update(e={n}.0)", '{t}.setdefault("b", {n}.0)', '{t}["a"] = {m}', '{t} = {**{t}, "c": {n}.0}', '{t}["d"] = {t}.get("d", 0) + 1', "({t}.popitem() if len({t}) > 1 else None)", '{t} |= {"e": {n}.5}', '({t}.move_to_end("a") if hasattr({t}, "move_to_end") else None)', '{t}["f"] = {t}["a"]'],
    "deque": ["{t}.append({m})", "{t}.append({n}.0)", "({t}.popleft() if {t} else None)", "{t}.rotate(1)", "{t}.appendleft({m})"],
    "set": ["{t}.add(len({t}) + 5)", "{t}.discard(7)", "{t}.add(7)", "{t}.clear()", "{t}.update({3, 4})", "{t} ^= {9}", "{t} = {t} | {6}"],
    "box": ["{t}.k += 1", "{t}.k = {t}.k * 0.5", "{t}.t = {t}.t.detach() * 0.5 + {m}", "{t}.items.append({n}.0)", "{t}.items.append({m})", "{t}.extra = {n}.0", "{t}.extra = {m}", "Box.n += 1", '{t}.d["c"] = {m}', '{t}.d["a"] = {n}.5', "{t}.t.data.add_(1)", "vars({t}).pop('extra', None)", "{t}.items = [{n}.0]", "{t}.t = {m}", "setattr({t}, 'k', {n})", "Box.shared.append({n}.0)", "{t}.shared.clear()", "{t}.shared.append(len({t}.shared) + 0.5)", "{t}.k = {n}.5", "{t}.twice = {n}", "Box.n = {n}", "{t}.items += [{n}.0]", "{t}.d = {**{t}.d, 'c': {n}.5}", "{t}.extra = {t}.k", "del {t}.items[:1]", "{t}.items.append({t}.k * 0.5)", "delattr({t}, 'extra') if hasattr({t}, 'extra') else None", "setattr(Box, 'n', {n})", "{t}.__dict__.update(k={n}.5)"],
    "record": ["{t}.y = {m}", "{t}.n = {n}", "{t}.y = {t}.y * 0.5", "{t}.n = {t}.n", "{t}.y, {t}.n = {m}, {n}", "setattr({t}, 'n', {n})"],
    "place": ["{t}.k += 1", "{t}.t = {t}.t * 0.5", "{t}.t = {m}", "{t}.extra = {n}.0", "{t}.t.add_(1)", "{t}.log.append({n}.0)", "{t}.counted(1)", "{t}.count += 1", "{t}.k = {n}.5", "{t}.extra = {t}.t", "del {t}.log[:1]", "{t}.log += [{n}.5]"],
    "net": ["{t}.zero_grad()", "{t}.zero_grad(set_to_none=False)", "nn.utils.clip_grad_norm_({t}.parameters(), 1.0)", "{t}.scale = {n}.5", "[p.data.mul_(0.5) for p in {t}.parameters()] and None", "{t}.train({t}.training)", "{t}.train()", "{t}.eval()", "{t}.train(not {t}.training)", "{t}.requires_grad_(False)", "{t}.requires_grad_(True)", "[b.add_(1) for b in {t}.buffers() if b.is_floating_point()] and None", "{t}.extra = {m}", "{t}.extra = {n}.5", "{t}.register_buffer('more', {m})", "[p.grad.mul_(0.5) for p in {t}.parameters() if p.grad is not None] and None", "{t}.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in {t}.state_dict().items()})", "for p in {t}.parameters(): p.grad = torch.ones_like(p)"],
    "optimizer": ["{t}.zero_grad()", "{t}.zero_grad()", "{t}.zero_grad(set_to_none=False)", "{t}.step()", "{t}.step()", '{t}.param_groups[0]["lr"] *= 0.5', "{t}.step(lambda: None)", "{t}.step(); {t}.zero_grad()", '{t}.param_groups[0]["lr"] = 0.0{n}'],
    "array": ["{t}[0] = {n}", "{t} *= 0.5"],
    "matrix": ["with torch.no_grad(): {t}.mul_(0.5)", "with torch.no_grad(): {t}[1].add_(1)", "with torch.no_grad(): {t}[:, 0] = {n}.5", "with torch.no_grad(): {t}.t()[0].copy_({m})", "{t} = {t}.detach() * 0.5"],
    "tree": ['{t}["a"].append({m})', '{t}["a"].append({n}.0)', '{t}["b"]["c"] = {n}.5', '{t}["b"]["c"] = {t}["b"]["c"] * 0.5', '{t}["b"]["d"] = {m}', '{t}["b"] = {"c": {n}.0}', '{t}["a"][:] = [{m}]', '({t}["a"].pop() if {t}["a"] else None)', '{t}["b"].pop("d", None)', '{t}["e"] = ({n}, {m})'],
    "tuple": ["{t} = ({m}, {n})", "{t} = ({t}[0], {t}[1] + 1)", "with torch.no_grad(): {t}[0].mul_(0.5)"],
    "mode": ['{t} = "slow"', '{t} = "fast"', "{t} = None"],
    "generator": ["({t}.random() if hasattr({t}, 'random') else next({t}, 0.5))"],
    "helper": ["{t}.k = {n}.5"],
}  # fmt: skip

# kind -> what is done outside alone
CHANGED = {
    "number": ["{t} = {n}", "{t} = {n}.5", "{t} = X((3,), {s})", "{t} = False", "{t} = X((), {s})", "{t} = np.float32({n}.5)", "{t} = {t} + 0", "{t} = float({t})", "{t} = leaf((3,), {s})", "{t} = -0.0", "{t} = None"],
    "tensor": ["{t} = X((3,), {s})", "{t}.data = X((3,), {s})", '{t} = X((3,), {s}, "float64")', "{t}.requires_grad_()", "{t} = X((2, 3), {s})", "{t}.set_(X((3,), {s}))", "{t} = X((3,), {s})[:]", "{t} = {t}.detach()", "{t} = {n}.5", "{t} = X((3, 3), {s})[2]", "{t}[:1].zero_()", "{t}.k = {n}.5", "{t} = {t}.clone()", "{t} = leaf((3,), {s})", "{t} = {t}[None][0]", "{t} = nn.Buffer(X((3,), {s}))", "{t} = {t}.double()"],
    "leaf": ["{t} = leaf((3,), {s})", "{t}.data = X((3,), {s})", "{t}.grad = X((3,), {s})", "{t}.requires_grad_(False)", "{t}.requires_grad_(True)", "{h} = {t}.register_hook(lambda g: g * 2)", "{h} = {t}.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))", "{t} = nn.Parameter(X((3,), {s}))", "with torch.no_grad(): {t}.copy_(X((3,), {s}))", "{t} = X((3,), {s})", "{t}.retain_grad()", "{t}.grad = None", "{t}.k = {n}.5", "{t} = {t}.detach()", "{t} = {t} * 2", "{t}.detach().mul_(2)", "{t}.grad = X((3,), {s}); {t}.grad.requires_grad_()", "({t}.grad.data.zero_() if {t}.grad is not None else None)", "{t} = nn.Parameter({t}.detach())", "torch.utils.swap_tensors({t}, leaf((3,), {s}))", "{t}.data = X((3,), {s}, 'float64')"],
    "list": ["{t} = [X((3,), {s})]", "{t} = []", "{t} = [X((3,), {s}), X((3,), {s})]", "{t}.append(X((3,), {s}))", "{t} = copy.copy({t})", "{t} = tuple({t})", "{t}[:] = [{n}.5]", "{t} = deque({t})"],
    "dict": ['{t} = {"a": X((3,), {s})}', '{t}["a"] = X((3,), {s})', '{t}["a"] = {n}', 'del {t}["a"]', "{t}.clear()", "{t} = copy.copy({t})", "{t} = collections.OrderedDict({t})", '{t}["b"] = {o}', '{t}["a"] = X((3,), {s}, "float64")'],
    "deque": ["{t} = deque([{n}.0])"],
    "set": ["{t} = {7}"],
    "box": ["Box.n = {n}", "Box.shared = [0.5]", "Box.__len__ = lambda self: {n}", "Box.scaled = lambda self, v: v * {n}", "{t}.scaled = lambda v: v * {n}", "{t}.t = X((3,), {s})", "{t}.k = X((3,), {s})", "{t}.extra = X((3,), {s})", "{t}.t.data = X((3,), {s})", "{t}.d = {'a': {n}.0}", "{t}.t = leaf((3,), {s})", "vars({t}).pop('scaled', None)", "Box.twice = property(lambda self: self.k * {n})", "del {t}.k", "{t} = copy.copy({t})", "{t} = Box(**vars({t}))", "{t}.__class__ = type('Other', (Box,), {'n': {n}})", "Box.scaled = jit(lambda self, v: v * {n})", "Box.extra = {n}.5", "{t}.d = collections.OrderedDict({t}.d)", "{t}.items = ({n}.0,)", "vars({t}).update(k={n}.0, n={n})", "{t}.n = {n}", "{t}.t.requires_grad_()", "{t}.t = nn.Parameter(X((3,), {s}))"],
    "record": ["{t} = Record(X((3,), {s}), {n})", "{t}.y = X((3,), {s})", "{t}.y = {n}.5", "{t} = copy.copy({t})", "{t} = Plain(X((3,), {s}), {n})", "{t}.n = {n}.5", "{t}.y.data = X((3,), {s})", "{t}.y = leaf((3,), {s})", "{t}.y.mul_(2)"],
    "place": ["{t}.k = {n}", "{t}.log[:] = [{n}.0]", "{t}.counted = lambda v: v * {n}", "{t}.t = X((3,), {s})", "{t}.scaled = lambda v: v * {n}", "vars({t}).pop('extra', None)", "{t}.scaled = jit(lambda v: v * {n})", "{t}.t = leaf((3,), {s})", "{t}.t.data = X((3,), {s})", "{t}.extra = X((3,), {s})", "{t}.k = X((3,), {s})", "{t}.count = {n}", "{t}.log = [{n}.5]"],
    "net": ["{t}.train()", "{t}.eval()", "{t}.eval()", "{t}[0] = nn.Identity()", "{t}.append(nn.Tanh())", "{t}.weight = nn.Parameter(X((3, 3), {s}))", "{t}.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in {t}.state_dict().items()})", "{t}.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in {t}.state_dict().items()}, assign=True)", "{t}.requires_grad_(False)", "{t}.requires_grad_(True)", "{h} = {t}.register_forward_hook(lambda m, a, o: o * 2)", "{h} = {t}.register_forward_pre_hook(lambda m, a: (a[0] + 1,))", "{h} = {t}.register_full_backward_hook(lambda m, i, o: (i[0] * 2 if i[0] is not None else None,))", "{h} = {t}.register_full_backward_pre_hook(lambda m, o: (o[0] * 2,))", "{t}.forward = lambda v: v * {n}", "vars({t}).pop('forward', None)", "{h} = hooks.register_module_forward_hook(lambda m, a, o: o * 2)", "{h} = hooks.register_module_forward_pre_hook(lambda m, a: (a[0] + 1,))", "{h} = hooks.register_module_full_backward_hook(lambda m, i, o: (i[0] * 2 if i[0] is not None else None,))", 'parametrize.register_parametrization({t}, "weight", Halved())', "{t}.bias = None", "{t}.weight.data = X((3, 3), {s})", "{t}.weight.grad = None", "{t}.double()", "{t}.float()", "{t}.weight.requires_grad_(False)", "{t}.last = X((3,), {s})", "{t}.mean.zero_()", "{t}[-1].momentum = None", "{t}[-1].p = 0.0", "{t}.linear = nn.Identity()", "{t} = copy.deepcopy({t})", "saved{s} = copy.deepcopy({t}.state_dict())", "{t}.load_state_dict({saved})", "{t}.add_module('extra', nn.Linear(3, 3).to(D))", "nn.init.constant_({t}.weight, 0.{n})", "{t}.weight = {w2}", "[m.zero_grad() for m in {t}.modules()] and None", "for p in {t}.parameters(): p.grad = torch.ones_like(p)", "{t}.register_buffer('more', X((3,), {s}))", "del {t}.scale", "{t}.requires_grad_(False).eval()", "[p.detach().mul_(2) for p in {t}.parameters()] and None", "parametrize.remove_parametrizations({t}, 'weight')", "{t}[0], {t}[-1] = {t}[-1], {t}[0]", "{t}[0] = net('linear', {s})", "{t} = net('running', {s})", "{t} = nn.Sequential({t}, nn.Tanh())", "{t}.last = None", "{t}.register_parameter('weight', nn.Parameter(X((3, 3), {s})))", "{t}.weight.data.fill_(0.{n})", "{t}.running = {n}", "{t}.to(torch.float64)", "torch.nn.utils.vector_to_parameters(torch.zeros(sum(p.numel() for p in {t}.parameters()), device=D), {t}.parameters())", "{t}.compute = {n}", "{h} = {t}.register_forward_hook(lambda m, a, k, o: o + 1, with_kwargs=True)", "{h} = {t}.register_forward_hook(lambda m, a, o: None, always_call=True)", "{h} = {t}.register_forward_hook(lambda m, a, o: setattr(m, 'seen', {n}))", "{h} = next({t}.parameters()).register_hook(lambda g: g * 2)"],
    "optimizer": ['{t}.param_groups[0]["lr"] = 0.0{n}', '{t}.param_groups[0]["weight_decay"] = 0.{n}', '{t}.param_groups[0]["betas"] = (0.5, 0.{n})', '{t}.param_groups[0]["momentum"] = 0.{n}', "{t}.add_param_group({'params': [{w}]})", "saved{s} = copy.deepcopy({t}.state_dict())", "{t}.load_state_dict({saved})", "scheduler0 = optim.lr_scheduler.StepLR({t}, 1, 0.5)", "scheduler0.step()", "{t}.state.clear()", '{t}.param_groups[0]["lr"] = torch.tensor(0.0{n})', '{t}.param_groups[0]["maximize"] = True', "{h} = {t}.register_step_pre_hook(lambda o, a, k: o.zero_grad(set_to_none=False))", "{h} = {t}.register_step_post_hook(lambda o, a, k: o.zero_grad())", '{t}.param_groups[0]["params"].append({w})', '{t}.param_groups[0]["foreach"] = False', "{t}.zero_grad(); {t}.step()", '{t}.defaults["lr"] = 0.0{n}', '{t}.param_groups[0].pop("weight_decay", None)', "{t}.param_groups = copy.copy({t}.param_groups)", '{t}.param_groups[0].update(nesterov=True, foreach=False)', "{t} = optim.SGD([{w}], lr=0.{n})", "optim.lr_scheduler.ExponentialLR({t}, 0.5).step()", '{t}.state[{t}.param_groups[0]["params"][0]].clear()', '[s.update({k: v * 0.5 for k, v in s.items() if k != "step" and torch.is_tensor(v)}) for s in {t}.state.values()] and None'],
    "array": ["{t}[:] = {n}", "{t} = np.full(3, {n}, np.float32)", "{t} = {t}[::-1]", "{t} = {t}.astype(np.float64)", "{t}.setflags(write=False)", "{t} = np.ones((), np.float32) * np.ones(3, np.float32)"],
    "matrix": ["{t} = X((3, 3), {s})", "{t}.data = X((3, 3), {s})", "{t} = {t}.t()", "{t} = leaf((3, 3), {s})", "with torch.no_grad(): {t}[1] = X((3,), {s})"],
    "tree": ['{t} = {"a": [X((3,), {s})], "b": {"c": {n}.0}}', '{t}["a"] = [{n}.0]', '{t}["b"]["c"] = X((3,), {s})', '{t}["b"] = collections.OrderedDict(c={n})', '{t}["a"].insert(0, {n}.0)', "{t} = copy.deepcopy({t})", 'del {t}["b"]["c"]'],
    "tuple": ["{t} = (X((3,), {s}), {n})", "{t} = Pair(X((3,), {s}), {n}.5)", "{t} = (*{t}, {n})", "{t} = ({n}.5, X((3,), {s}))"],
    "mode": ['{t} = "slow"', '{t} = "other"'],
    "generator": ["{t} = random.Random({n})", "{t} = itertools.count({n})", "({t}.seed({n}) if hasattr({t}, 'seed') else None)"],
    "helper": ["{t} = lambda v: v * {n}", "{t} = jit(lambda v: v - {n})", "{t}.k = {n}.5", "{t} = functools.partial(torch.add, other={n})", "{t} = torch.tanh", "{t} = nn.Identity()", "{t} = functools.lru_cache(lambda v: v * {n})", "{t} = jit({t})"],
}  # fmt: skip
SETTINGS = ["torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)", "torch.use_deterministic_algorithms(True)", "torch.use_deterministic_algorithms(False)", "torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)", "torch.set_float32_matmul_precision('high')", "torch.set_autocast_enabled(D.type, True)", "torch.set_autocast_enabled(D.type, False)", "torch.set_autocast_dtype(D.type, torch.float16)", "torch.backends.cudnn.benchmark = True"]  # fmt: skip
SEEDS = ["random.seed({n})", "np.random.seed({n})", "random.random()"]
VARIABLES = ['os.environ["TG_FUZZ"] = "{n}"', 'os.environ.pop("TG_FUZZ", None)']

TRAINING = [
    "({v}.sum().backward() if {v}.requires_grad else None); {t}.step(); {t}.zero_grad()",
    "{t}.zero_grad(); ({v}.sum().backward() if {v}.requires_grad else None); {t}.step()",
    "({v}.pow(2).mean().backward(retain_graph=True) if {v}.requires_grad else None); {t}.step()",
]
# what is done with the result {r} of an earlier call
RESULTS = [
    "for t in tensors({r}): t.data.mul_(0.5)",
    "for t in tensors({r}): t.register_hook(lambda g: g * 2) if t.requires_grad else None",
    "for t in tensors({r}): t.retain_grad() if t.requires_grad else None",
    "for t in tensors({r}): t.k = {n}",
    "{r} = copy.copy({r})",
    "({r}.append({n}) if isinstance({r}, list) else None)",
    "({r}.clear() if isinstance({r}, dict) else None)",
    "(setattr({r}, 'y', {n}) if isinstance({r}, (Record, Plain, Slots)) else None)",
    "{r} = {r}() if isinstance({r}, types.FunctionType) else {r}",
    "{r} = next({r}) if isinstance({r}, types.GeneratorType) else {r}",
    "g{s} = torch.autograd.grad(total({r}), {w}, allow_unused=True)",
    "g{s} = torch.autograd.grad(total({r}), {w}, allow_unused=True, create_graph=True)",
    "total({r}).backward(retain_graph=True)",
    "total({r}).backward(inputs=[{w}])",
    "a0 = first({r})",
    "a0 = first({r}).detach()",
    "del {r}",
]
# how a function is compiled
COMPILED = ["torch.no_grad()(jit({f}{c}))", "jit(torch.no_grad()({f}){c})", "jit(torch.enable_grad()({f}){c})", "jit(jit({f}{c}))", "jit(functools.partial({f}, y=0.5){c})", "(lambda f: lambda x, y=None: f(x, y))(jit({f}{c}))", "jit((lambda f: lambda x, y=None: f(x, y))({f}){c})"]  # fmt: skip

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
VALUE = ["{v} = torch.tanh({v})", "{v} = {v} * 0.5", "{v}.add_(1)", "{v} = {v}.clone()", "{v} = {v}[:1] + {v}", "{v} = {v}.view(-1, 3)", "{v} = {v}.detach()", "with torch.no_grad(): {v} = {v} * 2", "x.add_(1)", "x.mul_(0.5)", "{v} = {v}.float()", "{v} = {v} @ {v}.t() @ {v}", "with torch.enable_grad(): {v} = {v} * 2", "torch.add({v}, 1, out={v}) if not {v}.requires_grad else None", "x[0].add_(1)", "x[:, 1] = 0.5", "{v}[0] = {m}", "{v}[:, 1:].mul_(0.5)", "{v} = Doubled.apply({v})", "{v} = checkpoint(torch.tanh, {v}, use_reentrant=False)", "{v} = torch.func.grad(lambda a: (a * a).sum())({v})", "{v} = torch.vmap(lambda a: a * 2)({v})", "{v}.requires_grad_()", "{v} = {v}.expand(2, -1, -1)[0]", "{v} = torch.where({v} > 0, {v}, {m})", "{v} = torch.cat([{v}, {v}])[: len({v})]", "{v} = {v}.to(torch.float64)", "{v}.retain_grad() if {v}.requires_grad else None", "{v}.k = {n}", "(y.mul_(0.5) if torch.is_tensor(y) and not y.requires_grad else None)", "(y.append({m}) if isinstance(y, list) else None)", "(y.update(a={n}.5) if isinstance(y, dict) else None)", "(setattr(y, 'n', {n}) if hasattr(y, 'n') else None)", "for k in range({n}): {v} = {v} * 0.5", "with torch.autocast(D.type, dtype=torch.bfloat16): {v} = {v} @ {v}.t() @ {v}", "with torch.inference_mode(False): {v} = {v} * 1.5", "x = {v}", "{v} = x", "x.requires_grad_()", "x.grad = None", "x.k = {n}", "{v} = {v} + (0.5 if x.grad is None else x.grad)", "x.data = x.data * 0.5", "{v} = {v} * (1.0 + x.requires_grad) * (1.0 + x.is_leaf)"]  # fmt: skip
RETURNS = ["return {v}", "return {v}", "return {v}", "return {v}", "return {v}, x", "return {'a': {v}, 'b': {o}}", "return Record({v}, {k})", "return Frozen({v}, {k})", "return Pair({v}, {k})", "return Bag(a={v}, b={k})", "return Row([{v}, {k}])", "return Plain({v}, {o})", "return Slots({v}, {k})", "return types.SimpleNamespace(y={v}, n={k})", "return torch.distributions.Normal({v}.float(), {v}.detach().float().abs() + 1)", "return [Record({v}, {v}), x]", "return Plain(Record({v}, [{v}]), {o})", "return x", "return {o}", "return {v}[0], x[0]", "return {v}, {v}", "return {v}.detach()", "return None", "return {v}, {k}", "return Record({v}, Plain(x, {o}))", "return {v}.sum()", "return deque([{v}, {k}])", "return {v}.shape, {v}.dtype, {v}", "return {v}, torch.distributions.Categorical(logits={v}.float())", "return {'a': [{v}, x], 'b': ({v}, {k})}", "return {v}.t()", "return {v}[0], {v}[1:]", "return x[0]", "return {o}, {v}", "return collections.OrderedDict(b={v}, a=x)", "return ({v}, {o}, {v})", "return Plain({v}, {v}.detach())", "return lambda: {v}", "return nn.Parameter({v}.detach())", "return {v}.requires_grad, {v}.is_leaf, {v}", "return {v} if x.sum is None else {v} * 2", "return [*{v}]", "return frozenset({{k}}), {v}", "return Box(t={v}, k={k})", "return {v}.view(-1)[::2]", "return (e for e in [{v}])", "return y, {v}", "return {v}.detach().requires_grad_()", "return x.detach(), {v}"]  # fmt: skip
REGIONS = ["with torch.no_grad(): ", "with torch.inference_mode(): ", "with torch.autocast(D.type, dtype=torch.bfloat16): ", "with torch.enable_grad(): ", "with torch.autocast(D.type, enabled=False): "]  # fmt: skip
OPTIONS = [
    "",
    "",
    ', compile="first"',
    ', check="never"',
    ', compile="first", check="never"',
    ', compile="first", check="always"',
    ", guard_values=True",
    ', compile="background", at=2',
    ', compile="background", at=3',
]
