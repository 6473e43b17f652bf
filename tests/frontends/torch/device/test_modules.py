"""Moving modules: identity, ties, gradients, hooks and optimizers survive, as they do between the CPU and CUDA."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import fusion, parametrizations, parametrize, prune

import tensorgraft as tg
import tensorgraft.frontends.torch as front

pytestmark = pytest.mark.sampled


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def tied():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    return loss.item()


def test_ties_and_optimizers_survive(device):
    x = torch.randn(4, 3)
    native, moved = tied(), tied()
    theirs, ours = torch.optim.Adam(native.parameters(), 0.1), torch.optim.Adam(moved.parameters(), 0.1)
    before = list(moved.parameters())
    assert moved.to(device) is moved
    assert all(p is q for p, q in zip(before, moved.parameters(), strict=True))
    assert moved[0].weight is moved[2].weight and moved[0].weight.device == device
    for _ in range(3):
        assert step(moved, ours, x.to(device)) == pytest.approx(step(native, theirs, x), rel=1e-4)
    moved.cpu()
    assert moved[0].weight is moved[2].weight is before[0] and before[0].device.type == "cpu"
    assert torch.allclose(before[0], native[0].weight, atol=1e-5)


def test_every_way_to_move(device):
    model = tied()
    weight = model[0].weight
    model.graft(device.index)
    assert weight.device == device
    other = (device.index + 1) % len(tg.backends())
    model.to(f"graft:{other}")
    assert weight.device.index == other and weight.is_leaf and weight.requires_grad
    model.to("cpu", torch.float64)
    assert (weight.device.type, weight.dtype) == ("cpu", torch.float64)
    model.to(device, torch.bfloat16)
    assert (weight.device, weight.dtype) == (device, torch.bfloat16)
    model.float()
    model.to(torch.ones(1))
    assert weight is model[2].weight and (weight.device.type, weight.dtype) == ("cpu", torch.float32)


def test_gradients_and_hooks_move_along(device):
    model = nn.Linear(2, 1)
    called = []
    model.weight.register_hook(lambda grad: called.append("hook"))
    model.weight.register_post_accumulate_grad_hook(lambda p: called.append("after"))
    model(torch.ones(1, 2)).sum().backward()
    grad = model.weight.grad
    called.clear()
    model.to(device)
    assert model.weight.grad is grad and grad.device == device and grad.tolist() == [[1, 1]]
    model(torch.ones(1, 2, device=device)).sum().backward()
    assert sorted(called) == ["after", "hook"] and grad.tolist() == [[2, 2]]


def test_a_graph_from_before_the_move(device):
    model = nn.Linear(2, 1)
    x = torch.ones(1, 2)
    before = model(x)
    model.to(device)
    assert torch.allclose(model(x.to(device)).cpu(), before)
    with pytest.raises(RuntimeError, match="moved to another device after the forward pass"):
        before.sum().backward()


def test_a_graph_and_a_parameter_that_is_back(device):
    """As FSDP1 has it: away after the forward pass, back before the backward pass."""
    model = nn.Linear(2, 1).to(device)
    out = model(torch.ones(3, 2, device=device)).sum()
    model.cpu()
    model.to(device)
    out.backward()
    assert model.weight.grad.device == device and model.weight.grad.tolist() == [[3, 3]]


def test_data_can_be_assigned(device):
    p = nn.Parameter(torch.ones(2))
    p.data = torch.zeros(3, device=device)
    assert p.device == device and p.shape == (3,) and p.requires_grad and isinstance(p, nn.Parameter)
    p.data = p.data.cpu()
    assert p.device.type == "cpu"
    x = torch.ones(2, device=device)
    y = x.detach()
    x.data = torch.zeros(2, device=device)
    assert x.tolist() == [0, 0] and y.tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="must be floating point or complex"):
        p.data = torch.zeros(2, dtype=torch.int64, device=device)
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        p.data = torch.zeros(2, device="meta")


@pytest.mark.parametrize("copy", [torch.Tensor.clone, torch.Tensor.double, torch.Tensor.half, torch.Tensor.long])
def test_copies_of_a_parameter_of_inference_mode(device, copy):
    found = []
    for d in ("cpu", device):
        with torch.inference_mode():
            p = nn.Parameter(torch.ones(3, device=d))
            inside = copy(p)
        outside = copy(p)
        found.append((inside.requires_grad, outside.requires_grad, outside.is_inference(), outside.tolist()))
        if outside.requires_grad:
            (outside * 2).sum().backward()
            found[-1] += (p.grad.tolist(),)
    assert found[0] == found[1]


def test_data_of_an_inference_tensor(device):
    p, grown = nn.Parameter(torch.ones(3, device=device)), torch.ones(3, device=device)
    with torch.inference_mode():
        p.data = p.data * 2
        grown.data = grown.data * 2
        assert grown.is_inference()
        made = torch.ones(3, device=device)
        made.data = p.detach()
    assert isinstance(p, nn.Parameter) and p.requires_grad
    assert p.tolist() == grown.tolist() == made.tolist() == [2, 2, 2]
    (p * 3).sum().backward()
    assert p.grad.tolist() == [3, 3, 3]


def test_meta(device):
    model = nn.Linear(2, 2, device="meta").to_empty(device=device)
    assert model.weight.device == device and isinstance(model.weight, nn.Parameter)
    assert nn.Linear(2, 2, device=device).to("meta").weight.is_meta
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        nn.Linear(2, 2, device="meta").to(device)
    assert nn.Linear(2, 2, device=device).weight.device == device


def test_lazy_modules(device):
    for model in (nn.LazyLinear(3).to(device), nn.LazyLinear(3).graft(device.index)):
        assert model(torch.ones(2, 4, device=device)).device == device
        assert model.weight.shape == (3, 4)


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm, lambda m: m])
def test_deepcopy(device, wrap):
    model = wrap(nn.Linear(3, 3)).to(device)
    twin = copy.deepcopy(model)
    x = torch.randn(2, 3, device=device)
    twin.eval(), model.eval()
    assert torch.allclose(model(x), twin(x))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert q.device == device and q.data_ptr() != p.data_ptr()
    with torch.no_grad():
        next(twin.parameters()).fill_(3)
    assert not torch.allclose(model(x), twin(x))


def test_buffers(device):
    model = nn.BatchNorm1d(3).to(device)
    model(torch.randn(8, 3, device=device))
    twin = copy.deepcopy(model)
    assert twin.num_batches_tracked.item() == 1 and twin.running_mean.device == device
    twin.running_mean.zero_()
    assert model.running_mean.abs().sum().item() > 0


def test_state_dicts(device):
    model, other = nn.Linear(2, 2), nn.Linear(2, 2).to(device)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.weight.cpu(), model.weight) and other.weight.device == device
    model.load_state_dict({name: 2 * value for name, value in other.state_dict().items()})
    assert torch.equal(2 * other.weight.cpu(), model.weight) and model.weight.device.type == "cpu"
    empty = nn.Linear(2, 2, device="meta")
    empty.load_state_dict(other.state_dict(), assign=True)
    assert empty.weight.device == device


def test_lazy_state_dicts(device):
    """Not initialised yet, from and to the device, and over what is not."""
    here = nn.LazyLinear(3).to(device)
    here.load_state_dict(nn.LazyLinear(3).state_dict())
    nn.LazyLinear(3).load_state_dict(here.state_dict())
    here.load_state_dict(nn.LazyLinear(3).to(device).state_dict())
    assert isinstance(here.weight, nn.UninitializedParameter) and here.weight.device == device
    here.load_state_dict({"weight": torch.ones(3, 2), "bias": torch.zeros(3)})
    assert here(torch.ones(1, 2, device=device)).tolist() == [[2, 2, 2]]
    with pytest.raises(RuntimeError, match="to load an uninitialized parameter into an initialized one"):
        nn.Linear(2, 3).to(device).load_state_dict(nn.LazyLinear(3).state_dict())


# ---- what goes with modules ------------------------------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).mT

    def right_inverse(self, x):
        return x.triu()


def line(where, *shape):
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).to(where)


def trained(module, where, *shape):
    """(the result, gradients by name)."""
    y = module(line(where, *(shape or (4, 3))))
    y.square().sum().backward()
    return [y, {name: p.grad for name, p in module.named_parameters()}]


def old_weight_norm(where):
    module = nn.utils.weight_norm(nn.Linear(3, 3), dim=1).to(where)
    made = trained(module, where)
    nn.utils.remove_weight_norm(module)
    return [*made, module.state_dict()]


def weight_norm(where):
    module = parametrizations.weight_norm(nn.Linear(3, 3)).to(where)
    made = trained(module, where)
    other = parametrizations.weight_norm(nn.Linear(3, 3)).to(where)
    other.load_state_dict(module.state_dict())
    parametrize.remove_parametrizations(module, "weight")
    return [*made, module.state_dict(), other(line(where, 4, 3))]


def spectral_norm(where):
    module = parametrizations.spectral_norm(nn.Linear(3, 3)).to(where)
    return [*trained(module, where), module.eval()(line(where, 4, 3)), module.state_dict()]


def old_spectral_norm(where):
    module = nn.utils.spectral_norm(nn.Linear(3, 3)).to(where)
    made = trained(module, where)
    return [*made, nn.utils.remove_spectral_norm(module.eval()).weight]


def orthogonal(where):
    made = []
    for kind in ("matrix_exp", "cayley", "householder"):
        module = parametrizations.orthogonal(nn.Linear(3, 3), orthogonal_map=kind).to(where)
        with torch.no_grad():
            module.parametrizations.weight.original.copy_(line(where, 3, 3))
        trained(module, where)
        made.append(module.weight @ module.weight.mT)
    return made


def own_parametrization(where):
    module = nn.Linear(3, 3).to(where)
    parametrize.register_parametrization(module, "weight", Symmetric())
    made = trained(module, where)
    module.weight = line(where, 3, 3)
    with parametrize.cached():
        y = module(line(where, 4, 3)) + module(line(where, 4, 3))
    return [*made, y, copy.deepcopy(module).weight]


def pruned(where):
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(where)
    prune.l1_unstructured(module[0], "weight", amount=0.4)
    prune.ln_structured(module[0], "weight", amount=1, n=2, dim=0)
    made = trained(module, where)
    prune.remove(module[0], "weight")
    chosen = [(module[0], "weight"), (module[1], "weight")]
    prune.global_unstructured(chosen, pruning_method=prune.L1Unstructured, amount=0.3)
    return [*made, module.state_dict()]


def fused(where):
    convolution, norm = nn.Conv2d(2, 3, 3).to(where), nn.BatchNorm2d(3).to(where)
    norm(line(where, 2, 3, 2, 2))
    module = fusion.fuse_conv_bn_eval(convolution.eval(), norm.eval())
    return [module(line(where, 1, 2, 5, 5)), module.state_dict()]


def functional(where):
    module = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).to(where)
    doubled = {name: p.detach() * 2 for name, p in module.named_parameters()}
    x = line(where, 4, 3)
    gradients = torch.func.grad(lambda p: torch.func.functional_call(module, p, (x,)).square().sum())(doubled)
    models = [nn.Linear(3, 3).to(where) for _ in range(2)]
    stacked, _ = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    many = torch.vmap(lambda p: torch.func.functional_call(base, p, (x,)))(stacked)
    return [torch.func.functional_call(module, doubled, (x,)), gradients, many]


def hooked(where):
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to(where)
    module.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    module.register_forward_hook(lambda m, args, out: out + 1)
    module.register_full_backward_pre_hook(lambda m, grads: tuple(g * 2 for g in grads))
    module.register_full_backward_hook(lambda m, into, out: tuple(g * 3 for g in into))
    x = line(where, 4, 3).requires_grad_()
    module(x).sum().backward()
    return [x.grad, module[0].weight.grad]


def vectors(where):
    module = nn.Linear(3, 3).to(where)
    vector = nn.utils.parameters_to_vector(module.parameters())
    nn.utils.vector_to_parameters(vector * 2, module.parameters())
    return [vector, module.weight]


def embedded(where):
    module = nn.Embedding(5, 3, padding_idx=1, max_norm=1.0).to(where)
    y = module(torch.tensor([1, 2, 2]).to(where))
    y.sum().backward()
    return [y, module.weight, module.weight.grad]


def in_channels_last(where):
    module = nn.Conv2d(2, 4, 3).to(where).to(memory_format=torch.channels_last)
    y = module(line(where, 1, 2, 5, 5).to(memory_format=torch.channels_last))
    return [y, y.stride(), module.weight.stride()]


def in_checkpointed_pieces(where):
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).to(where)
    x = line(where, 4, 3).requires_grad_()
    torch.utils.checkpoint.checkpoint_sequential(module, 2, x, use_reentrant=False).sum().backward()
    return [x.grad]


def pickled(where):
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.MultiheadAttention(3, 1)).to(where)
    again = pickle.loads(pickle.dumps(module))
    assert all(v.device == torch.device(where) for v in again.state_dict().values())
    return [again.state_dict()]


def swapped(where):
    one, other = nn.Parameter(line(where, 2)), nn.Parameter(line(where, 3))
    torch.utils.swap_tensors(one, other)
    return [one, other]


def traced(where):
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to(where)
    x = line(where, 4, 3)
    made = [torch.fx.symbolic_trace(module)(x), torch.jit.trace(module, x)(x)]
    return [*made, torch.compile(module, backend="eager")(x)]


def strict(where):
    module = nn.Linear(3, 3).to(where)
    found = module.load_state_dict({"weight": torch.ones(3, 3), "other": torch.ones(1)}, strict=False)
    return [found.missing_keys, found.unexpected_keys, module.weight]


PROGRAMS = [old_weight_norm, weight_norm, spectral_norm, old_spectral_norm, orthogonal, own_parametrization, pruned]
PROGRAMS += [fused, functional, hooked, vectors, embedded, in_channels_last, in_checkpointed_pieces, pickled, swapped]
PROGRAMS += [traced, strict]


def compare(got, expected):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        compare(list(got.values()), list(expected.values()))
    elif isinstance(expected, list):
        for g, e in zip(got, expected, strict=True):
            compare(g, e)
    else:
        assert got == expected


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_what_goes_with_modules(program, device):
    torch.manual_seed(0)
    expected = program("cpu")
    torch.manual_seed(0)
    before = front.fallbacks()
    compare(program(device), expected)
    assert front.fallbacks() == before


def test_a_checkpoint_that_does_not_fit_changes_nothing(device):
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(device)
    before = {name: value.cpu() for name, value in module.state_dict().items()}
    for wrong in ({"0.bias": torch.ones(3)}, {"1.weight": torch.ones(1, 2)}, {"other": torch.ones(1)}):
        state = {name: torch.ones_like(value) for name, value in before.items()} | wrong
        with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict for Sequential"):
            module.load_state_dict(state)
        assert all(torch.equal(value.cpu(), before[name]) for name, value in module.state_dict().items())


def test_initialisation(device):
    torch.manual_seed(0)
    w = torch.empty(200, 300, device=device)
    deviations = {
        nn.init.xavier_uniform_: (2 / 500) ** 0.5,
        nn.init.xavier_normal_: (2 / 500) ** 0.5,
        nn.init.kaiming_uniform_: (2 / 300) ** 0.5,
        nn.init.kaiming_normal_: (2 / 300) ** 0.5,
        nn.init.orthogonal_: (1 / 300) ** 0.5,
        nn.init.trunc_normal_: 0.8796,  # of a normal distribution cut at 2
        nn.init.normal_: 1,
        nn.init.uniform_: (1 / 12) ** 0.5,
    }
    for fill, deviation in deviations.items():
        assert fill(w).std().item() == pytest.approx(deviation, rel=0.02), fill
    assert nn.init.sparse_(w[:20, :3], 0.1).eq(0).sum(0).eq(2).all()
