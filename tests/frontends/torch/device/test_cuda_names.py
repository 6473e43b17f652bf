"""Every name of `torch.cuda` and of its modules, while a backend is CUDA: an answer, or an error that says why not."""

import warnings

import pytest
import torch

import tensorgraft as tg
from tensorgraft.frontends.torch.device.accelerator import as_accelerator
from tensorgraft.frontends.torch.device.cuda_api import submodules

# What a call needs; without a line, nothing.
ARGUMENTS = {
    "BoolTensor": ([True],),
    "CudaError": (1,),
    "StreamContext": (None,),
    "can_device_access_peer": (0, 0),
    "check_error": (0,),
    "device": (0,),
    "device_of": (torch.zeros(1),),
    "manual_seed": (3,),
    "manual_seed_all": (3,),
    "set_device": (0,),
    "set_per_process_memory_fraction": (0.5,),
    "set_rng_state": (torch.zeros(16, dtype=torch.uint8),),
    "set_rng_state_all": ([torch.zeros(16, dtype=torch.uint8)],),
    "set_stream": (None,),
    "set_sync_debug_mode": (0,),
    "stream": (None,),
    "DeferredCudaCallError": ("why",),
    "amp.custom_bwd": (lambda ctx, g: g,),
    "amp.custom_fwd": (lambda ctx, x: x,),
    "nccl.is_available": ([],),
    "nvtx.mark": ("here",),
    "nvtx.range": ("here",),
    "nvtx.range_end": (0,),
    "nvtx.range_push": ("here",),
    "nvtx.range_start": ("here",),
}
CLASSES_OF_NUMBERS = {"cudaStatus"}  # which nobody calls


@pytest.fixture(params=["numpy", "jax"])
def on(request):
    with as_accelerator(request.param, tg.jit):
        yield request.param


def public():
    for inside, module in submodules().items():
        for name, value in sorted(vars(module).items()):
            home = getattr(value, "__module__", None) or ""
            listed = name in getattr(module, "__all__", ())
            own = home.startswith(("torch.cuda", "torch.nn.parallel.comm", "tensorgraft."))
            if callable(value) and not name.startswith("_") and (listed or own):
                yield f"{inside}.{name}" if inside else name, value


def test_every_name_answers_or_says_that_there_is_none(on):
    wrong, refused = {}, set()
    for path, function in public():
        name = path.rpartition(".")[2]
        if name in CLASSES_OF_NUMBERS:
            continue
        args = ARGUMENTS.get(path, ARGUMENTS.get(name, ()))
        args = ARGUMENTS[f"amp.{name}"] if path.startswith("amp.") and f"amp.{name}" in ARGUMENTS else args
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecated names
                result = function(*args)
                if hasattr(result, "__enter__"):
                    with result:
                        pass
        except NotImplementedError as error:
            refused.add(path)
            if f"{name}: there is no such thing on '{on}'" not in str(error):
                wrong[path] = error
        except Exception as error:
            wrong[path] = error
    assert not wrong
    assert {"CUDAGraph", "graphs.make_graphed_callables", "comm.broadcast", "nccl.all_reduce", "temperature"} <= refused
    assert len(refused) < 110, "names that answered before refuse"


def test_a_refusal_says_what_to_do(on):
    with pytest.raises(NotImplementedError, match="CUDAGraph: there is no such thing on"):
        torch.cuda.CUDAGraph()
    assert not isinstance(3, torch.cuda.CUDAGraph)
    with pytest.raises(NotImplementedError, match="keeps its memory itself"):
        torch.cuda.memory._record_memory_history()
    with pytest.raises(NotImplementedError, match="compile it with torch"):
        torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_types_of_sparse_tensors(on):
    x = torch.cuda.sparse.DoubleTensor(torch.tensor([[0, 2]]).cuda(), torch.ones(2).cuda(), torch.Size([4]))
    assert isinstance(x, torch.cuda.sparse.DoubleTensor) and not isinstance(x, torch.cuda.DoubleTensor)
    assert x.type() == "torch.cuda.sparse.DoubleTensor" and x.to_dense().tolist() == [1, 0, 1, 0]
    assert torch.cuda.sparse.FloatTensor(2, 3).shape == (2, 3)
    with pytest.raises(RuntimeError, match="layout"):
        x.type("torch.cuda.FloatTensor")


def test_names_are_the_same_in_every_module(on):
    for module in (torch.cuda.random, torch.cuda.memory, torch.cuda.streams, torch.cuda.graphs):
        for name in getattr(module, "__all__", ("Event", "Stream")):
            if hasattr(torch.cuda, name):
                assert getattr(module, name) is getattr(torch.cuda, name), name


def test_random_states_of_checkpoints(on):
    """As Hugging Face's Trainer keeps them."""
    torch.cuda.random.manual_seed(5)
    assert torch.cuda.random.initial_seed() == torch.cuda.initial_seed() == 5
    state, states = torch.cuda.random.get_rng_state(), torch.cuda.random.get_rng_state_all()
    assert len(states) == torch.cuda.device_count() and torch.equal(states[0], state)
    first = torch.rand(3, device="cuda")
    torch.cuda.random.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="cuda"), first)
    torch.cuda.random.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="cuda"), first)
    torch.cuda.set_rng_state(state, "cuda:0")
    assert torch.equal(torch.cuda.get_rng_state(0), state)


def test_default_generators(on):
    (generator,) = torch.cuda.default_generators
    state = generator.manual_seed(4).get_state()
    assert (
        generator.initial_seed() == torch.cuda.initial_seed() == 4 and generator.device == torch.ones(1).cuda().device
    )
    first = torch.rand(2, device="cuda")
    torch.cuda.default_generators[-1].set_state(state)
    assert torch.equal(torch.rand(2, device="cuda"), first) and generator.seed() == torch.cuda.initial_seed()
    with pytest.raises(IndexError):
        torch.cuda.default_generators[1]


def test_streams_and_memory(on):
    event = torch.cuda.streams.Event(enable_timing=True, blocking=True)
    event.record(torch.cuda.streams.Stream(device="cuda:0", priority=-1))
    assert event.query() and event.synchronize() is None
    with torch.cuda.StreamContext(torch.cuda.current_stream()), torch.cuda.stream(torch.cuda.Stream()):
        pass
    assert torch.cuda.memory.memory_allocated() == torch.cuda.memory_allocated() >= 0
    assert set(torch.cuda.memory_stats_as_nested_dict()) <= {"allocated_bytes", "reserved_bytes"}
    free, total = torch.cuda.memory.mem_get_info("cuda:0")
    assert 0 < free <= total and 0 <= torch.cuda.device_memory_used() < total
    assert torch.cuda.can_device_access_peer(0, 0)
    with torch.cuda.profiler.profile(), torch.cuda.nvtx.range("step"):
        pass
    if hasattr(torch.cuda.memory, "caching_allocator_disabled"):  # since PyTorch 2.11
        with torch.cuda.memory.caching_allocator_disabled():
            pass


def test_dynamo_can_be_imported(on):
    """It asks how PyTorch was compiled, which stays what it is."""
    import torch._dynamo.device_interface  # noqa: F401


def test_the_backend_pytorch_asks_for_the_real_cuda():
    with as_accelerator("torch", tg.jit):
        x = torch.ones(3, device="cuda")
        assert (x + x).sum().item() == 6 and torch.cuda.device_count() == 1
