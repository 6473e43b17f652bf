"""Optimizers and what goes with them, on the device against CPU PyTorch: options, checkpoints, schedules, clipping."""

import copy
import io

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler, swa_utils

import tensorgraft as tg

pytestmark = pytest.mark.sampled

CLOSE = {"rtol": 2e-6, "atol": 2e-6}  # step counters are float32, and with them the corrections of the moments


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def parameters(device, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=g, dtype=dtype) for shape in ((3, 4), (4, 2))]
    return [nn.Parameter(v.to(device)) for v in values]


def stepped(device, make, steps=4, dtype=torch.float64, after=lambda optimizer: None):
    """The parameters and the optimizer after steps with the same gradients, or for LBFGS of the same function."""
    made = parameters(device, dtype)
    optimizer = make(made)
    g = torch.Generator().manual_seed(1)

    def closure():
        optimizer.zero_grad()
        loss = sum((p - 1).square().sum() for p in made)
        loss.backward()
        return loss

    for _ in range(steps):
        for p in made:
            p.grad = torch.randn(p.shape, generator=g).to(p)
        optimizer.step(*[closure] if isinstance(optimizer, torch.optim.LBFGS) else [])
        after(optimizer)
    return made, optimizer


def tensors_of(optimizer):
    """The tensors of its state by name, on the CPU."""
    state = optimizer.state_dict()["state"]
    return {(k, n): v.detach().cpu() for k, s in state.items() for n, v in s.items() if isinstance(v, torch.Tensor)}


def assert_equal(ours, theirs, **tolerance):
    for p, q in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach().cpu(), **(tolerance or CLOSE))
    mine, native = tensors_of(ours[1]), tensors_of(theirs[1])
    assert mine.keys() == native.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], native[name], msg=lambda m, n=name: f"{n}: {m}", **(tolerance or CLOSE))


OPTIONS = [
    (optim.Adadelta, {"weight_decay": 0.1, "maximize": True}),
    (optim.Adadelta, {"capturable": True, "rho": 0.5}),
    (optim.Adafactor, {"weight_decay": 0.1, "maximize": True}),
    (optim.Adafactor, {"lr": 0.1, "beta2_decay": -0.5, "d": 1.5}),
    (optim.Adagrad, {"initial_accumulator_value": 0.1, "weight_decay": 0.1}),
    (optim.Adagrad, {"fused": True, "maximize": True, "lr_decay": 0.5}),
    (optim.Adam, {"amsgrad": True, "capturable": True}),
    (optim.Adam, {"foreach": False, "weight_decay": 0.1, "maximize": True}),
    (optim.Adam, {"fused": True, "amsgrad": True, "weight_decay": 0.1}),
    (optim.Adam, {"lr": torch.tensor(0.1), "fused": True}),
    (optim.AdamW, {"capturable": True, "foreach": False}),
    (optim.AdamW, {"fused": True, "maximize": True, "capturable": True}),
    (optim.Adamax, {"weight_decay": 0.1, "maximize": True}),
    (optim.Adamax, {"capturable": True}),
    (optim.ASGD, {"lambd": 0.1, "t0": 1, "maximize": True}),
    (optim.ASGD, {"capturable": True}),
    (optim.LBFGS, {"lr": 0.5, "max_iter": 3, "line_search_fn": "strong_wolfe"}),
    (optim.LBFGS, {"lr": 0.01, "max_iter": 2, "history_size": 3}),
    (optim.Muon, {"weight_decay": 0.1, "nesterov": False}),
    (optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    (optim.NAdam, {"capturable": True, "maximize": True}),
    (optim.RAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    (optim.RAdam, {"capturable": True, "maximize": True}),
    (optim.RMSprop, {"centered": True, "momentum": 0.5, "weight_decay": 0.1, "maximize": True}),
    (optim.RMSprop, {"capturable": True}),
    (optim.Rprop, {"etas": (0.2, 1.1), "step_sizes": (1e-3, 10), "maximize": True}),
    (optim.Rprop, {"capturable": True}),
    (optim.SGD, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1, "maximize": True}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True, "fused": True, "weight_decay": 0.1}),
    (optim.SGD, {"lr": torch.tensor(0.1), "foreach": False}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=lambda v: v.__name__ if isinstance(v, type) else ",".join(v))
def test_options(kind, options, device):
    native = {k: v for k, v in options.items() if k != "capturable"}  # refused on the CPU; the numbers are the same
    tolerance = {"rtol": 0.02, "atol": 1e-4} if kind is optim.Muon else CLOSE  # which iterates in bfloat16
    ours = stepped(device, lambda p: kind(p, **options))
    assert_equal(ours, stepped("cpu", lambda p: kind(p, **native)), **tolerance)
    if options.get("capturable") or options.get("fused"):
        steps = [s["step"] for s in ours[1].state.values() if "step" in s]
        assert all(step.device == device for step in steps)


def test_sparse_adam_is_refused(device):
    optimizer = optim.SparseAdam(made := parameters(device))
    for p in made:
        p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients"):
        optimizer.step()


BAD = {
    "a negative rate": lambda p: optim.Adam(p, lr=-1.0),
    "beta": lambda p: optim.AdamW(p, betas=(1.0, 0.9)),
    "nesterov without momentum": lambda p: optim.SGD(p, lr=0.1, nesterov=True),
    "fused and foreach": lambda p: optim.Adam(p, fused=True, foreach=True),
    "fused and differentiable": lambda p: optim.Adam(p, fused=True, differentiable=True),
    "the same parameter in two groups": lambda p: optim.SGD([{"params": p}, {"params": p[0]}], lr=0.1),
    "no leaf": lambda p: optim.SGD([p[0] * 2], lr=0.1),
    "a tensor as rate": lambda p: optim.SGD(p, lr=torch.ones(2)),
    "a group that does not fit": lambda p: optim.SGD(p, lr=0.1).load_state_dict(optim.SGD(p[:1], lr=0.1).state_dict()),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options(name, device):
    with pytest.raises(Exception) as native:
        BAD[name](parameters("cpu"))
    with pytest.raises(type(native.value)) as ours:
        BAD[name](parameters(device))
    assert str(ours.value) == str(native.value)


@pytest.mark.parametrize("kind", [optim.Adam, optim.SGD, optim.RMSprop, optim.Adagrad, optim.Adadelta])
def test_differentiable(kind, device):
    """The gradient of the parameters after two steps in those before."""
    options = {"momentum": 0.9} if kind is optim.SGD else {}
    results = []
    for where in ("cpu", device):
        start = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64).to(where).requires_grad_()
        p = start.clone()
        p.retain_grad()
        held = nn.Parameter(torch.zeros(3, dtype=torch.float64, device=where))
        optimizer = kind([held], lr=0.1, differentiable=True, **options)
        optimizer.param_groups[0]["params"] = [p]
        for factor in (1.0, 2.0):
            p.grad = (start * factor).square()
            optimizer.step()
        results.append(torch.autograd.grad(p.square().sum(), start)[0].cpu())
    torch.testing.assert_close(results[1], results[0], **CLOSE)


# ---- checkpoints -----------------------------------------------------------------------------------------------------

KINDS = {
    "adam": lambda p: optim.Adam(p, lr=0.1),
    "adamw capturable": lambda p: optim.AdamW(p, lr=0.1, capturable=p[0].device.type == "graft"),
    "adam fused": lambda p: optim.Adam(p, lr=0.1, fused=True),
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "adafactor": lambda p: optim.Adafactor(p, lr=0.1),
    "lbfgs": lambda p: optim.LBFGS(p, lr=0.1, max_iter=2),
}


def through_a_file(x, **options):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, **options)


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_goes_on_elsewhere(name, device):
    """Two steps here, two there, either way, are four steps on the CPU."""
    make = KINDS[name]
    expected = stepped("cpu", make)
    for here, there in (("cpu", device), (device, "cpu"), (device, device)):
        made, optimizer = stepped(here, make, steps=2)
        state = through_a_file({"parameters": made, "optimizer": optimizer.state_dict()}, map_location="cpu")
        others = [nn.Parameter(p.detach().to(there)) for p in state["parameters"]]
        again = make(others)
        flags = [{k: g[k] for k in ("capturable", "fused") if k in g} for g in again.param_groups]
        again.load_state_dict(state["optimizer"])
        for group, own in zip(again.param_groups, flags, strict=True):
            group.update(own)  # where a program may run is not part of what it has learnt
        if "capturable" in name and torch.device(there).type == "graft":
            for entries in again.state.values():
                entries["step"] = entries["step"].to(there)
        for entries in again.state.values():
            moved = [v for n, v in entries.items() if isinstance(v, torch.Tensor) and n != "step"]
            assert all(v.device == torch.device(there) for v in moved)
        g = torch.Generator().manual_seed(1)
        for n in range(4):
            grads = [torch.randn(p.shape, generator=g) for p in others]
            if n < 2:
                continue
            for p, grad in zip(others, grads, strict=True):
                p.grad = grad.to(p)
            again.step(*[_quadratic(again, others)] if name == "lbfgs" else [])
        assert_equal((others, again), expected)


def _quadratic(optimizer, made):
    def closure():
        optimizer.zero_grad()
        loss = sum((p - 1).square().sum() for p in made)
        loss.backward()
        return loss

    return closure


def test_hooks_groups_and_copies(device):
    made = parameters(device)
    optimizer = optim.SGD([{"params": made[:1], "lr": 0.5}], lr=0.1, momentum=0.9)
    optimizer.add_param_group({"params": made[1:]})
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    optimizer.register_state_dict_post_hook(lambda _, d: called.append("saved"))
    optimizer.register_load_state_dict_pre_hook(lambda _, d: called.append("loaded"))
    before = [p.detach().clone() for p in made]
    for p in made:
        p.grad = torch.ones_like(p)
    optimizer.step()
    for p, old, lr in zip(made, before, (0.5, 0.1), strict=True):
        torch.testing.assert_close(p.detach(), old - lr)
    optimizer.load_state_dict(optimizer.state_dict())
    assert called == ["before", "after", "saved", "loaded"]
    twin = copy.deepcopy(optimizer)
    buffers = [s["momentum_buffer"] for s in twin.state.values()]
    assert all(b.device == device and b.eq(1).all() for b in buffers)
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad.eq(0).all() for p in made)
    optimizer.zero_grad()
    assert all(p.grad is None for p in made)


# ---- schedules -------------------------------------------------------------------------------------------------------

SCHEDULES = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.5**n),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.7),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4, 2),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=8),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=False),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.5)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.5)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.01, 3),
}


@pytest.mark.parametrize("rate", ["number", "tensor"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name, rate, device):
    results = []
    for where in ("cpu", device):
        schedulers = {}

        def make(p, where=where, schedulers=schedulers):
            lr = 0.1 if rate == "number" else torch.tensor(0.1, dtype=torch.float64, device=where)
            optimizer = optim.SGD(p, lr=lr, momentum=0.5, foreach=False)
            schedulers["one"] = SCHEDULES[name](optimizer)
            return optimizer

        def after(optimizer, where=where, schedulers=schedulers):
            loss = [torch.ones((), device=where)] if name == "ReduceLROnPlateau" else []
            schedulers["one"].step(*loss)

        made, optimizer = stepped(where, make, after=after)
        saved = through_a_file(schedulers["one"].state_dict(), weights_only=False)
        results.append((made, optimizer, float(optimizer.param_groups[0]["lr"]), saved.keys()))
    assert_equal(results[1][:2], results[0][:2])
    assert results[1][2] == pytest.approx(results[0][2], rel=1e-12) and results[1][3] == results[0][3]


# ---- gradient clipping, averages of weights --------------------------------------------------------------------------

CLIPS = {
    "norm": lambda p: nn.utils.clip_grad_norm_(p, 1.0),
    "norm of a loop": lambda p: nn.utils.clip_grad_norm_(p, 1.0, foreach=False),
    "norm of foreach": lambda p: nn.utils.clip_grad_norm_(p, 0.5, norm_type=1, foreach=True),
    "greatest": lambda p: nn.utils.clip_grad_norm_(p, 0.5, norm_type=float("inf")),
    "value": lambda p: nn.utils.clip_grad_value_(p, 0.3),
    "value of foreach": lambda p: nn.utils.clip_grad_value_(p, 0.3, foreach=True),
    "total norm": lambda p: nn.utils.get_total_norm([q.grad for q in p], 3.0),
    "by a known norm": lambda p: nn.utils.clip_grads_with_norm_(p, 1.0, torch.tensor(4.0).to(p[0])),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clipping(name, device):
    results = []
    for where in ("cpu", device):
        made = parameters(where)
        for p in made:
            p.grad = p.detach() * 3
        found = CLIPS[name](made)
        assert found is None or found.device == torch.device(where)
        results.append([*(p.grad.cpu() for p in made), *([] if found is None else [found.cpu()])])
    torch.testing.assert_close(results[1], results[0], **CLOSE)


def test_clipping_of_what_is_not_finite(device):
    p = nn.Parameter(torch.ones(2, device=device))
    p.grad = torch.tensor([1.0, float("nan")], device=device)
    with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
        nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert p.grad[0].item() == 1


AVERAGES = {
    "mean": {},
    "exponential": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    "exponential, one by one": {"avg_fn": swa_utils.get_ema_avg_fn(0.9)},
    "with buffers": {"avg_fn": swa_utils.get_swa_avg_fn(), "use_buffers": True},
}


@pytest.mark.parametrize("name", AVERAGES)
def test_averaged_models(name, device):
    results = []
    for where in ("cpu", device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double().to(where)
        averaged = swa_utils.AveragedModel(model, **AVERAGES[name])
        x = torch.randn(5, 3, dtype=torch.float64).to(where)
        for _ in range(3):
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(0.5)
            model(x)
            averaged.update_parameters(model)
        swa_utils.update_bn([x], averaged)
        assert all(v.device == torch.device(where) for v in averaged.module.state_dict().values())
        results.append([averaged(x).detach().cpu(), averaged.n_averaged.cpu(), *through_cpu(averaged.state_dict())])
    torch.testing.assert_close(results[1], results[0], **CLOSE)


def through_cpu(state):
    return [v.cpu() for v in state.values()]


# ---- parameters of every kind, scaled gradients ----------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}], ids=str)
@pytest.mark.parametrize("kind", [optim.Adam, optim.SGD])
def test_parameters_of_several_devices_and_dtypes(kind, options, device):
    results = []
    for where in ("cpu", device):
        g = torch.Generator().manual_seed(0)
        values = [torch.randn(shape, generator=g) for shape in ((4,), (3, 2), (3,), (), (0, 3), (2,))]
        values[1], values[2] = values[1].bfloat16(), values[2].double()
        made = [nn.Parameter(v.to(where)) for v in values]
        made.append(nn.Parameter(torch.ones(2)))  # on the CPU, whatever the others
        if "fused" not in options:
            made.append(nn.Parameter(torch.ones(2, dtype=torch.complex64).to(where)))
        optimizer = kind(made, lr=0.1, **options)
        for n in range(3):
            for p in made[n == 0 :]:  # the first one has no gradient at first
                p.grad = torch.full_like(p, n + 1)
            optimizer.step()
        results.append([p.detach().cpu() for p in made])
    for e, got in zip(*results, strict=True):
        torch.testing.assert_close(got, e)


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=str)
def test_scaled_steps(options, device):
    """A step whose gradients are not finite is left out, in the state too."""
    results = []
    for where in ("cpu", device):
        (p, _) = parameters(where, torch.float32)
        optimizer = optim.Adam([p], lr=0.1, **options)
        scaler = torch.amp.GradScaler(torch.device(where).type, init_scale=8.0)
        for factor in (1.0, float("inf"), 2.0):
            optimizer.zero_grad()
            scaler.scale((p * p * factor).sum()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([p], 1.0)
            scaler.step(optimizer)
            scaler.update()
        results.append([p.detach().cpu(), torch.tensor(scaler.get_scale()), *tensors_of(optimizer).values()])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
@pytest.mark.parametrize("made", ["inside", "outside, and its state is cleared"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, dampening=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
        lambda p: torch.optim.Adadelta(p),
        lambda p: torch.optim.NAdam(p, lr=0.1),
    ],
    ids=["SGD with dampening", "SGD", "Adadelta", "NAdam"],
)
def test_what_a_step_made_before_is_not_taken_for_the_state_of_another(backend, made, make):
    """Each call makes the optimizer anew, or finds one whose first step is still to come."""
    batches = [torch.randn(4, 3, generator=torch.Generator().manual_seed(n)) for n in range(4)]

    def trained(device):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(device)
        kept = make(model.parameters())

        def step(x):
            optimizer = make(model.parameters()) if made == "inside" else kept
            for _ in range(2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

        run = step if device.type == "cpu" else tg.jit(step)
        for n, x in enumerate(batches):
            run(x.to(device))
            if n % 2:
                kept.state.clear()
        return model.weight.detach().cpu(), [list(entries) for entries in kept.state.values()]

    weight, state = trained(tg.device(backend))
    expected, its_state = trained(torch.device("cpu"))
    torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-5)
    assert state == its_state


COUNTING = [
    (optim.Adam, {"amsgrad": True}),
    (optim.AdamW, {}),
    (optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    (optim.RAdam, {}),
    (optim.Adamax, {"weight_decay": 0.1}),
    (optim.Adagrad, {"lr_decay": 0.1}),
    (optim.Adadelta, {}),
    (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (optim.Rprop, {}),
    (optim.ASGD, {"lambd": 0.1, "t0": 1}),
    (optim.Adafactor, {}),
    (optim.SGD, {"momentum": 0.9}),
]


@pytest.mark.parametrize(("kind", "options"), COUNTING, ids=lambda one: getattr(one, "__name__", ""))
def test_compiled_steps_count_as_exactly_as_pytorchs(device, kind, options):
    def trained(where, wrap):
        x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(6, 2).to(where).requires_grad_()
        optimizer = kind([x], lr=0.01, **options)

        def step():
            optimizer.zero_grad()
            (x @ x.T - 1).square().sum().backward()
            optimizer.step()

        step = wrap(step)
        for _ in range(6):
            step()
        return x.detach().cpu(), list(tensors_of(optimizer).values())

    ours, theirs = trained(device, tg.jit), trained("cpu", lambda fn: fn)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-12)
    assert [t.dtype for t in ours[1]] == [t.dtype for t in theirs[1]]
